"""Connections and sessions of Django and SQLAlchemy, recognised without importing either."""

from __future__ import annotations

from typing import Any

from onejob.errors import ForeignConnection, StoreError


def is_of(thing: Any, package: str) -> bool:
    """Return whether a class of this object is from a package, without importing the package."""
    return any(kind.__module__.partition(".")[0] == package for kind in type(thing).__mro__)


def is_async_sqlalchemy(connection: Any) -> bool:
    """Return whether this is an AsyncConnection or an AsyncSession of SQLAlchemy."""
    is_async = hasattr(connection, "get_raw_connection") or hasattr(connection, "sync_session")
    return is_async and is_of(connection, "sqlalchemy")


def unwrap_django(connection: Any) -> Any:
    """Return the driver's connection behind one of Django that is inside `atomic`."""
    if not connection.in_atomic_block:
        raise StoreError("connection= is not in a transaction: enqueue inside transaction.atomic().")
    connection.ensure_connection()
    return connection.connection


def begin_sqlalchemy(connection: Any) -> Any:
    """Return the pooled connection behind a Connection or a Session, after SQLAlchemy has begun."""
    if not hasattr(connection, "connection"):
        raise ForeignConnection(
            f"connection= is an object of SQLAlchemy's {type(connection).__name__}: pass a connection or a "
            "session that is in your transaction."
        )
    own = connection.connection() if callable(connection.connection) else connection
    own.exec_driver_sql("SELECT 1")  # so that SQLAlchemy knows that there is something to commit
    return own.connection
