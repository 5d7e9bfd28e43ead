"""What `onejob doctor` looks at in PostgreSQL: the server and its settings. Nothing here writes."""

from __future__ import annotations

import psycopg

from onejob.stores.contract import Finding, Schema
from onejob.stores.sql.postgres.address import Address
from onejob.stores.sql.postgres.faults import unavailable
from onejob.stores.sql.postgres.schema import found_schema


def schema(address: Address) -> Schema:
    """Tell the version of our tables."""
    try:
        with psycopg.connect(address.url, autocommit=True, prepare_threshold=None) as connection:
            return found_schema(connection)
    except psycopg.Error as error:
        raise unavailable(error, address.place) from error


def examine(address: Address) -> list[Finding]:
    """Look at everything."""
    return []
