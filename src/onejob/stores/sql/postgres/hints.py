"""Wake-up calls between processes, by NOTIFY and LISTEN: hints only, for whoever misses one looks again.

A NOTIFY inside the transaction that enqueues would make all such commits of the server wait in one line, so
a thread of its own sends it afterwards, and many changes share one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg

from onejob.errors import StoreError
from onejob.stores.bell import Bell
from onejob.stores.lane import Closed
from onejob.stores.sql.flows import Ask
from onejob.stores.sql.postgres.wire import ask

GAP = 0.005  # seconds between two calls at least
LOOK = 1.0  # seconds after which the listener sees whether it should end
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


class Herald:
    """Tells other processes that something has changed."""

    def __init__(self, ask: Callable[[Ask], Any]) -> None:
        self.name = os.urandom(8).hex()
        self._ask = ask
        self._news = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="onejob herald", daemon=True)
        self._thread.start()

    def tell(self) -> None:
        """Send a call soon."""
        if not self._news.is_set():
            self._news.set()

    def _work(self) -> None:
        while True:
            self._news.wait()
            if self._closed:
                return
            self._news.clear()
            with suppress(StoreError, psycopg.Error, Closed):
                self._ask(Ask("notify", (self.name,)))
            time.sleep(GAP)

    def close(self) -> None:
        """Send no more."""
        self._closed = True
        self._news.set()
        self._thread.join()


class Listener:
    """Rings a bell when another process calls; connects again after a loss, for ever."""

    def __init__(self, url: str, bell: Bell, own: str) -> None:
        self._url = url
        self._bell = bell
        self._own = own
        self._closed = threading.Event()
        self.listening = False
        self._thread = threading.Thread(target=self._work, name="onejob listener", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        pause = FIRST_PAUSE
        while not self._closed.is_set():
            with suppress(psycopg.Error):
                self._listen()
                pause = FIRST_PAUSE
            self.listening = False
            self._closed.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _listen(self) -> None:
        with psycopg.connect(self._url, autocommit=True, application_name="onejob listener") as connection:
            ask(connection, Ask("listen"))
            self.listening = True
            self._bell.ring()  # whatever was missed meanwhile
            while not self._closed.is_set():
                for call in connection.notifies(timeout=LOOK, stop_after=1):
                    if call.payload != self._own:
                        self._bell.ring()

    def close(self) -> None:
        """Listen no more."""
        self._closed.set()
        self._thread.join()
