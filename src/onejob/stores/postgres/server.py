"""A server as a process found it: its URL, its time, and what connections and flows have in common.

The offset of its clock is refreshed by a query that joins the next batch once the last answer is 30 seconds
old. In between, a monotonic clock measures the time, so that a step of this machine's wall clock changes
nothing.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import ConnectionTimeout

from onejob.core.job import EPOCH
from onejob.errors import InvalidCall, OnejobError, StoreTimeout
from onejob.stores.flow import Query
from onejob.stores.postgres.errors import unavailable
from onejob.stores.server_url import is_ambiguous

LISTEN = "listen="
BRIEF = 50  # milliseconds for another transaction's lock, before a group continues without the step
IDLE = 3000  # milliseconds after which the server ends a transaction of ours whose client has stopped
CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
REFRESH = 30.0  # seconds after which the server is asked for its time again


class Url:
    """A URL, divided into the options of the driver and our own."""

    def __init__(self, url: str) -> None:
        head, _, query = url.partition("?")
        options = query.split("&") if query else []
        ours = [option for option in options if option.startswith(LISTEN)]
        theirs = [option for option in options if option not in ours]  # unchanged: libpq decodes them itself
        self.url = "?".join([head, "&".join(theirs)]) if theirs else head
        self.listen = unquote(ours[-1].removeprefix(LISTEN)) if ours else "on"  # or off, or another URL
        self._known = read_url(self.url)
        host, name = self._known.get("host") or "", self._known.get("dbname") or ""
        port = f":{self._known['port']}" if self._known.get("port") else ""
        self.place = f"postgresql://{host}{port}/{name}"  # for people, without user and password
        if self.listen not in {"on", "off"}:
            read_url(self.listen)

    def settings(self, store_timeout: float) -> dict[str, Any]:
        """Return the driver's settings for every connection: names, and limits unless the URL has its own."""
        limits = {
            "connect_timeout": max(2, math.ceil(store_timeout)),
            "tcp_user_timeout": int(store_timeout * 1000),
        }
        given = {name: value for name, value in limits.items() if name not in self._known}
        return {"autocommit": True, "application_name": "onejob", **given}

    def session_options(self, statement_timeout: int) -> str:
        """Return the server's settings for the store's own connections; those of the URL come last and win.

        Bitmap scans would read dead rows again until the next vacuum. A plan that reads the whole table, made
        while it had few rows, would be kept when it has many. Where no index fits, it is read all the same,
        and its price must not make the server compile the statement.
        """
        ours = {
            "lock_timeout": BRIEF,
            "statement_timeout": statement_timeout,
            "idle_in_transaction_session_timeout": IDLE,
            "enable_bitmapscan": "off",
            "enable_seqscan": "off",
            "jit": "off",
        }
        options = [f"-c {name}={value}" for name, value in ours.items()]
        return " ".join([*options, str(self._known.get("options") or "")]).strip()


def read_url(url: str) -> dict[str, Any]:
    """Return the parts of a URL; raise InvalidCall, without the password, if it cannot be read."""
    said = ""
    if not is_ambiguous(url):
        try:
            parts = dict(conninfo_to_dict(url))
        except (psycopg.ProgrammingError, UnicodeError) as error:
            said = explanation(url, error)
        else:
            if not has_question_mark(url, parts):
                return parts
    raise InvalidCall(
        f"The PostgreSQL URL cannot be read{said}. Write postgresql://user:password@host/database, and "
        "percent-encode special characters of the password, such as %40 for @."
    )


def explanation(url: str, error: Exception) -> str:
    """Return what libpq says about an option that does not exist; its other messages quote the password."""
    said = re.search(r'invalid URI query parameter: "\w+"', str(error))
    return f": {said[0]}" if said and "password=" not in url else ""


def has_question_mark(url: str, parts: Mapping[str, Any]) -> bool:
    """Return whether libpq takes a question mark for a part of the password, unlike everyone else."""
    read = urlsplit(url)
    options = {name for name, _ in parse_qsl(read.query, keep_blank_values=True)}
    return "@" not in read.netloc and bool({"user", "password"} & (parts.keys() - options))


def monotonic() -> float:
    """Return seconds of a clock that no one can set, which also counts while the machine sleeps."""
    return time.clock_gettime(CLOCK_ID)


class Clock:
    """The offset of the server's clock to the monotonic one; or a clock that a test has passed."""

    def __init__(self, given: Callable[[], datetime] | None = None) -> None:
        self._given = given
        self.monotonic = monotonic
        self._asked_at = float("-inf")
        self._offset = 0.0

    def use(self, clock: Callable[[], datetime] | None) -> Callable[[], datetime] | None:
        """Take the time from another clock, or from the server again if it is None; return the one before."""
        before, self._given = self._given, clock
        return before

    @property
    def is_set(self) -> bool:
        """Whether the time is known."""
        return self._given is not None or self._asked_at > float("-inf")

    def is_due(self) -> bool:
        """Return whether the server should be asked for its time."""
        return self._given is None and self.monotonic() - self._asked_at > REFRESH

    def set(self, microseconds: int, asked_at: float) -> None:
        """Take over the server's time, which it read soon after `asked_at`."""
        self._asked_at = asked_at
        self._offset = microseconds / 1e6 - asked_at

    def now(self) -> datetime:
        """Return the server's time."""
        if self._given is not None:
            return self._given()
        return EPOCH + timedelta(seconds=self._offset + self.monotonic())


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How to connect, how long to wait, and what is known of the server."""

    url: Url
    clock: Clock
    admission_timeout: float  # seconds for other transactions, and for a server that restarts
    store_timeout: float  # seconds for one round trip
    changed: Callable[[], None]  # called after a commit that others may wait for
    installation: str = ""  # the id by which the database is recognised
    is_pooled: bool = False

    @property
    def place(self) -> str:
        """The database's name, without a password."""
        return self.url.place

    def now(self) -> datetime:
        """Return the server's time."""
        return self.clock.now()

    @property
    def statement_timeout(self) -> int:
        """Milliseconds for one statement, which may contain the wait for another transaction."""
        return int(max(self.store_timeout, self.admission_timeout + 1) * 1000)

    def settings(self, *, own: bool) -> dict[str, Any]:
        """Return the driver's settings, with limits for the store's own connections."""
        settings = self.url.settings(self.store_timeout)
        if self.is_pooled:
            return settings | {"prepare_threshold": None}
        return settings | ({"options": self.url.session_options(self.statement_timeout)} if own else {})

    def refuse(self, error: psycopg.Error) -> OnejobError:
        """Return the error of an attempt to connect as onejob's own."""
        if isinstance(error, ConnectionTimeout):
            return StoreTimeout(self.store_timeout, may_exist=False)
        return unavailable(error, self.place)

    @property
    def patiently(self) -> Query:
        """The statement that lets a transaction wait for as long as the app allows."""
        return self._wait(int(self.admission_timeout * 1000))

    @property
    def briefly(self) -> Query:
        """The statement that lets a transaction wait only briefly."""
        return self._wait(BRIEF)

    def _wait(self, milliseconds: int) -> Query:
        """Return the statement that sets how long to wait for a lock, where 0 would mean for ever."""
        wait = str(max(milliseconds, 1))
        if not self.is_pooled:
            return Query("lock_timeout", (wait,))
        return Query("time_limits", (wait, str(self.statement_timeout), str(IDLE)))
