"""Where a PostgreSQL database is: the URL for the driver, and a name for people that keeps the password."""

from __future__ import annotations

from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from onejob.errors import InvalidCall

LISTEN = "listen="


class Address:
    """A URL parted into what is the driver's and what is ours."""

    def __init__(self, url: str) -> None:
        head, _, query = url.partition("?")
        options = query.split("&") if query else []
        ours = [option for option in options if option.startswith(LISTEN)]
        theirs = [
            option for option in options if option not in ours
        ]  # as they are: libpq decodes them its own way
        self.url = "?".join([head, "&".join(theirs)]) if theirs else head
        self.listen = unquote(ours[-1].removeprefix(LISTEN)) if ours else "on"  # or off, or where to listen
        self.place = place(self.url)
        if self.listen not in {"on", "off"}:
            place(self.listen)


def place(url: str) -> str:
    """Name a database without user and password; raises InvalidCall for what is no URL of one."""
    try:
        known = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise InvalidCall(f"The PostgreSQL URL cannot be read: {' '.join(str(error).split())}.") from None
    return f"postgresql://{known.get('host') or ''}/{known.get('dbname') or ''}"
