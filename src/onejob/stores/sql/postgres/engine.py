"""Open connections to PostgreSQL: a pool, a lane that admits together, and threads for all else."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from onejob.errors import AdmissionBusy, StoreUnavailable
from onejob.forks import generation
from onejob.job import Job
from onejob.stores.contract import Lease, Step, utcnow
from onejob.stores.lane import Closed, Lane
from onejob.stores.sql.flows import Ask
from onejob.stores.sql.postgres import flows
from onejob.stores.sql.postgres.awaiting import Admissions, Loops, Unconnected
from onejob.stores.sql.postgres.faults import LOCK_TIMEOUT, is_race, sqlstate, translated, unavailable
from onejob.stores.sql.postgres.flows import LATER, Moved, Now, Patience, Rises, Settled, Talk, converse
from onejob.stores.sql.postgres.schema import prepare_schema
from onejob.stores.sql.postgres.spare import Spare, SpareAwaited
from onejob.stores.sql.postgres.wire import InDoubt, Line, ask, transact
from onejob.stores.sql.rows import instant

T = TypeVar("T")
Work = Callable[[Line], T]
Plan = Callable[[Now, Patience, Collection[str]], Talk[Settled]]

BRIEFLY = Patience(50)  # for somebody else's transaction, before a group goes on without
THREADS = 6
CONNECTIONS = THREADS + 4  # besides the threads' own: the lane's, and some for blocking callers
KEPT = 16  # connections at most, of threads and of each loop, that wait for a handler's next transaction
CLOCK_AGE = 30.0  # seconds after which the server is asked for the time again


class Engine:
    """The connections of one process."""

    def __init__(
        self,
        url: str,
        place: str,
        timeout: float,
        clock: Callable[[], datetime] | None,
        changed: Callable[[], None],
    ) -> None:
        self.generation = generation()
        self.place = place
        self._changed = changed  # is called after whatever others may be waiting for
        self._timeout = timeout
        self._clock = clock
        self._offset, self._asked_at = timedelta(0), float("-inf")
        self.pooled = False  # whether a pooler stands between us and the server
        self.installation = ""
        self._greet(url)
        settings: dict[str, Any] = {"autocommit": True, "application_name": "onejob"}
        settings |= {"prepare_threshold": None} if self.pooled else {}
        first = [] if self.pooled else introduction()
        self._before = [Ask("lock_timeout", (BRIEFLY.text,))] if self.pooled else []
        kept = 0 if self.pooled else KEPT  # a pooler keeps them, and gives each transaction another
        self.spare = Spare(url, place, settings, kept=kept)
        self.spare_awaited = Loops(lambda: SpareAwaited(url, place, settings, kept=kept))
        self._loops = Loops(lambda: Admissions(url, settings, first, self._hopes))
        self._pool = ConnectionPool(
            url,
            connection_class=Line,
            min_size=1,
            max_size=CONNECTIONS,
            timeout=max(timeout, 1.0),
            kwargs=settings,
            configure=None if self.pooled else introduce,
            name="onejob",
            open=True,
        )
        self._admissions = Lane(self._admit_groups, "onejob admits")
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="onejob postgres")

    def _greet(self, url: str) -> None:
        """Connect once, to say clearly what is wrong, make the tables, and see who answers."""
        try:
            with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
                prepare_schema(connection, self.place, (self._clock or utcnow)())
                [[self.installation]] = ask(connection, Ask("installation"))
                [[backend]] = ask(connection, Ask("backend"))
                self.pooled = backend != connection.info.backend_pid
        except psycopg.Error as error:
            raise unavailable(error, self.place) from error

    # ── time ──────────────────────────────────────────────────────────────────────────────────────

    def now(self) -> datetime:
        """Tell the server's time: asked now and then, counted on in between."""
        if self._clock is not None:
            return self._clock()
        if time.monotonic() - self._asked_at > CLOCK_AGE:
            self.run(self._set_clock)
        return utcnow() + self._offset

    def _set_clock(self, line: Line) -> None:
        before = utcnow()
        [[micros]] = line.ask(Ask("clock"))
        after = utcnow()
        server = instant(micros)
        assert server is not None  # a clock always tells the time
        apart = server - (before + (after - before) / 2)
        self._offset = apart if not before <= server <= after else timedelta(0)  # as far as can be told, none
        self._asked_at = time.monotonic()

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    async def apply(self, steps: Sequence[Step]) -> list[Any]:
        """Run steps together with whatever else is waiting; LATER stands for those that must wait longer."""
        answers: list[Any] = [LATER for _ in steps]
        if not any(step.job_id is not None or step.marks for step in steps):
            answers = await self._hope_here(steps)
        if rest := [step for step, answer in zip(steps, answers, strict=True) if answer is LATER]:
            settled = iter(await self._admissions.submit(rest))
            answers = [next(settled) if answer is LATER else answer for answer in answers]
        return answers

    async def _hope_here(self, steps: Sequence[Step]) -> list[Any]:
        """Hope on the caller's own event loop."""
        try:
            return await self._loops.here().apply(steps)
        except Unconnected:
            return [LATER for _ in steps]
        except psycopg.Error as error:
            if is_race(error) or sqlstate(error) == LOCK_TIMEOUT:
                return [LATER for _ in steps]
            raise translated(error, self.place) from error

    def _hopes(self, steps: Sequence[Step]) -> Talk[list[Any]]:
        """Hope, and tell others of what is new."""
        answers, wrote = yield from flows.admit(steps, self.now(), self._before)
        if wrote:
            self._changed()
        return answers

    def _admit_groups(self, groups: Sequence[Sequence[Step]]) -> list[Any]:
        """Run several callers' steps as one; if that fails, each caller's alone."""
        try:
            answers = iter(self.apply_now([step for group in groups for step in group]))
            return [[next(answers) for _ in group] for group in groups]
        except StoreUnavailable as error:  # whoever tried alone would wait as long
            return [error for _ in groups]
        except Exception as error:  # noqa: BLE001 - it is handed to the caller
            if len(groups) == 1:
                return [error]
        return [self._admit_groups([group])[0] for group in groups]

    def apply_now(self, steps: Sequence[Step]) -> list[Any]:
        """Run steps in order on this thread; LATER stands for those that must be waited for."""
        patience = BRIEFLY._replace(skips_locked=True)
        answers = self._hope(steps)
        later = [step for step, answer in zip(steps, answers, strict=True) if answer is LATER]
        if later:
            settled = iter(self._settle_briefly(later, patience))
            answers = [next(settled) if answer is LATER else answer for answer in answers]
        return answers

    def _hope(self, steps: Sequence[Step]) -> list[Any]:
        try:
            return self.talk(partial(self._hopes, steps))
        except (AdmissionBusy, psycopg.Error):  # the latter only if it is a race
            return [LATER for _ in steps]

    def _settle_briefly(self, steps: Sequence[Step], patience: Patience) -> list[Any]:
        try:
            return self.settle(partial(flows.settle, steps), patience)
        except AdmissionBusy:  # one of them is: which one shows when each is tried alone
            return [LATER for _ in steps]

    def turn(self, steps: Sequence[Step], wanted: Lease) -> tuple[list[Any], list[Job]]:
        """Run steps and lease in one transaction; LATER stands for steps that must be waited for."""
        try:
            answers, jobs = self.settle(
                partial(flows.turn, steps, wanted), BRIEFLY._replace(skips_locked=True)
            )
        except AdmissionBusy:
            return [LATER for _ in steps], []
        self._changed()
        return answers, jobs

    def settle_alone(self, steps: Sequence[Step]) -> list[Any]:
        """Run steps one after the other, waiting for other transactions as long as the app allows."""
        answers: list[Any] = []
        for step in steps:
            try:
                answers += self.settle(partial(flows.settle, [step]), Patience(int(self._timeout * 1000)))
            except AdmissionBusy as busy:
                answers.append(busy)
        return answers

    def settle(self, plan: Plan, patience: Patience) -> list[Any]:
        """Decide steps under locks, again if somebody was quicker."""
        ends = time.monotonic() + self._timeout
        rises: frozenset[str] = frozenset()
        while True:
            try:
                return self._settle_once(plan, patience, rises)
            except Rises as rising:
                rises |= rising.ids
            except (Moved, psycopg.Error) as race:
                if time.monotonic() > ends:
                    raise outrun(self.place) from race

    def _settle_once(self, plan: Plan, patience: Patience, rises: frozenset[str]) -> list[Any]:
        talk = partial(plan, self.now, patience, rises)
        answers, writes = self.run(lambda line: transact(line, talk(), patience))
        if writes:
            self._changed()
        return answers

    # ── running ───────────────────────────────────────────────────────────────────────────────────

    def talk(self, plan: Callable[[], Talk[T]]) -> T:
        """Carry on a talk whose batches need no common transaction."""
        return self.run(lambda line: converse(plan(), line.ask_all))

    def talk_patiently(self, plan: Callable[[], Talk[T]]) -> T:
        """Do the same, again if somebody had locked what it reads, such as who changes a table."""
        ends = time.monotonic() + self._timeout
        while True:
            try:
                return self.talk(plan)
            except AdmissionBusy:
                if time.monotonic() > ends:
                    raise

    def transact(self, plan: Callable[[], Talk[Settled]]) -> Any:
        """Carry on a talk in one transaction, again if somebody was quicker; give its one answer."""
        ends, patience = time.monotonic() + self._timeout, Patience(int(self._timeout * 1000))
        while True:
            try:
                [answer], _ = self.run(lambda line: transact(line, plan(), patience))
            except (Moved, psycopg.Error) as race:
                if time.monotonic() > ends:
                    raise outrun(self.place) from race
            else:
                return answer

    def run(self, work: Work[T]) -> T:
        """Use a connection; if it turns out to be broken before anything was committed, another one.

        Raises psycopg's own error if that is a race which another try may win.
        """
        for _ in range(CONNECTIONS):
            with suppress(Broken):
                return self._run_once(work)
            with suppress(PoolClosed):
                self._pool.check()
        raise StoreUnavailable(f"{self.place}: the connection is lost, and so is every other.")

    def _run_once(self, work: Work[T]) -> T:
        try:
            connection = self._pool.getconn()
        except PoolClosed:
            raise Closed from None
        except PoolTimeout as error:
            raise unavailable(error, self.place) from error
        try:
            return work(connection)
        except InDoubt as error:
            raise unavailable(error.__cause__ or error, self.place) from error
        except psycopg.Error as error:
            if connection.closed:
                raise Broken from error
            if is_race(error):
                raise
            raise translated(error, self.place) from error
        finally:
            self._pool.putconn(connection)

    def close(self) -> None:
        """Finish what was submitted, then close the connections."""
        self._loops.close()
        self.spare_awaited.close()
        self.spare.close()
        self._admissions.close()
        self.threads.shutdown()
        self._pool.close()


def introduction() -> list[Ask]:
    """List what a connection is told once, if it is ours alone: to wait briefly, and to scan no bitmaps.

    Such scans read what is dead again until a vacuum comes.
    """
    return [Ask("no_bitmaps"), Ask("brief_locks", (BRIEFLY.text,))]


def introduce(line: Line) -> None:
    """Tell a new connection how we mean to use it."""
    line.ask_all(introduction())


class Broken(Exception):
    """The connection broke before anything could have been committed."""


def outrun(place: str) -> AdmissionBusy:
    """Say that others were always quicker."""
    return AdmissionBusy(f"{place}: the key changes hands faster than it can be read; try again.")
