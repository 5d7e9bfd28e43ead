"""`app.queues`: list queues with their limits and jobs, pause and resume them."""

from __future__ import annotations

import builtins
from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from onejob.core.job import UNSTARTED, State
from onejob.core.leasing import PAUSED, Queue, next_start
from onejob.engine.engine import Engine
from onejob.tasks.blocking import blocking
from onejob.tasks.registry import Registry


@dataclass(frozen=True)
class QueueStatus:
    """A queue as it is now.

    Attributes:
        queue: The queue and its limits.
        depth: How many jobs wait in it.
        active: How many of its jobs run.
        paused: Whether workers start no jobs of it.
    """

    queue: Queue
    depth: int
    active: int
    paused: bool


class Queues:
    """The queues of an app: `app.queues`."""

    def __init__(self, engine: Engine, registry: Registry) -> None:
        self._engine = engine
        self._registry = registry

    async def list(self) -> builtins.list[QueueStatus]:
        """Return every queue that is declared, has jobs or is paused, by name."""
        declared, paused = self._registry.queues, await self.paused()
        numbers: dict[str, Counter[State]] = {name: Counter() for name in (*declared, *paused)}
        counts = await self._engine.store.counts(self._engine.namespace)
        for (queue, _task, state), number in counts.jobs.items():
            numbers.setdefault(queue, Counter())[state] += number
        return [
            QueueStatus(
                queue=declared.get(name) or Queue(name=name),
                depth=sum(by_state[state] for state in UNSTARTED),
                active=by_state[State.ACTIVE],
                paused=name in paused,
            )
            for name, by_state in sorted(numbers.items())
        ]

    async def pause(self, queue: str) -> None:
        """Start no more jobs of a queue, on any worker, until it is resumed; running jobs finish.

        Args:
            queue: The queue's name.

        Raises:
            UnknownQueue: The app declares tasks, but no queue of that name.
        """
        if self._registry.tasks:
            self._registry.queue(queue)
        store = self._engine.store
        await store.put_setting(self._engine.namespace, PAUSED, queue, store.now().isoformat().encode())

    async def resume(self, queue: str) -> None:
        """Let workers start jobs of a queue again, at once.

        Args:
            queue: The queue's name.

        Raises:
            UnknownQueue: The queue is not paused, and the app, which declares tasks, does not declare it.
        """
        if self._registry.tasks and queue not in await self.paused():
            self._registry.queue(queue)
        await self._engine.store.put_setting(self._engine.namespace, PAUSED, queue, None)

    async def paused(self) -> frozenset[str]:
        """Return the names of the queues that are paused."""
        return frozenset(await self._engine.store.settings(self._engine.namespace, PAUSED))

    async def next_start(self, queue: str) -> datetime | None:
        """Return when the rate of a queue allows the next start; None if it does now, or has no rate.

        Args:
            queue: The queue's name.
        """
        declared = self._registry.queues.get(queue)
        if declared is None or declared.rate is None:
            return None
        store = self._engine.store
        now = store.now()
        starts = await store.starts(self._engine.namespace, queue, now - declared.rate.per)
        return next_start(declared.rate, starts, now)

    pause_sync = blocking(pause)
    resume_sync = blocking(resume)
    list_sync = blocking(list)  # noqa: A003 - the method
    paused_sync = blocking(paused)
    next_start_sync = blocking(next_start)
