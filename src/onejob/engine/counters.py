"""Counters and log of absorbed requests: kept in memory, written to the store within a second and at exit.

A caller only notes its decided requests. They are sorted, into entries of the log and recorded requests, when
some have gathered, and when the timer writes. Recorded requests are written some seconds later.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import weakref
from collections import Counter as Totals
from collections.abc import Callable, Sequence
from datetime import datetime
from math import inf
from time import monotonic
from typing import Any, Protocol
from uuid import uuid4

import msgspec

from onejob.core.decide import DEDUPLICATED, Request, Verdict
from onejob.engine.absorbed_log import PER_KEY, PER_WRITE, Counter, Entry
from onejob.engine.decided import Absorbed, Caller, Decided, counted_outcome, current_trace, find_caller
from onejob.engine.log_lines import about
from onejob.engine.recorded_requests import LARGEST, PER_TASK, WRITE_EVERY, RequestRecorder
from onejob.errors import StoreError
from onejob.stores.contract import Counters, Observations, Tally
from onejob.stores.per_process import generation

log = logging.getLogger("onejob")

FLUSH_AFTER = 0.5  # seconds
SORT_AFTER = 50  # noted requests
EXIT_LIMIT = 2.0  # seconds that the end of a process waits for its stores


class AbsorbedStore(Counters, Observations, Protocol):
    """The part of a store that counts and logs absorbed requests."""

    def now(self) -> datetime:
        """Return the store's time."""


class Admitting(Protocol):
    """A step that decides about a request."""

    @property
    def request(self) -> Request:
        """The request."""


def log_absorbed(one: Absorbed) -> None:
    """Log an absorbed request at DEBUG, with the job that holds its key, if it has one."""
    asked = one.request.job
    if log.isEnabledFor(logging.DEBUG) and asked.key is not None:
        log.debug(
            "%s %s: key %s is held by job %s",
            *(one.outcome, asked.task, asked.key.hex(), one.serving.id),
            extra=about(one.serving) | {"task": asked.task},
        )


def counter_of(tally: Tally) -> Counter:
    """Return the counter that a tally adds to."""
    return tally.namespace, tally.task, tally.outcome, tally.job_id


def add_tally(tallies: dict[Counter, Tally], one: Tally) -> None:
    """Add a tally to that of the same counter."""
    counter = counter_of(one)
    known = tallies.get(counter)
    tallies[counter] = one if known is None else known.plus(one)


class AbsorbedCounters:
    """Counts absorbed requests per task, outcome and the job that serves them."""

    def __init__(
        self,
        store: AbsorbedStore,
        *,
        records_callers: bool = True,
        make_recorder: Callable[[], RequestRecorder] | None = None,
    ) -> None:
        self._store = store
        self._records_callers = records_callers
        self._make_recorder = make_recorder
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._noted: list[Decided] = []  # to be sorted
        self._entries: dict[tuple[Any, ...], Entry] = {}  # by what their requests have in common
        self._tallies: dict[Counter, Tally] = {}  # of what is counted but not logged
        self._unlogged: list[Entry] = []  # whose counters are in a batch
        self._left_out = 0  # entries that the log does not get
        self._batches: dict[str, list[Tally]] = {}  # being written, or to be written again
        self._recorder = None if self._make_recorder is None else self._make_recorder()
        self._rows_at = inf  # when the rows of recorded requests that gather now are due
        self._timer: threading.Timer | None = None
        self._generation = generation()
        if self._recorder is not None:
            write_at_exit(self)

    def count(self, one: Tally) -> None:
        """Add to a counter; a timer writes it."""
        self._reset_after_fork()
        now = self._store.now()
        with self._lock:
            add_tally(self._tallies, msgspec.structs.replace(one, last_at=now, first_at=now))
            if self._timer is None:
                self._start_timer()

    def note(
        self,
        steps: Sequence[Admitting],
        answers: Sequence[Any],
        caller: Caller | None = None,
        *,
        in_transaction: bool = False,
    ) -> None:
        """Note decided requests: absorbed ones are counted and logged, all are recorded for advice.

        A timer writes what was absorbed within a second, and recorded requests when a row is due. One
        request that is only recorded, or a few, start no timer: they are written with the next ones, or at
        the end.

        Args:
            steps: The steps that decided.
            answers: Their verdicts. Errors are passed over, and so are refusals by a full queue.
            caller: The line that made them; None to find it.
            in_transaction: Whether the caller's transaction counts them, so that they are not counted here.
        """
        self._reset_after_fork()
        for step, verdict in zip(steps, answers, strict=True):
            if not isinstance(verdict, Verdict) or verdict.refusal == "full":
                continue
            if verdict.shadow is not None or verdict.outcome in DEDUPLICATED:
                made_by = (caller or find_caller()) if self._records_callers else None
                now, trace = self._store.now(), current_trace()
                absorbed = Absorbed(step.request, verdict, now, made_by, trace, in_transaction)
                log_absorbed(absorbed)
                self._keep(absorbed)
            elif self._recorder is not None:
                self._keep(Decided(step.request, verdict, verdict.job.created_at))

    def _keep(self, one: Decided) -> None:
        """Keep a decided request until it is sorted, and start the timer if something is to be written."""
        is_absorbed = isinstance(one, Absorbed)
        with self._lock:
            self._noted.append(one)
            if len(self._noted) >= SORT_AFTER or len(one.request.job.args) > LARGEST:
                self._sort()
            if self._timer is None and (is_absorbed or self._rows_are_due()):
                self._start_timer()

    def _rows_are_due(self) -> bool:
        """Return whether recorded requests shall be written; the first one begins the wait for others."""
        if self._recorder is None:
            return False
        if self._rows_at == inf:
            self._rows_at = monotonic() + WRITE_EVERY
        return monotonic() >= self._rows_at or self._recorder.is_crowded

    def _sort(self) -> None:
        """Move noted requests to the entries of the log, and to the recorder."""
        noted, self._noted = self._noted, []
        for one in noted:
            if isinstance(one, Absorbed):
                self._add_to_entry(one)
            if self._recorder is not None:
                self._recorder.add(one)

    def _add_to_entry(self, one: Absorbed) -> None:
        verdict, task = one.verdict, one.request.job.task
        index = (one.serving.id, verdict.outcome, verdict.shadow, task, one.caller, one.in_transaction)
        entry = self._entries.get(index)
        if entry is None:
            self._entries[index] = Entry(one)
        else:
            entry.add(one)

    def tallies(
        self, steps: Sequence[Admitting], answers: Sequence[Any], caller: Caller | None = None
    ) -> list[Tally]:
        """Return what requests of a caller's transaction add to the counters, besides what their steps do."""
        now, made_by = self._store.now(), (caller or find_caller()) if self._records_callers else None
        return [
            Entry(Absorbed(step.request, verdict, now, made_by)).tally()
            for step, verdict in zip(steps, answers, strict=True)
            if isinstance(verdict, Verdict) and counted_outcome(verdict) is not None
        ]

    def _start_timer(self) -> None:
        self._timer = threading.Timer(FLUSH_AFTER, self._flush, kwargs={"due_only": True})
        self._timer.daemon = True
        self._timer.start()
        write_at_exit(self)

    def _reset_after_fork(self) -> None:
        """Start at zero in a forked child: the parent process writes what was counted before."""
        if self._generation != generation():
            self._reset()

    @property
    def unwritten(self) -> Totals[Counter]:
        """What has not been written, as far as is known."""
        self._reset_after_fork()
        with self._lock:
            self._sort()
            batches = [self._gathered(), *self._batches.values()]
        found: Totals[Counter] = Totals()
        for one in (one for batch in batches for one in batch):
            found[counter_of(one)] += one.count
        return found

    def _gathered(self) -> list[Tally]:
        """Return what has been counted since the last write."""
        found = self._tallies.copy()
        for entry in self._entries.values():
            if not entry.last.in_transaction:
                add_tally(found, entry.tally())
        return list(found.values())

    @property
    def is_written(self) -> bool:
        """Whether there is nothing to write."""
        return not self.unwritten and (self._recorder is None or self._recorder.is_empty)

    def flush(self) -> None:
        """Write counters, log and requests; counts that cannot be written are kept for the next flush.

        Entries of the log and requests are written once at the most. A second caller waits for the first: the
        timer's thread must not die while it writes.
        """
        self._flush(due_only=False)

    def _flush(self, *, due_only: bool) -> None:
        self._reset_after_fork()
        with self._writing:
            self._begin_batch()
            try:
                self._write_batches()
                self._write_log()
            except StoreError as error:
                log.warning("counters of absorbed requests could not be written: %s", error)
            self._write_requests(due_only=due_only)

    def _begin_batch(self) -> None:
        with self._lock:
            self._sort()
            if gathered := self._gathered():
                self._batches[uuid4().hex] = gathered
            unlogged = [*self._unlogged, *self._entries.values()]
            self._unlogged = unlogged[:PER_WRITE]
            self._left_out += len(unlogged) - len(self._unlogged)
            self._entries, self._tallies, timer, self._timer = {}, {}, self._timer, None
        if timer is not None and timer is not threading.current_thread():
            timer.cancel()

    def _write_log(self) -> None:
        entries, left_out, self._unlogged, self._left_out = self._unlogged, self._left_out, [], 0
        if not entries:
            return
        now, sampled = self._store.now(), round(len(entries) / (len(entries) + left_out), 4)
        self._store.observe_sync([entry.observation(now, sampled) for entry in entries], PER_KEY)

    def _write_requests(self, *, due_only: bool) -> None:
        if self._recorder is None:
            return
        with self._lock:
            waiting = self._recorder.pop()
            is_due = self._rows_are_due() or not due_only
            self._rows_at = inf if is_due else self._rows_at
        try:
            self._recorder.digest(waiting)
            if is_due and (rows := self._recorder.take()):
                self._store.observe_sync(rows, PER_TASK)
        except StoreError as error:  # a gap in a sample
            log.debug("recorded requests could not be written: %s", error)

    def _write_batches(self) -> None:
        """Write batch by batch; one without an answer is repeated under its name, so that it counts once."""
        for name, tallies in list(self._batches.items()):
            self._store.count(tallies, name)
            with self._lock:
                del self._batches[name]


# ── the end of the process ────────────────────────────────────────────────────────────────────────

_open: weakref.WeakSet[AbsorbedCounters] = weakref.WeakSet()
_registered = -1  # the generation of the process that registered for its end


def write_at_exit(counters: AbsorbedCounters) -> None:
    """Write counters when the interpreter ends; a child of `multiprocessing` does not run `atexit`."""
    global _registered  # noqa: PLW0603 - once per process
    _open.add(counters)
    if _registered == generation():
        return
    if _registered < 0:
        atexit.register(_write_all)  # a forked child inherits it
    _registered = generation()
    processes = sys.modules.get("multiprocessing.util")
    if processes is not None:
        processes.Finalize(None, _write_all, exitpriority=0)


def _write_all() -> None:
    """Write all counters, side by side; give up after a limit, and log what was not counted."""
    counters = [one for one in _open if not one.is_written]
    threads = [threading.Thread(target=one.flush, daemon=True) for one in counters]
    ends = monotonic() + EXIT_LIMIT
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(ends - monotonic(), 0))
    lost = sum((one.unwritten for one in counters), Totals[Counter]())
    if lost:
        log.warning(
            "the process ends and the store does not answer; not counted as absorbed: %s", write_counts(lost)
        )


def write_counts(counts: Totals[Counter]) -> str:
    """Return sums by task and outcome as text."""
    sums: Totals[tuple[str, str]] = Totals()
    for (_, task, outcome, _), number in counts.items():
        sums[task, outcome] += number
    return ", ".join(f"{number} {outcome} of {task}" for (task, outcome), number in sorted(sums.items()))
