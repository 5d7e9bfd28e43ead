"""Reading, for both dialects: jobs by id, chain or named query; counts, settings and counters.

A dialect has statements of these names, which take these parameters and return these columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar, assert_never

import msgspec

from onejob.core.job import Job, State
from onejob.stores.columns import read_job, read_time, write_time
from onejob.stores.contract import Counts, Observation, Tally
from onejob.stores.flow import Flow, Query
from onejob.stores.queries import (
    LARGEST_ID,
    LISTED,
    Awaiting,
    Blocked,
    ByKey,
    ByPrefix,
    Ended,
    Expired,
    Late,
    Listed,
    OfChain,
    Overdue,
    Prunable,
    Returning,
    Stranded,
)
from onejob.stores.queries import Query as Named
from onejob.stores.sql.observations import forget, observations, observe

T = TypeVar("T")
EARLIEST, LATEST = (-(2**62), ""), (2**62, "")  # before and after all times and ids
MOST = 2**62  # a larger limit or offset is no integer of a database
STATES = {state.value: state for state in State}


class ReadingStore:
    """What is one flow in both stores, above all reading; a store says how it runs a flow."""

    async def _read(self, make: Callable[[], Flow[T]], *, is_quick: bool = False) -> T:
        """Run a flow that only reads, and takes microseconds if it `is_quick`."""
        raise NotImplementedError

    async def _write(self, make: Callable[[], Flow[T]]) -> T:
        """Run a flow that writes."""
        raise NotImplementedError

    def _use_sync(self, make: Callable[[], Flow[T]], *, writes: bool) -> T:
        """Run a flow on the calling thread."""
        raise NotImplementedError

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """Return jobs by id."""
        return await self._read(lambda: get(ids), is_quick=len(ids) == 1)

    async def tails(self, chains: Sequence[str]) -> list[Job | None]:
        """Return the last job of each chain."""
        return await self._read(lambda: tails(chains), is_quick=len(chains) == 1)

    async def find(self, query: Named) -> list[Job]:
        """Return the jobs that a query names."""
        return await self._read(lambda: find(query))

    async def counts(self, namespace: str) -> Counts:
        """Count the jobs of a namespace."""
        return await self._read(lambda: counts(namespace))

    async def starts(self, namespace: str, queue: str, since: datetime) -> list[datetime]:
        """Return when jobs of a queue that has a rate have started."""
        return await self._read(lambda: starts(namespace, queue, since))

    async def settings(self, namespace: str, kind: str) -> dict[str, bytes]:
        """Return the settings of a kind."""
        return await self._read(lambda: settings(namespace, kind))

    async def tallies(self, namespace: str, jobs: Collection[str] | None = None) -> list[Tally]:
        """Return the counters of a namespace, or only those of some jobs."""
        return await self._read(lambda: tallies(namespace, jobs))

    async def observations(
        self, namespace: str, kind: str, *, subject: str | None = None, limit: int = 100
    ) -> list[Observation]:
        """Return observations, newest first."""
        return await self._read(lambda: observations(namespace, kind, subject, limit))

    def observations_sync(
        self, namespace: str, kind: str, *, subject: str | None = None, limit: int = 100
    ) -> list[Observation]:
        """Blocking variant of `observations`."""
        return self._use_sync(lambda: observations(namespace, kind, subject, limit), writes=False)

    async def observe(self, observations: Sequence[Observation], most: int) -> None:
        """Write observations, and keep the newest of each subject."""
        await self._write(lambda: observe(observations, most))

    def observe_sync(self, observations: Sequence[Observation], most: int) -> None:
        """Blocking variant of `observe`."""
        self._use_sync(lambda: observe(observations, most), writes=True)

    async def forget(self, namespace: str, kind: str, *, before: datetime, most: int) -> int:
        """Remove old observations, and those beyond the newest."""
        return await self._write(lambda: forget(namespace, kind, before, most))

    async def clear(self, namespace: str) -> None:
        """Remove counters, observations, settings and recorded starts."""
        await self._write(lambda: clear(namespace))


def array(values: Iterable[Any]) -> str:
    """Return values as a JSON array, which is one parameter of a statement."""
    return msgspec.json.encode(list(values)).decode()


# ── flows ─────────────────────────────────────────────────────────────────────────────────────────


def get(ids: Sequence[str]) -> Flow[list[Job | None]]:
    """Return jobs by id, in input order."""
    [rows] = yield [Query("job", ids) if len(ids) == 1 else Query("jobs", (array(set(ids)),))]
    found = {row[0]: read_job(row) for row in rows}
    return [found.get(job_id) for job_id in ids]


def tails(chains: Sequence[str]) -> Flow[list[Job | None]]:
    """Return the last job of each chain, in input order."""
    [rows] = yield [Query("tails", (array(set(chains)),))]
    last = {job.chain_id: job for job in map(read_job, rows)}
    return [last.get(chain) for chain in chains]


def find(named: Named) -> Flow[list[Job]]:
    """Return the jobs that a named query finds."""
    [rows] = yield [Query(*statement(named))]
    jobs = [read_job(row) for row in rows]
    if isinstance(named, Blocked):  # PostgreSQL's condition is a pattern, which nested JSON may match as well
        return [job for job in jobs if job.blockers is not None]
    return jobs


def statement(query: Named) -> tuple[str, Sequence[Any]]:  # noqa: C901, PLR0912 - one case per query
    """Return the name of a query's statement, and its parameters."""
    limits = (min(query.limit, MOST), min(getattr(query, "offset", 0), MOST))
    match query:
        case Listed():
            return _listed(query, limits)
        case ByKey():
            filters = (_states(query), query.queue, query.task, query.before or LARGEST_ID)
            return "find_by_key", (query.namespace, query.key, *filters, *limits)
        case ByPrefix():
            return "find_by_prefix", (query.namespace, query.prefix, query.end, limits[0])
        case OfChain():
            return "find_of_chain", (query.namespace, query.chain_id, *limits)
        case Expired():
            return "find_expired", (query.namespace, write_time(query.by), limits[0])
        case Late():
            return "find_late", (query.namespace, write_time(query.by), limits[0])
        case Overdue():
            return "find_overdue", (query.namespace, write_time(query.by), limits[0])
        case Ended():
            return "find_ended", (query.namespace, query.state.value, *_before(query), query.task, limits[0])
        case Prunable():
            after = EARLIEST if query.after is None else (write_time(query.after[0]), query.after[1])
            return "find_prunable", (query.namespace, write_time(query.by), *after, limits[0])
        case Returning():
            return "find_returning", (query.namespace, write_time(query.by), limits[0])
        case Stranded():
            return "find_stranded", (query.namespace, limits[0])
        case Awaiting():
            return "find_awaiting", (query.namespace, array(query.chains), *limits)
        case Blocked():
            return "find_blocked", (query.namespace, *limits)
        case _:
            assert_never(query)


def _listed(query: Listed, limits: tuple[int, int]) -> tuple[str, Sequence[Any]]:
    """Return the statement that has an index for the states of a query."""
    page = (query.before or LARGEST_ID, query.since or "", *limits)
    if query.namespace is not None and query.newest_first and len(query.states) == 1:
        [state] = query.states
        filters = (query.queue, query.task, query.held)
        if state is State.ACTIVE:
            return "find_active", (query.namespace, *filters, *page)
        if state in LISTED:
            return "find_in_state", (query.namespace, state.value, *filters, *page)
    if query.held and query.newest_first:
        return "find_held", (query.namespace, _states(query), query.queue, query.task, *page)
    name = "find_newest" if query.newest_first else "find_oldest"
    return name, (query.namespace, _states(query), query.queue, query.task, query.held, *page)


def _states(query: Listed | ByKey) -> str | None:
    return array(state.value for state in query.states) if query.states else None


def _before(query: Ended) -> tuple[int, str]:
    """Return the time and id before which the jobs of a query ended."""
    before = LATEST if query.before is None else (write_time(query.before), "")
    after = LATEST if query.after is None else (write_time(query.after[0]), query.after[1])
    return min(before, after)


def counts(namespace: str) -> Flow[Counts]:
    """Count the jobs of a namespace, and the keys that have a waiting job."""
    rows, [[waiting]] = yield [Query("counts", (namespace,)), Query("keys_waiting", (namespace,))]
    known = {(queue, task, STATES[state]): number for queue, task, state, number in rows if state in STATES}
    return Counts(known, waiting)


def starts(namespace: str, queue: str, since: datetime) -> Flow[list[datetime]]:
    """Return when jobs of a queue that has a rate have started since a time, oldest first."""
    [rows] = yield [Query("recent_starts", (namespace, queue, write_time(since)))]
    return [read_time(at) for (at,) in rows]


def settings(namespace: str, kind: str) -> Flow[dict[str, bytes]]:
    """Return the settings of a kind by name."""
    [rows] = yield [Query("settings", (namespace, kind))]
    return {name: bytes(value) for name, value in rows}


def put_setting(namespace: str, kind: str, name: str, value: bytes | None) -> Flow[None]:
    """Write a setting, or remove it if the value is None."""
    given = (namespace, kind, name)
    yield [Query("drop_setting", given) if value is None else Query("put_setting", (*given, value))]


def clear(namespace: str) -> Flow[None]:
    """Remove all of a namespace but its jobs and marks."""
    yield [
        Query(name, (namespace,))
        for name in ("clear_tallies", "clear_observations", "clear_settings", "clear_starts")
    ]


def tallies(namespace: str, jobs: Collection[str] | None) -> Flow[list[Tally]]:
    """Return the counters of absorbed requests, of all jobs or of some."""
    of_some = jobs is not None and Query("tallies_of_jobs", (namespace, array(jobs)))
    [rows] = yield [of_some or Query("tallies", (namespace,))]
    return [
        Tally(space, task, outcome, job_id, number, read_time(last_at), read_time(first_at), last_by)
        for space, task, outcome, job_id, number, last_at, first_at, last_by in rows
    ]
