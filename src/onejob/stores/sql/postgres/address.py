"""Where a PostgreSQL database is: the URL for the driver, and a name for people that keeps the password."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from onejob.errors import InvalidCall


class Address:
    """A URL without our own options."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        scheme = parts.scheme.partition("+")[0]
        self.url = urlunsplit(parts._replace(scheme=scheme))
        try:
            known = conninfo_to_dict(self.url)
        except psycopg.ProgrammingError as error:
            raise InvalidCall(f"The PostgreSQL URL cannot be read: {' '.join(str(error).split())}.") from None
        self.place = f"postgresql://{known.get('host', '')}/{known.get('dbname', '')}"
