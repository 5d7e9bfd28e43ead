"""Read the filters of `app.jobs`, and list chains."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from onejob.app.values import read_count, read_key, read_state, refuse_no_name
from onejob.core.holds import phase
from onejob.core.job import Job, State
from onejob.engine.engine import Engine
from onejob.stores.queries import ByKey, Listed
from onejob.tasks.task import Task

PAGE = 500


def read_filters(
    namespace: str,
    state: State | str | Collection[State | str],
    key: str | bytes | None,
    *,
    queue: str | None,
    task: str | Task[..., Any] | None,
    **page: Any,
) -> Listed | ByKey:
    """Return the query of `app.jobs`; raise InvalidCall for a filter that cannot be read."""
    states = [state] if isinstance(state, str) else state
    task = task.name if isinstance(task, Task) else task
    page |= {what: read_count(page[what], what) for what in ("limit", "offset")}
    for what, name in (("queue", queue), ("task", task), ("before", page.get("before"))):
        refuse_no_name(name, what)
    chosen: dict[str, Any] = {
        "namespace": namespace,
        "states": frozenset(read_state(name) for name in states),
        "queue": queue,
        "task": task,
        **page,
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
