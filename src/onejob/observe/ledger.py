"""The ledger of absorbed requests: counted in memory, written within a second."""

from __future__ import annotations

import logging
import threading
from collections import Counter

from onejob.errors import StoreError
from onejob.forks import generation
from onejob.stores.contract import Store, Tally

log = logging.getLogger("onejob")

FLUSH_AFTER = 0.5  # seconds

Entry = tuple[str, str, str, str]


class Ledger:
    """Count what was absorbed, per task, outcome and the job that stood for it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._counts: Counter[Entry] = Counter()
        self._timer: threading.Timer | None = None
        self._generation = generation()

    def count(self, one: Tally) -> None:
        """Count one; a timer writes it down."""
        self._notice_forks()
        with self._lock:
            self._counts[(one.namespace, one.task, one.outcome, one.job_id)] += one.count
            if self._timer is None:
                self._timer = threading.Timer(FLUSH_AFTER, self.flush)
                self._timer.daemon = True
                self._timer.start()

    def _notice_forks(self) -> None:
        """Begin anew in a forked child: what was counted before is the parent's to write."""
        if self._generation != generation():
            self._begin()

    def flush(self) -> None:
        """Write down what was counted; what cannot be written now is kept for the next time.

        Whoever closes the app waits here for what the timer is writing: its thread dies with the process.
        """
        self._notice_forks()
        with self._writing:
            self._write()

    def _write(self) -> None:
        with self._lock:
            counts, self._counts, timer, self._timer = self._counts, Counter(), self._timer, None
        if timer is not None and timer is not threading.current_thread():
            timer.cancel()
        if not counts:
            return
        try:
            self._store.tally([Tally(*entry, number) for entry, number in counts.items()])
        except StoreError as error:
            log.warning("the ledger of absorbed requests could not be written: %s", error)
            with self._lock:
                self._counts.update(counts)
