"""`app.activity`: which workers are alive, what happened last, what was absorbed, and what could be."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta
from heapq import nlargest
from typing import Any

from onejob.app.listing import Searched, read_filters, search
from onejob.app.values import read_count, read_key, refuse_no_name
from onejob.core.durations import Duration, duration
from onejob.core.holds import holding
from onejob.core.job import Job, State
from onejob.engine.absorbed_log import KIND, AbsorbedRequest, read_entry
from onejob.engine.audit import Release, read_releases
from onejob.engine.engine import Engine
from onejob.engine.presence import WorkerStatus, read_workers
from onejob.errors import UnknownJob
from onejob.observe.advice import Advice, advise
from onejob.observe.recent import Filters, Recent, read_recent
from onejob.stores.queries import Listed
from onejob.tasks.blocking import blocking
from onejob.tasks.explain import absorbed_by_job
from onejob.tasks.registry import Registry
from onejob.tasks.task import Task

BUSY = 20  # running jobs, and jobs that have absorbed most, that are looked at beside the newest holders


class Activity:
    """What happens in an app's namespace: `app.activity`."""

    def __init__(self, engine: Engine, registry: Registry) -> None:
        self._engine = engine
        self._registry = registry

    async def workers(self) -> builtins.list[WorkerStatus]:
        """Return the workers that have not stopped in order, those seen last first.

        A worker writes its row every 5 seconds: `alive` says whether one was seen within two heartbeats.
        """
        return await read_workers(self._engine)

    workers_sync = blocking(workers)

    async def held(self, *, limit: int = 100) -> builtins.list[Job]:
        """Return jobs that hold a key and jobs that wait behind one, as `app.holds` does, and the busy ones.

        Where more keys are held than the limit, the newest may all have ended. So 20 of the jobs that run,
        and the 20 that have absorbed most requests, are looked at beside them.

        Args:
            limit: How many of the newest to look at at most.
        """
        newest = Listed(namespace=self._engine.namespace, held=True, limit=read_count(limit))
        found = await self._engine.find(newest)
        if len(found) >= limit:
            found += await self._busy({job.id for job in found})
        now = self._engine.store.now()
        return [job for job in found if holding(job, now) or job.is_successor]

    async def _busy(self, known: Collection[str]) -> builtins.list[Job]:
        """Return running jobs, and those that have absorbed most requests, except the known ones."""
        running = [job_id for worker in await self.workers() for job_id in worker.running][:BUSY]
        served = await absorbed_by_job(self._engine)
        found = []
        for job_id in {*running, *nlargest(BUSY, served, key=served.__getitem__)}.difference(known):
            with suppress(UnknownJob):  # it has been pruned
                found.append(await self._engine.job(job_id))
        return found

    held_sync = blocking(held)

    async def search(
        self,
        *,
        state: State | str | Collection[State | str] = (),
        queue: str | None = None,
        task: str | Task[..., Any] | None = None,
        key: str | None = None,
        test: Callable[[Job], bool] | None = None,
        before: str | None = None,
        limit: int = 100,
        seconds: float = 1.0,
        most: int = 1_000_000,
    ) -> Searched:
        """Return jobs, newest first, as `app.jobs` does, but search for a bounded time.

        An index finds jobs in a state that most jobs never are in. For other filters, jobs are compared,
        newest first, until enough are found. A search that ends before that says so.

        Args:
            state: A state, or several; all if left out.
            queue: Only jobs of this queue.
            task: Only jobs of this task, by its name or itself.
            key: Only jobs of this key, in hexadecimal digits.
            test: Only jobs for which this function returns True.
            before: Only jobs that come after this id in the list: the `cursor` of the search before.
            limit: How many to return at most.
            seconds: For about how long jobs are compared.
            most: About how many jobs are compared at most.

        Raises:
            InvalidCall: A state or the key cannot be read.
        """
        query = read_filters(
            self._engine.namespace, state, key, queue=queue, task=task, before=before, limit=max(limit, 1)
        )
        return await search(self._engine, query, test, seconds=seconds, most=most)

    search_sync = blocking(search)

    async def absorbed(self, *, key: str | None = None, limit: int = 100) -> builtins.list[AbsorbedRequest]:
        """Return the log of absorbed requests, newest first.

        Args:
            key: Only requests with this key, in hexadecimal digits.
            limit: How many entries to return at most; the log keeps 100 per key and 10,000 in all.
        """
        self._engine.counters.flush()
        found = await self._engine.store.observations(
            self._engine.namespace, KIND, subject=key, limit=read_count(limit)
        )
        return [read_entry(one) for one in found]

    absorbed_sync = blocking(absorbed)

    async def releases(self, *, key: str | None = None, limit: int = 100) -> builtins.list[Release]:
        """Return the audit log of manual releases, newest first.

        Args:
            key: Only releases of this key, in hexadecimal digits.
            limit: How many to return at most; they are kept for a year.
        """
        return await read_releases(self._engine, key, read_count(limit))

    releases_sync = blocking(releases)

    async def recent(
        self,
        *,
        since: Recent | None = None,
        wait: Duration | None = None,
        task: str | None = None,
        queue: str | None = None,
        key: str | None = None,
        outcome: str | None = None,
        limit: int = 100,
    ) -> Recent:
        """Return what happened to jobs and requests: the last events, or those since an earlier look.

        It reads the store, so it sees what all processes do. A look reads at most 1,000 rows of each list.
        A run that started and ended between two looks is shown by its end.

        Args:
            since: An earlier answer, to continue from there.
            wait: How long to wait at first until something may have changed.
            task: Only events of this task.
            queue: Only events in this queue.
            key: Only events of this key, in hexadecimal digits.
            outcome: Only requests with this outcome, such as "kept".
            limit: How many events to return at most, the newest ones.

        Raises:
            InvalidCall: The key cannot be read.

        Examples:
            >>> look = await app.activity.recent()
            >>> look = await app.activity.recent(since=look, wait="1s")
        """
        filters = Filters(task, queue, None if key is None else read_key(key), outcome)
        pause = timedelta() if wait is None else duration(wait)
        return await read_recent(self._engine, filters, since, read_count(limit), pause)

    recent_sync = blocking(recent)

    async def advice(
        self, *, task: str | None = None, since: Duration = timedelta(hours=1)
    ) -> builtins.list[Advice]:
        """Return which policy would have absorbed repeated requests, and which keys match never or always.

        Args:
            task: Only advice for this task.
            since: How far back to look; requests are recorded for a day.

        Returns:
            The advice with the most absorbed requests first; a task without any, how many requests were read.
        """
        refuse_no_name(task, "task")
        return await advise(self._engine, self._registry, task=task, within=duration(since))

    advice_sync = blocking(advice)
