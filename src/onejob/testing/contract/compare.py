"""How two stores are compared: every answer, and all that they show."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from onejob.core.decide import Outcome, Request, Verdict
from onejob.core.job import Job, State
from onejob.core.leasing import PAUSED
from onejob.errors import OnejobError
from onejob.stores.contract import FullStore as Store
from onejob.stores.queries import Listed, Stranded
from onejob.testing.contract.wishes import ALL, KEYS, SCHEDULED


def plain(answer: Any) -> Any:
    """Return an answer as it is compared: errors by their messages."""
    if isinstance(answer, OnejobError):
        return type(answer), str(answer)
    return [plain(part) for part in answer] if isinstance(answer, list) else answer


async def everything(store: Store) -> dict[str, Any]:
    """Return all that a store shows."""
    jobs, stranded, others_stranded, *rest = await asyncio.gather(
        store.find(Listed(namespace=None, limit=ALL)),
        *(store.find(Stranded(namespace=name, limit=ALL)) for name in ("", "tenant")),
        *(store.look(key) for key in (*KEYS, SCHEDULED)),
        *(store.counts(namespace) for namespace in ("", "tenant")),
        *(store.tallies(namespace) for namespace in ("", "tenant")),
        *(store.settings(namespace, PAUSED) for namespace in ("", "tenant")),
    )
    names = [
        *(f"key {key[:1].decode()}" for key in (*KEYS, SCHEDULED)),
        *(f"{verb} of {space!r}" for verb in ("counts", "tallies", "paused") for space in ("", "tenant")),
    ]
    found = {job.id: job for job in cast("list[Job]", jobs)}
    return {"jobs": found, "stranded": [stranded, others_stranded], **dict(zip(names, rest, strict=True))}


def difference(expected: Any, found: Any) -> Any:
    """Return what two answers or states do not share: part by part, field by field; None if nothing."""
    if expected == found:
        return None
    if type(expected) is not type(found) or (parts := anatomy(expected)) is None:
        return f"memory: {expected!r}, the other: {found!r}"
    others = anatomy(found) or {}
    between = {name: difference(parts.get(name), others.get(name)) for name in parts | others}
    return {name: odd for name, odd in between.items() if odd is not None}


def anatomy(value: Any) -> dict[Any, Any] | None:
    """Return the parts of a value, if it has parts."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if isinstance(value, list):
        return dict(enumerate(value))
    return value if isinstance(value, dict) else None


def check_family(request: Request, verdict: Verdict) -> None:
    """Check that no request was written into a job of another task of its family."""
    bumps = request.policy is not None and request.policy.bump
    if verdict.outcome is Outcome.UPDATED and not bumps:
        assert verdict.job.task == request.job.task
    compared = verdict.job if verdict.outcome is Outcome.STALE else verdict.holder
    if verdict.shadow is Outcome.STALE:  # compared with the job of the newest version, which it does not name
        return
    if compared is not None and compared.task != request.job.task:
        assert verdict.payload_differs


def check_job(job: Job) -> None:
    """Check that a job is whole."""
    assert job.attempt <= job.retry.attempts
    assert job.stand is None or job.key is not None
    assert not job.is_holder or not job.is_successor
    assert (job.state is State.ACTIVE) == (job.lease_until is not None)
    assert job.is_terminal == (job.finished_at is not None)
    if job.is_successor:
        assert job.state is State.PENDING


def check_history(before: Job, now: Job) -> None:
    """Check that tokens rise and that terminal is final."""
    assert now.token >= before.token
    if before.is_terminal:
        assert (now.state, now.finished_at, now.reason) == (before.state, before.finished_at, before.reason)


def check_keys(jobs: Sequence[Job]) -> None:
    """Check that a key has one holder and one successor, and that this one waits for the holder."""
    holders = Counter(job.key for job in jobs if job.is_holder)
    successors = Counter(job.key for job in jobs if job.is_successor)
    assert max([*holders.values(), *successors.values()], default=0) <= 1
    going_on = {job.key for job in jobs if job.is_holder and not job.is_terminal}
    assert successors.keys() <= going_on
    assert all(job.is_successor or job.is_blocked for job in jobs if job.state is State.PENDING)
    assert all(job.state is State.PENDING for job in jobs if job.is_blocked and not job.is_terminal)
