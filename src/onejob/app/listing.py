"""Lists of jobs and of chains: the filters of `app.jobs`, and searches that end in time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from onejob.app.values import read_count, read_key, read_state, refuse_no_name
from onejob.core.holds import phase
from onejob.core.job import Job, State
from onejob.engine.engine import Engine
from onejob.stores.queries import LISTED, ByKey, Listed
from onejob.tasks.task import Task

PAGE = 500
FIRST_LOOK, LARGEST_LOOK = 250, 4000  # jobs that a search compares at once
FIRST_TESTED = 100  # the first of them, if they are read to be tested


def read_filters(
    namespace: str,
    state: State | str | Collection[State | str],
    key: str | bytes | None,
    *,
    queue: str | None,
    task: str | Task[..., Any] | None,
    before: str | None,
    limit: int,
    offset: int = 0,
) -> Listed | ByKey:
    """Return the query of `app.jobs`; raise InvalidCall for a filter that cannot be read."""
    states = [state] if isinstance(state, str) else state
    task = task.name if isinstance(task, Task) else task
    for what, name in (("queue", queue), ("task", task), ("before", before)):
        refuse_no_name(name, what)
    chosen: dict[str, Any] = {
        "namespace": namespace,
        "states": frozenset(read_state(name) for name in states),
        "queue": queue,
        "task": task,
        "before": before,
        "limit": read_count(limit),
        "offset": read_count(offset, "offset"),
    }
    return Listed(**chosen) if key is None else ByKey(key=read_key(key), **chosen)


def read_held(namespace: str, limit: int) -> Listed:
    """Return the query of `app.holds`."""
    return Listed(namespace=namespace, held=True, limit=read_count(limit))


async def list_chains(engine: Engine, state: State | str | None, limit: int) -> list[Job]:
    """Return the last jobs of chains, newest chain first; only chains in a state, if one is given."""
    wanted = None if state is None else read_state(state)
    found: list[Job] = []
    limit, offset = read_count(limit), 0
    while len(found) < limit:
        page = await engine.find(Listed(namespace=engine.namespace, limit=PAGE, offset=offset))
        tails = await engine.tails([job.id for job in page if not job.chain_index])
        found += [job for job in tails if job is not None and wanted in {None, phase(job)}]
        offset += len(page)
        if len(page) < PAGE:
            break
    return found[:limit]


# ── bounded searches ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search of bounded length has found.

    Attributes:
        jobs: The jobs, newest first.
        compared: How many jobs were compared with what is searched for.
        cursor: The id before which the search goes on; None if it has reached the oldest job.
        is_cut_short: Whether it ended before it found enough jobs, and older ones have not been compared.
    """

    jobs: list[Job]
    compared: int
    cursor: str | None
    is_cut_short: bool = False


async def search(
    engine: Engine,
    query: Listed | ByKey,
    test: Callable[[Job], bool] | None,
    *,
    seconds: float,
    most: int,
) -> Searched:
    """Return jobs that match and pass the test, after comparing jobs for some time; ADR 0051."""
    began, limit, size = monotonic(), query.limit, FIRST_TESTED if test else FIRST_LOOK
    found: list[Job] = []
    compared, before = 0, query.before
    while True:
        started = monotonic()
        part = replace(query, before=before, limit=size if test else limit + 1 - len(found))
        jobs, edge = await look(engine, part, size)
        compared += size
        found += [job for job in jobs if test is None or test(job)]
        if len(found) > limit:
            return Searched(found[:limit], compared, found[limit - 1].id)
        if edge is None:
            return Searched(found, compared, None)
        expected = 2 * (monotonic() - started)  # of the next look
        if compared >= most or monotonic() + expected > began + seconds:
            return Searched(found, compared, edge, is_cut_short=True)
        before, size = edge, min(2 * size, LARGEST_LOOK)


async def look(engine: Engine, query: Listed | ByKey, size: int) -> tuple[list[Job], str | None]:
    """Return jobs that match, and the id of the oldest that was compared; None if there are no older ones.

    Without an index for what is searched for, that many jobs are compared; their oldest is looked up first.
    """
    if isinstance(query, ByKey) or is_indexed(query):
        jobs = await engine.find(query)
        return jobs, jobs[-1].id if len(jobs) == query.limit else None
    states = query.states if is_one_index(query.states) else ()
    last = replace(query, states=states, queue=None, task=None, limit=1, offset=size - 1)
    edge = next((job.id for job in await engine.find(last)), None)
    return await engine.find(replace(query, since=edge)), edge


def is_indexed(query: Listed) -> bool:
    """Return whether every job that an index has in the order of a query matches it."""
    return query.queue is None and query.task is None and (not query.states or is_one_index(query.states))


def is_one_index(states: Collection[State]) -> bool:
    """Return whether the jobs in these states are in one index."""
    return len(states) == 1 and (LISTED | {State.ACTIVE}).issuperset(states)
