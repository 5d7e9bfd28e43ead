"""Where a PostgreSQL database is: the URL for the driver, and a name for people that keeps the password."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from onejob.errors import InvalidCall

LISTEN = "listen"


class Address:
    """A URL parted into what is the driver's and what is ours."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
        self.url = parts._replace(query=urlencode([o for o in options if o[0] != LISTEN])).geturl()
        self.listen = dict(options).get(LISTEN, "on")  # on, off, or the URL at which to listen
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
