"""Explain what a request would meet, without making it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from onejob.core.decide import Outcome, Request, Verdict, decide
from onejob.core.holds import holding
from onejob.core.job import INCOMPLETE, Job
from onejob.core.key import canonical
from onejob.engine.decided import is_absorbed
from onejob.engine.engine import Engine
from onejob.engine.short_ids import with_whole_ids
from onejob.errors import InvalidCall
from onejob.stores.queries import ByKey
from onejob.tasks.options import Options
from onejob.tasks.registry import Registry
from onejob.tasks.request import RequestBuilder


@dataclass(frozen=True)
class Explanation:
    """What a request would meet.

    Attributes:
        outcome: What would happen to it.
        reason: Why, in one sentence.
        policy: The policy in words.
        dimensions: What makes calls the same work, in clear text.
        key: The key in hexadecimal; None if the request is not unique.
        holder: The job that holds the key.
        successor: The job that waits behind the holder.
        frees_at: When the hold's window ends; None if it has none.
        absorbed: How many requests the holder or successor has absorbed so far.
        deduplicated: Whether another request's job would serve this one.
        canonical: The dimensions as the canonical JSON of which the key is the hash.
        differs_at: The arguments in which the request differs from the successor, or else from the holder.
    """

    outcome: Outcome
    reason: str
    policy: str
    dimensions: Mapping[str, Any]
    key: str | None = None
    holder: Job | None = None
    successor: Job | None = None
    frees_at: datetime | None = None
    absorbed: int = 0
    deduplicated: bool = False
    canonical: str = ""
    differs_at: tuple[str, ...] = ()


async def explain(builder: RequestBuilder, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Explanation:
    """Return what a request would meet, without making or counting it."""
    engine, signature = builder.engine, builder.declaration.signature
    request = builder.request(args, kwargs)
    key = request.job.key
    if key is None or request.policy is None:
        return not_unique(builder)
    dimensions = builder.dimensions(signature.bind(args, kwargs), request.policy) or {}
    view = await engine.look(key)
    [whole] = await engine.run_flow(with_whole_ids([request], engine.namespace))
    verdict: Verdict = decide(whole, view).answer
    held = view.holder is not None and holding(view.holder, engine.store.now())
    holder = view.holder if view.successor or held else None
    standing = view.successor or holder
    counts = {} if standing is None else await absorbed_by_job(engine, [standing.id])
    return Explanation(
        outcome=verdict.outcome,
        reason=verdict.reason,
        policy=request.policy.describe(),
        dimensions=dimensions,
        key=key.hex(),
        holder=holder,
        successor=view.successor,
        frees_at=holder.holds_until if holder else None,
        absorbed=sum(counts.values()),
        deduplicated=is_absorbed(verdict),
        canonical=canonical(dimensions).decode(),
        differs_at=() if standing is None else differing(request.job, standing),
    )


def differing(asked: Job, standing: Job) -> tuple[str, ...]:
    """Return the arguments in which a request differs from a job, unless those of the job cannot be read."""
    if standing.is_sealed or standing.is_tombstone:
        return ()
    mine, theirs = asked.arguments, standing.arguments
    return tuple(name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name))


def not_unique(builder: RequestBuilder) -> Explanation:
    """Return the explanation of a request without a key."""
    why = "The task is not unique."
    if builder.policy is not None:
        why = "The task's key function returned None, so this request is not unique."
    return Explanation(Outcome.CREATED, why, policy="not unique", dimensions={})


async def explain_job(engine: Engine, registry: Registry, job: Job) -> Explanation | None:
    """Return what a request like a job's would meet; None if its key cannot be made again from its row."""
    found = call_of(engine, registry, job)
    if found is None or job.key is None:
        return None
    try:
        explanation = await explain(*found)
    except (InvalidCall, TypeError, ValueError):  # the task has other arguments by now
        return None
    return explanation if explanation.key == job.key.hex() else None


def dimensions_of(engine: Engine, registry: Registry, job: Job) -> Mapping[str, Any] | None:
    """Return what the key of a job is made of, by its row; None if it has none, or it cannot be known."""
    found = call_of(engine, registry, job)
    if found is None:
        return None
    builder, args, kwargs = found
    if builder.policy is None:
        return None
    try:
        return builder.dimensions(builder.declaration.signature.bind(args, kwargs), builder.policy)
    except (InvalidCall, TypeError, ValueError):  # as above
        return None


def call_of(
    engine: Engine, registry: Registry, job: Job
) -> tuple[RequestBuilder, tuple[Any, ...], Mapping[str, Any]] | None:
    """Return the call that a job was made from, as far as its row shows it; None if that cannot be known."""
    declaration = registry.tasks.get(job.task)
    if declaration is None or job.is_sealed or job.is_tombstone:
        return None
    try:
        options = Options(queue=job.queue, meta=job.metadata)
        args, kwargs = declaration.signature.restore(declaration.signature.bind((), job.arguments))
    except (InvalidCall, TypeError, ValueError):  # as above
        return None
    return RequestBuilder(engine, registry, declaration, options), tuple(args), kwargs


async def absorbed_by_job(engine: Engine, jobs: Collection[str] | None = None) -> Mapping[str, int]:
    """Return how many requests each job, or each of some, has served besides its own."""
    engine.counters.flush()
    counts: dict[str, int] = {}
    for tally in await engine.store.tallies(engine.namespace, jobs):
        counts[tally.job_id] = counts.get(tally.job_id, 0) + tally.count
    return counts


async def is_pending(engine: Engine, request: Request) -> bool:
    """Return whether any job of a request's key is live."""
    if request.job.key is None:
        return False
    live = ByKey(namespace=engine.namespace, key=request.job.key, states=INCOMPLETE, limit=1)
    return bool(await engine.find(live))
