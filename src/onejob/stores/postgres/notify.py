"""Wake-ups between processes, by NOTIFY and LISTEN. They are hints: a process that misses one looks again.

A NOTIFY inside the transaction that enqueues would serialise all such commits of the server. A thread sends
it after the commit, and many changes share one.
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
from onejob.stores.flow import Query
from onejob.stores.group_commit import Closed
from onejob.stores.postgres.connection import ask_sync
from onejob.stores.postgres.server import Server
from onejob.stores.wakeup import Wakeup

GAP = 0.005  # seconds between two notifications at least
LOOK = 1.0  # seconds after which the listener checks whether it should end
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


class Notifier:
    """Notifies other processes that something has changed."""

    def __init__(self, run: Callable[[Query], Any]) -> None:
        self.name = os.urandom(8).hex()
        self._run = run
        self._has_news = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="onejob notifier", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        """Send a notification soon."""
        if not self._has_news.is_set():
            self._has_news.set()

    def _work(self) -> None:
        while True:
            self._has_news.wait()
            if self._is_closed:
                return
            self._has_news.clear()
            with suppress(StoreError, psycopg.Error, Closed):
                self._run(Query("notify", (self.name,)))
            time.sleep(GAP)

    def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        self._has_news.set()
        self._thread.join()


class Listener:
    """Passes notifications of other processes on to a wake-up; connects again after a loss, without end."""

    def __init__(self, url: str, server: Server, wakeup: Wakeup, own: str) -> None:
        self._url = url
        self._settings = server.url.settings(server.store_timeout) | {"application_name": "onejob listener"}
        self._wakeup = wakeup
        self._own = own
        self._closed = threading.Event()
        self.is_listening = False
        self._thread = threading.Thread(target=self._work, name="onejob listener", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        pause = FIRST_PAUSE
        while not self._closed.is_set():
            with suppress(psycopg.Error):
                self._listen()
                pause = FIRST_PAUSE
            self.is_listening = False
            self._closed.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _listen(self) -> None:
        with psycopg.connect(self._url, **self._settings) as connection:
            ask_sync(connection, Query("listen"))
            self.is_listening = True
            self._wakeup.notify()  # for changes that were missed meanwhile
            while not self._closed.is_set():
                for notification in connection.notifies(timeout=LOOK, stop_after=1):
                    if notification.payload != self._own:
                        self._wakeup.notify()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()
