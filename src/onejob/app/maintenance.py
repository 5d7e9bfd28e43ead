"""`app.maintenance`: what workers do in the background, and what operators do to a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from typing import Protocol

from onejob.app.move import Moved, move, refuse_same_store
from onejob.app.move import Report as MoveReport
from onejob.app.schedules import copy_schedules
from onejob.core.decide import Outcome
from onejob.core.durations import Duration, duration, seconds
from onejob.engine import retention, sweep
from onejob.engine.engine import Engine
from onejob.engine.sweep import Sweeper, Swept
from onejob.observe.health import Limits, check_health
from onejob.stores.contract import Finding, Schema
from onejob.tasks.blocking import blocking
from onejob.tasks.registry import Registry


def say_nothing(*_: object) -> None:
    """Report no progress."""


class AnyApp(Protocol):
    """An app, as far as `move_to` needs it."""

    @property
    def maintenance(self) -> Maintenance:
        """The maintenance of its store."""


class Maintenance:
    """Background work and operation of an app's store: `app.maintenance`."""

    def __init__(self, engine: Engine, registry: Registry) -> None:
        self._engine = engine
        self._registry = registry
        self._sweeper = Sweeper(engine, registry.merge_of)

    async def sweep(self) -> Swept:
        """Take back jobs of dead workers, end late jobs and repair stranded ones, as workers do every 5 s.

        Returns:
            How many jobs were rescued and how many were repaired.
        """
        return await self._sweeper.sweep()

    async def prune(self, *, dry_run: bool = False, report: retention.Report = say_nothing) -> int:
        """Delete ended jobs whose retention is over, in batches, as workers do every minute.

        Args:
            dry_run: Only count them.
            report: Called after each batch with the sum so far.

        Returns:
            How many jobs were deleted, or would be. A job that still holds a key stays without its payload.
        """
        done = await retention.prune(self._engine, dry_run=dry_run, report=report)
        if not dry_run:
            self._engine.counters.flush()
            await retention.forget_observations(self._engine)
            await self._engine.store.fold(self._engine.namespace)
        return done.deleted

    async def replay_due(self) -> Counter[Outcome]:
        """Replay the dead letters whose automatic replay is due, at most 500; return the outcomes."""
        return await sweep.replay_due(self._engine)

    async def health(
        self, *, max_age: Duration = "5m", max_dead: int = 10, timeout: Duration = "5s"
    ) -> list[Finding]:
        """Check whether jobs are started in time and end as usual; it changes nothing, and is cheap to ask.

        Args:
            max_age: For how long the oldest due job of a queue may wait.
            max_dead: How many jobs may fail for good within an hour.
            timeout: How long the store may take to answer.

        Returns:
            A finding per check, or more where something is not well: "fail" asks for action, "warn" does not.
            The checks are named store, lateness, workers, tasks, holds and dead letters.
        """
        limits = Limits(duration(max_age), max_dead, seconds(timeout))
        return await check_health(self._engine, limits)

    def schema(self) -> Schema:
        """Return the version of the tables, without creating or changing any."""
        return self._engine.store.schema()

    def migrate(self) -> Schema:
        """Create the tables or upgrade them; using the app does the same."""
        return self._engine.store.migrate()

    def migration_sql(self) -> str:
        """Return what `migrate` would run now, as one script."""
        return self._engine.store.migration_sql()

    async def move_to(
        self, target: AnyApp, *, history: bool = False, report: MoveReport = say_nothing
    ) -> Moved:
        """Move waiting jobs, holds, dead letters and schedules of all namespaces to another app's store.

        Run it again if it was interrupted.

        Args:
            target: The app with the new store.
            history: Also move jobs that have ended and hold no key.
            report: Called with how many jobs have been looked at, and how many there are.

        Raises:
            InvalidCall: Jobs are running, or both apps use the same store.
        """
        source, destination = self._engine, engine_of(target.maintenance)
        await refuse_same_store(source.store, destination.store)
        source.counters.flush()
        await copy_schedules(source, self._registry, destination)
        return await move(source.store, destination.store, history=history, report=report)

    health_sync = blocking(health)
    sweep_sync = blocking(sweep)
    prune_sync = blocking(prune)
    replay_due_sync = blocking(replay_due)
    move_to_sync = blocking(move_to)


engine_of: Callable[[Maintenance], Engine] = attrgetter("_engine")
