"""Explain what a request would meet, without making it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from onejob.core.decide import Outcome, Request, Verdict, decide
from onejob.core.holds import holding
from onejob.core.job import INCOMPLETE, Job
from onejob.engine.engine import Engine, is_absorbed
from onejob.stores.queries import ByKey
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
    """

    outcome: Outcome
    reason: str
    policy: str
    dimensions: Mapping[str, Any]
    key: str | None
    holder: Job | None
    successor: Job | None
    frees_at: datetime | None
    absorbed: int
    deduplicated: bool


NOT_UNIQUE = Explanation(
    Outcome.CREATED,
    "The task is not unique, or its key function returned None.",
    "not unique",
    {},
    None,
    None,
    None,
    None,
    0,
    deduplicated=False,
)


async def explain(builder: RequestBuilder, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Explanation:
    """Return what a request would meet, without making or counting it."""
    engine, signature = builder.engine, builder.declaration.signature
    request = builder.request(args, kwargs)
    key = request.job.key
    if key is None or request.policy is None:
        return NOT_UNIQUE
    view = await engine.look(key)
    verdict: Verdict = decide(request, view).answer
    held = view.holder is not None and holding(view.holder, engine.store.now())
    holder = view.holder if view.successor or held else None
    standing = view.successor or holder
    return Explanation(
        verdict.outcome,
        verdict.reason,
        request.policy.describe(),
        builder.dimensions(signature.bind(args, kwargs), request.policy) or {},
        key.hex(),
        holder,
        view.successor,
        holder.holds_until if holder else None,
        0 if standing is None else (await absorbed_by_job(engine)).get(standing.id, 0),
        is_absorbed(verdict),
    )


def dimensions_of(builder: RequestBuilder, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what the key of arguments that come from JSON is made of; None if the task has no key for them.

    Raises:
        InvalidCall: They do not fit the task.
        TypeError, ValueError: They cannot be converted to the types that it declares.
    """
    signature, policy = builder.declaration.signature, builder.declaration.unique
    if policy is None:
        return None
    args, kwargs = signature.restore(signature.bind((), dict(arguments)))
    return builder.dimensions(signature.bind(tuple(args), kwargs), policy)


async def absorbed_by_job(engine: Engine) -> Mapping[str, int]:
    """Return how many requests each job has served besides its own."""
    engine.counters.flush()
    counts: dict[str, int] = {}
    for tally in await engine.store.tallies(engine.namespace):
        counts[tally.job_id] = counts.get(tally.job_id, 0) + tally.count
    return counts


async def is_pending(engine: Engine, request: Request) -> bool:
    """Return whether any job of a request's key is live."""
    if request.job.key is None:
        return False
    live = ByKey(namespace=engine.namespace, key=request.job.key, states=INCOMPLETE, limit=1)
    return bool(await engine.find(live))
