"""Read the recorded requests of a task, and when the jobs that they created ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from onejob.core.job import Job
from onejob.engine.engine import Engine
from onejob.engine.recorded_requests import KIND, PER_TASK, RecordedRequest, Row, read_row
from onejob.observe.request_replay import History, Run, run_of
from onejob.stores.columns import write_time

LOOKED_AT = 2000  # requests of a task that are replayed; of more, a part by their digests
NEWEST = 500  # rows in which tasks are found that the app does not know
AT_ONCE = 200  # jobs read in one go


async def recorded_tasks(engine: Engine, known: Sequence[str]) -> list[str]:
    """Return the tasks that may have recorded requests: those of the app, and others of the store."""
    rows = await engine.store.observations(engine.namespace, KIND, limit=NEWEST)
    return sorted({*known, *(row.subject for row in rows)})


async def read_history(engine: Engine, task: str, since: datetime) -> History | None:
    """Return the requests of a task since a time, as far as they can be compared; None if there are none."""
    found = await engine.store.observations(engine.namespace, KIND, subject=task, limit=PER_TASK)
    rows = comparable([read_row(one) for one in reversed(found) if one.at >= since])
    recorded = [one for row in rows for one in row.requests]
    requests = [one for one in recorded if one.at >= write_time(since)]
    if not requests:
        return None
    threshold = min(row.threshold for row in rows)
    while (kept := sample_requests(requests, threshold)) and len(kept) > LOOKED_AT:
        threshold //= 2
    runs = await read_runs(engine, [one.job for one in kept if one.job])
    ordered = sorted(kept, key=lambda one: one.at)
    seen = sum(row.seen for row in rows) - sum(one.times for one in recorded if one.at < write_time(since))
    return History(task, rows[0].arguments, ordered, runs, seen, threshold)


def comparable(rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose digests can be compared: most rows have the same key and the same arguments."""
    kinds = Counter((row.salt, row.arguments) for row in rows)
    most = max(kinds, key=lambda kind: (kinds[kind], kind), default=None)
    return [row for row in rows if (row.salt, row.arguments) == most]


def sample_requests(requests: Sequence[RecordedRequest], threshold: int) -> list[RecordedRequest]:
    """Return the requests that have a digest below a threshold."""
    return [one for one in requests if one.lowest < threshold]


async def read_runs(engine: Engine, ids: Sequence[str]) -> dict[str, Run]:
    """Return when the chains that begin with these jobs started and ended; the pruned are missing."""
    found: dict[str, Run] = {}
    heirs: dict[str, str] = {}  # of jobs that gave way before they started
    for begin in range(0, len(ids), AT_ONCE):
        part = ids[begin : begin + AT_ONCE]
        lasts = await engine.tails(part)
        firsts = await first_jobs(engine, lasts)
        for job_id, last in zip(part, lasts, strict=True):
            first = firsts.get(job_id)
            if first is None or last is None:
                continue
            if first.superseded_by is not None and first.started_at is None:
                heirs[job_id] = first.superseded_by
            else:
                found[job_id] = run_of(first, last)
    return found | inherit_runs(heirs, found)


def inherit_runs(heirs: Mapping[str, str], runs: Mapping[str, Run]) -> dict[str, Run]:
    """Return the runs of the jobs that took the place of others, by the others' ids."""
    found: dict[str, Run] = {}
    for job_id, heir in heirs.items():
        for _ in heirs:  # an heir may have an heir
            if heir not in heirs:
                break
            heir = heirs[heir]  # noqa: PLW2901 - it is followed
        if heir in runs:
            found[job_id] = runs[heir]
    return found


async def first_jobs(engine: Engine, lasts: Sequence[Job | None]) -> dict[str, Job]:
    """Return the first jobs of chains by id; most chains have one job."""
    longer = [last.chain_id for last in lasts if last is not None and last.chain_index]
    read = await engine.get(longer) if longer else []
    alone = [last for last in lasts if last is not None and not last.chain_index]
    return {job.id: job for job in (*alone, *read) if job is not None}
