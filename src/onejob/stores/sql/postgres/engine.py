"""Open connections to PostgreSQL, of threads and of event loops, and errands run over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import psycopg

from onejob.forks import generation
from onejob.stores.contract import Step, utcnow
from onejob.stores.loops import Loops
from onejob.stores.sql.flows import Ask
from onejob.stores.sql.postgres import errands
from onejob.stores.sql.postgres.account import Account
from onejob.stores.sql.postgres.awaiting import AwaitedLines
from onejob.stores.sql.postgres.errands import Errand, Errands, InDoubt
from onejob.stores.sql.postgres.faults import is_race, translated, unavailable
from onejob.stores.sql.postgres.schema import prepare_schema
from onejob.stores.sql.postgres.spare import Spare, SpareAwaited
from onejob.stores.sql.postgres.wire import Lines, ask
from onejob.stores.sql.rows import Row, instant

T = TypeVar("T")

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
        self._clock = clock
        self._offset, self._asked_at = timedelta(0), float("-inf")
        self.pooled = False  # whether a pooler stands between us and the server
        self.installation = ""
        self._greet(url)
        settings: dict[str, Any] = {"autocommit": True, "application_name": "onejob"}
        settings |= {"prepare_threshold": None} if self.pooled else {}
        first = [] if self.pooled else introduction()
        account = Account(url, place, settings, first, timeout)
        self.errands = Errands(place, timeout, self.now, changed)
        self.errands.before = [Ask("lock_timeout", (errands.BRIEFLY.text,))] if self.pooled else []
        self._lines = Lines(account)
        self._awaited = Loops(lambda: AwaitedLines(account, self._apply))
        kept = 0 if self.pooled else KEPT  # a pooler keeps them, and gives each transaction another
        self.spare = Spare(url, place, settings, kept=kept)
        self.spare_awaited = Loops(lambda: SpareAwaited(url, place, settings, kept=kept))

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
            self._set_clock()
        return utcnow() + self._offset

    def _set_clock(self) -> None:
        before = utcnow()
        [[micros]] = self.ask(Ask("clock"))
        after = utcnow()
        server = instant(micros)
        assert server is not None  # a clock always tells the time
        apart = server - (before + (after - before) / 2)
        self._offset = apart if not before <= server <= after else timedelta(0)  # as far as can be told, none
        self._asked_at = time.monotonic()

    # ── running ───────────────────────────────────────────────────────────────────────────────────

    async def apply(self, steps: Sequence[Step]) -> list[Any]:
        """Run steps together with whatever else awaits on this loop; LATER stands for what must wait."""
        return await self._awaited.here().admissions.apply(steps)

    async def _apply(self, steps: Sequence[Step]) -> list[Any]:
        return await self.run(self.errands.apply(steps))

    async def run(self, errand: Errand[T]) -> T:
        """Run an errand on this event loop."""
        try:
            work = next(errand)
            while True:
                try:
                    found = await self._awaited.here().run(work)
                except Exception as error:  # noqa: BLE001 - the errand decides what it means
                    work = errand.throw(self._named(error))
                else:
                    work = errand.send(found)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def run_now(self, errand: Errand[T]) -> T:
        """Run an errand on this thread."""
        try:
            work = next(errand)
            while True:
                try:
                    found = self._lines.run(lambda line: line.carry(work()))  # noqa: B023 - in this turn
                except Exception as error:  # noqa: BLE001 - the errand decides what it means
                    work = errand.throw(self._named(error))
                else:
                    work = errand.send(found)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def ask(self, question: Ask) -> list[Row]:
        """Ask one statement on this thread."""
        try:
            return self._lines.run(lambda line: line.ask(question))
        except psycopg.Error as error:
            raise translated(error, self.place) from error

    def _named(self, error: Exception) -> Exception:
        """Name an error of the driver, unless it is a race, or a commit that nobody knows the end of."""
        if isinstance(error, InDoubt):
            return unavailable(error.__cause__ or error, self.place)
        if isinstance(error, psycopg.Error) and not is_race(error):
            return translated(error, self.place)
        return error

    async def leave(self) -> None:
        """Let what is under way on this loop end."""
        await self._awaited.here().leave()

    def close(self) -> None:
        """Close the connections."""
        self._awaited.cut()
        self._lines.close()
        self.spare_awaited.cut()
        self.spare.close()


def introduction() -> list[Ask]:
    """List what a connection is told once, if it is ours alone: to wait briefly, and to scan no bitmaps.

    Such scans read what is dead again until a vacuum comes.
    """
    return [Ask("no_bitmaps"), Ask("brief_locks", (errands.BRIEFLY.text,))]
