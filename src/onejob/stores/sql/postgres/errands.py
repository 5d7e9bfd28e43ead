"""What may take several tries, without trying: generators that yield talks and hear what came of them.

An engine carries each talk on over some connection, on a thread or on an event loop, and throws in here what
it raised: an error of the driver if that is a race which another try may win, or one of onejob's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import psycopg

from onejob.errors import AdmissionBusy
from onejob.job import Job
from onejob.stores.contract import Lease, Step
from onejob.stores.sql.flows import Ask
from onejob.stores.sql.postgres import flows
from onejob.stores.sql.postgres.flows import LATER, Moved, Now, Patience, Rises, Settled, Talk
from onejob.stores.sql.postgres.starts import Starts
from onejob.stores.sql.postgres.voice import Lost

T = TypeVar("T")
Work = Callable[[], Talk[T]]
Errand = Generator[Work[Any], Any, T]
Plan = Callable[[Now, Patience, Collection[str]], Talk[Settled]]

BRIEFLY = Patience(50)  # for somebody else's transaction, before a group goes on without


class InDoubt(Exception):
    """The connection broke while committing: nobody knows whether it went through."""


class Errands:
    """What the store wants done, whoever runs it."""

    def __init__(
        self, place: str, timeout: float, now: Callable[[], datetime], changed: Callable[[], None]
    ) -> None:
        self._place = place
        self._timeout = timeout
        self._now = now
        self._changed = changed  # is called after whatever others may be waiting for
        self.before: list[Ask] = []  # what is said before every admission
        self.starts = Starts()

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    def apply(self, steps: Sequence[Step]) -> Errand[list[Any]]:
        """Run steps in order; LATER stands for those that must be waited for."""
        answers = yield from self._hope(steps)
        if later := left(steps, answers):
            answers = filled(answers, (yield from self._end(later)))
        if later := left(steps, answers):
            answers = filled(answers, (yield from self._settle_briefly(later)))
        return answers

    def finish(self, steps: Sequence[Step], answers: Sequence[Any]) -> Errand[list[Any]]:
        """Run what was left for later, one by one; others are waited for as long as the app allows."""
        settled: list[Any] = []
        for step in left(steps, answers):
            try:
                settled += yield from self._settle(partial(flows.settle, [step]), self._patience)
            except AdmissionBusy as busy:
                settled.append(busy)
        return filled(answers, settled)

    def lease(self, wanted: Lease) -> Errand[list[Job]]:
        """Start due jobs that nobody else is about to start."""
        return self.transact(partial(flows.lease, wanted, self.starts, self._now))

    def turn(self, steps: Sequence[Step], wanted: Lease) -> Errand[tuple[list[Any], list[Job]]]:
        """Run steps and lease in one transaction; those that must be waited for are answered as busy."""
        plan = partial(flows.turn, steps, wanted, self.starts)
        try:
            answers, jobs = yield from self._settle(plan, passing())
        except AdmissionBusy:
            answers, jobs = [LATER for _ in steps], []
        else:
            self._changed()
        busy = AdmissionBusy(f"{self._place}: somebody's transaction relies on this job.")
        return [busy if answer is LATER else answer for answer in answers], jobs

    def _hope(self, steps: Sequence[Step]) -> Errand[list[Any]]:
        if all(step.job_id is not None or step.marks for step in steps):
            return [LATER for _ in steps]
        try:
            answers, wrote = yield partial(flows.admit, steps, self._now(), self.before)
        except (AdmissionBusy, psycopg.Error):
            return [LATER for _ in steps]
        if wrote:
            self._changed()
        return answers  # type: ignore[no-any-return]

    def _end(self, steps: Sequence[Step]) -> Errand[list[Any]]:
        ends = flows.foreseen(steps, self.starts, self._now())
        if not ends:
            return [LATER for _ in steps]
        try:
            written = yield partial(flows.end, ends.values())
        except (AdmissionBusy, psycopg.Error):  # somebody relies on one of the jobs
            return [LATER for _ in steps]
        if written:
            self._changed()
        done = {index: end.answer for index, end in ends.items() if end.job.id in written}
        return [done.get(index, LATER) for index in range(len(steps))]

    def _settle_briefly(self, steps: Sequence[Step]) -> Errand[list[Any]]:
        try:
            return (yield from self._settle(partial(flows.settle, steps), passing()))
        except AdmissionBusy:  # one of them is: which one shows when each is tried alone
            return [LATER for _ in steps]

    def _settle(self, plan: Plan, patience: Patience) -> Errand[list[Any]]:
        """Decide steps under locks, again if somebody was quicker."""
        ends = time.monotonic() + self._timeout
        rises: frozenset[str] = frozenset()
        while True:
            talk = partial(plan, self._now, patience, rises)
            try:
                answers, writes = yield lambda: in_transaction(talk(), patience)  # noqa: B023 - in this turn
            except Rises as rising:
                rises |= rising.ids
            except (Moved, psycopg.Error) as race:
                self._check(ends, race)
            else:
                if writes:
                    self._changed()
                return answers  # type: ignore[no-any-return]

    # ── all else ──────────────────────────────────────────────────────────────────────────────────

    def read(self, work: Work[T]) -> Errand[T]:
        """Carry on a talk, again if somebody had locked what it reads, such as who changes a table."""
        ends = time.monotonic() + self._timeout
        while True:
            try:
                return (yield work)  # type: ignore[no-any-return]
            except AdmissionBusy:
                if time.monotonic() > ends:
                    raise

    def transact(self, work: Work[Settled]) -> Errand[Any]:
        """Carry on a talk in one transaction, again if somebody was quicker; give its one answer."""
        ends = time.monotonic() + self._timeout
        while True:
            try:
                [answer], _ = yield lambda: in_transaction(work(), self._patience)
            except (Moved, psycopg.Error) as race:
                self._check(ends, race)
            else:
                return answer

    @property
    def _patience(self) -> Patience:
        return Patience(int(self._timeout * 1000))

    def _check(self, ends: float, race: Exception) -> None:
        """Give up if others were quicker for too long."""
        if time.monotonic() > ends:
            raise AdmissionBusy(
                f"{self._place}: the key changes hands faster than it can be read; try again."
            ) from race


def passing() -> Patience:
    """Wait briefly, and for no job."""
    return BRIEFLY._replace(skips_locked=True)


def left(steps: Sequence[Step], answers: Sequence[Any]) -> list[Step]:
    """List the steps that were left for later."""
    return [step for step, answer in zip(steps, answers, strict=True) if answer is LATER]


def filled(answers: Sequence[Any], settled: Sequence[Any]) -> list[Any]:
    """Put in what has come of the steps that were left for later."""
    rest = iter(settled)
    return [next(rest) if answer is LATER else answer for answer in answers]


def in_transaction(talk: Talk[Settled], patience: Patience) -> Talk[Settled]:
    """Carry on a talk in one transaction, and write what it decided."""
    begin = [Ask("begin"), Ask("lock_timeout", (patience.text,))]
    settled = yield from flows.preceded(begin, talk)
    try:
        yield [*settled.writes, Ask("commit")]
    except Lost as lost:
        raise InDoubt from lost
    return settled
