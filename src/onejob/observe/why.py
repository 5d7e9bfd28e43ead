"""`app.why`: what happened, or would happen, to a request, a job or a key, now and in the past."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import reduce
from typing import Any

from onejob.core.durations import when
from onejob.core.job import Job
from onejob.core.text import number_of
from onejob.engine.absorbed_log import KIND, AbsorbedRequest, LastRequest, read_entry, read_last
from onejob.engine.engine import Engine
from onejob.observe.compare import Difference, compare
from onejob.stores.queries import ByKey
from onejob.tasks.call import Call, parts_of
from onejob.tasks.explain import Explanation, explain, explain_job
from onejob.tasks.registry import Registry
from onejob.tasks.why_job import JobExplainer

KEY = re.compile("[0-9a-fA-F]{64}")
LATEST = 20  # entries of the log that an answer shows


@dataclass(frozen=True)
class AbsorbedCount:
    """How many requests a job has served besides its own, exactly.

    Attributes:
        count: How many.
        first_at: When the first was absorbed.
        last_at: When the last was absorbed.
        last_digest: The digest of the payload of the last one, in hexadecimal.
        last_line: The file and line that made the last one; empty if callers are not recorded.
        last_host: The machine that made it.
        last_process: The id of the process that made it.
    """

    count: int
    first_at: datetime
    last_at: datetime
    last_digest: str = ""
    last_line: str = ""
    last_host: str = ""
    last_process: int = 0


@dataclass(frozen=True)
class Why:
    """The answer of `app.why`.

    Attributes:
        sentences: The answer in words; the first is the most important one.
        job: The job that was asked about, or that holds the key.
        explanation: What a new request would meet: the call that was asked about, or the call that made the
            job, or the job that has the key. None if that call cannot be made again.
        absorbed: The latest entries of the log of absorbed requests for the same key, newest first.
        difference: How two jobs differ, if two were compared.
        counted: How many requests each job of the key has absorbed, since when and until when, by job id.
    """

    sentences: list[str]
    job: Job | None = None
    explanation: Explanation | None = None
    absorbed: list[AbsorbedRequest] = field(default_factory=list)
    difference: Difference | None = None
    counted: Mapping[str, AbsorbedCount] = field(default_factory=dict)


async def why(engine: Engine, registry: Registry, what: str | Call[Any], than: str | None = None) -> Why:
    """Answer a question about a call, a key or a job; with `than`, compare two jobs."""
    engine.counters.flush()
    if isinstance(what, Call):
        return await why_call(engine, what)
    if than is not None:
        difference = await compare(engine, registry, what, than)
        return Why(difference.sentences, difference.one, difference=difference)
    if KEY.fullmatch(what):
        return await why_key(engine, registry, bytes.fromhex(what))
    job = await engine.job(what)
    entries = [] if job.key is None else await entries_about(engine, job.key.hex())
    served = [entry for entry in entries if entry.job == job.id]
    counted = await count_absorbed(engine, {job.id})
    lines = [*await JobExplainer(engine, registry).explain(job), *past(engine, served, counted)]
    return Why(lines, job, await explain_job(engine, registry, job), served, counted=counted)


async def why_call(engine: Engine, call: Call[Any]) -> Why:
    """Say what a request would meet, and what happened to earlier ones."""
    explanation = await explain(*parts_of(call))
    entries = [] if explanation.key is None else await entries_about(engine, explanation.key)
    holder = {explanation.holder.id} if explanation.holder else set()
    counted = await count_absorbed(engine, holder | {entry.job for entry in entries})
    lines = [explanation.reason, *past(engine, entries, counted)]
    return Why(lines, explanation.holder, explanation, entries, counted=counted)


async def why_key(engine: Engine, registry: Registry, key: bytes) -> Why:
    """Say which job holds a key, or held it last, and what it absorbed."""
    jobs = await engine.find(ByKey(namespace=engine.namespace, key=key, limit=LATEST))
    entries = await entries_about(engine, key.hex())
    counted = await count_absorbed(engine, {job.id for job in jobs} | {entry.job for entry in entries})
    holder = next((job for job in jobs if job.is_holder), None)
    if holder is not None:
        explained = await explain_job(engine, registry, holder)
        lines = [f"Job {holder.id} ({holder.task}) holds the key and is {holder.state}."]
        lines += [*await JobExplainer(engine, registry).explain(holder), *past(engine, entries, counted)]
        return Why(lines, holder, explained, entries, counted=counted)
    if jobs:
        explained = await explain_job(engine, registry, jobs[0])
        lines = [f"No job holds the key; the last was job {jobs[0].id} ({jobs[0].task}), {jobs[0].state}."]
        return Why([*lines, *past(engine, entries, counted)], jobs[0], explained, entries, counted=counted)
    lines = past(engine, entries, counted) or [
        "No job of this namespace has had this key: it was never held, or its jobs have been pruned."
    ]
    return Why(lines, absorbed=entries, counted=counted)


async def count_absorbed(engine: Engine, jobs: Collection[str]) -> dict[str, AbsorbedCount]:
    """Return the counters of jobs, over all outcomes."""
    found: dict[str, AbsorbedCount] = {}
    for one in await engine.store.tallies(engine.namespace, jobs) if jobs else []:
        if one.first_at is not None and one.last_at is not None:
            last = read_last(one.last_by) if one.last_by else LastRequest()
            now = AbsorbedCount(
                one.count, one.first_at, one.last_at, last.digest, last.line, last.host, last.process
            )
            found[one.job_id] = add_counts(found[one.job_id], now) if one.job_id in found else now
    return found


def add_counts(one: AbsorbedCount, other: AbsorbedCount) -> AbsorbedCount:
    """Return the sum of two counts."""
    newer = max(one, other, key=lambda count: count.last_at)
    return replace(newer, count=one.count + other.count, first_at=min(one.first_at, other.first_at))


async def entries_about(engine: Engine, key: str) -> list[AbsorbedRequest]:
    """Return the latest entries of the log about a key."""
    found = await engine.store.observations(engine.namespace, KIND, subject=key, limit=LATEST)
    return [read_entry(one) for one in found]


def past(
    engine: Engine, entries: Sequence[AbsorbedRequest], counted: Mapping[str, AbsorbedCount]
) -> list[str]:
    """Say what was absorbed: how often and since when by the counters while they exist, else by the log."""
    if counted:
        sums = reduce(add_counts, counted.values())
    elif entries:
        number, line = sum(entry.times for entry in entries), entries[0].line
        sums = AbsorbedCount(number, entries[-1].at, entries[0].at, last_line=line)
    else:
        return []
    first, last = when(sums.first_at, engine.store.now()), when(sums.last_at, engine.store.now())
    came = f", from {sums.last_line}" if sums.last_line else ""
    total, outcome = number_of(sums.count, "request"), ""
    if entries:  # the log has them for a limited time
        outcome = f" was {entries[0].outcome} in favour of job {entries[0].job},"
    if sums.count == 1:
        return [f"Absorbed: {total}, {f'which{outcome} ' if outcome else ''}{last}{came}."]
    return [f"Absorbed: {total} since {first}; the last{outcome} {last}{came}."]
