"""Bring news of ended chains to the jobs that wait for them.

Whoever waits notes that on the chain, after it has been admitted; whoever ends a chain that bears the note
tells those who wait, after the end is written. So one of the two always sees the other, without a lock
that spans both. If a process dies in between, the sweep brings the news.

The acts are generators that yield what they ask of a store, so that they run on an event loop, from
blocking code and inside a caller's transaction alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain as joined
from typing import Any, NamedTuple, TypeVar

import msgspec

from onejob.blockers import Ending, break_circle, ending, hear, watch
from onejob.decide import Request, Verdict
from onejob.errors import UnknownJob
from onejob.job import Arrival, Job, Trait
from onejob.stores.contract import Filter, Step, Store

T = TypeVar("T")
PAGE = 500


class Ask(NamedTuple):
    """One question to the store: the name of a verb, and what it is given."""

    verb: str
    given: Any


Talk = Generator[Ask, Any, T]
Apply = Callable[[Sequence[Step]], Awaitable[list[Any]]]
ApplyNow = Callable[[Sequence[Step]], list[Any]]


async def converse(talk: Talk[T], store: Store, apply: Apply) -> T:
    """Answer a talk's questions from a store; its steps are applied as the caller likes."""
    try:
        ask = next(talk)
        while True:
            answer = apply(ask.given) if ask.verb == "apply" else getattr(store, ask.verb)(ask.given)
            ask = talk.send(await answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def converse_now(talk: Talk[T], read: Callable[[Any], Any], store: Store, apply: ApplyNow) -> T:
    """Do the same from blocking code; `read` waits for what the store reads."""
    try:
        ask = next(talk)
        while True:
            answer = apply(ask.given) if ask.verb == "apply" else read(getattr(store, ask.verb)(ask.given))
            ask = talk.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


# ── when a chain has ended ────────────────────────────────────────────────────────────────────────


def spread(news: Mapping[str, Ending]) -> Talk[int]:
    """Bring news to those who wait for it, and to those who wait for them if they end by it.

    Answer how many jobs that has changed.
    """
    changed = 0
    while news and (waiting := (yield from waiting_for(news))):
        answers = yield Ask("apply", [Step(partial(hear, news=news), job.id) for job in waiting])
        heard = [job for job in answers if isinstance(job, Job)]
        changed += len(heard)
        heirs = {end.heir for end in news.values() if end.heir is not None} if heard else set()
        ended = yield from note(heirs)
        tails = (yield Ask("tails", ended)) if ended else []
        news = endings([*tails, *(job for job in heard if is_awaited(job))])
    return changed


def endings(tails: Iterable[Job | None]) -> dict[str, Ending]:
    """Tell how chains have ended, as far as they have, by their last jobs."""
    return {tail.chain_id: end for tail in tails if tail is not None and (end := ending(tail)) is not None}


def waiting_for(news: Mapping[str, Ending]) -> Talk[list[Job]]:
    """Find everybody who waits for one of these chains."""
    found: list[Job] = []
    while True:
        wanted = Filter(awaits=list(news), limit=PAGE, offset=len(found), newest_first=False)
        page = yield Ask("find", wanted)
        found += page
        if len(page) < PAGE:
            return found


# ── when somebody begins to wait ──────────────────────────────────────────────────────────────────


def begin_to_wait(job: Job, mine: Mapping[str, Job]) -> Talk[Job | None]:
    """Let a job that is there now wait for chains; answer it if that changes it.

    Whoever waits for its chain may have been admitted at the same moment, and the two have closed a circle
    before either could be seen. So it looks once more, now that the other can see it: one of them finds out.
    """
    changed = yield from expect(job.id, job.awaits, mine)
    if not is_awaited(job) or not (yield from waits_for_itself(changed or job, mine)):
        return changed
    [ended] = yield Ask("apply", [Step(break_circle, job.id)])
    if not isinstance(ended, Job):
        return changed
    yield from spread(endings([ended]))
    return ended


def waits_for_itself(job: Job, mine: Mapping[str, Job]) -> Talk[bool]:
    """Tell whether a job is among those that its blockers wait for, as far as they can be seen."""
    try:
        return job.chain_id in (yield from reach(open_blockers(job), mine))
    except UnknownJob:  # made in the caller's transaction
        return False


def expect(job_id: str, chains: Sequence[str], mine: Mapping[str, Job]) -> Talk[Job | None]:
    """Note on chains that a job waits for them, and tell it which have ended; answer it if that changes it.

    `mine` are jobs of the caller's own transaction, which nobody else can see.
    """
    ended = yield from note(chains, mine)
    if not ended:
        return None
    tails = yield Ask("tails", ended)
    news = endings(tails)
    [answer] = yield Ask("apply", [Step(partial(hear, news=news), job_id)])
    heirs = [end.heir for end in news.values() if end.heir is not None]
    if heirs:
        later = yield from expect(job_id, heirs, mine)
        answer = later or answer
    return answer if isinstance(answer, Job) else None


def note(chains: Iterable[str], mine: Mapping[str, Job] | None = None) -> Talk[list[str]]:
    """Note on chains that they are awaited; answer those that have ended."""
    ended: list[str] = []
    left = list(dict.fromkeys(chains))
    while left:
        tails = yield Ask("tails", left)
        known = [tail or (mine or {}).get(name) for name, tail in zip(left, tails, strict=True)]
        ended += [tail.chain_id for tail in known if tail is not None and tail.is_terminal]
        fresh = [tail for tail in known if tail is not None and not tail.is_terminal and not is_awaited(tail)]
        steps = [Step(watch, tail.id, alone=True) for tail in fresh]
        answers = (yield Ask("apply", steps)) if steps else []
        moved = zip(fresh, answers, strict=True)
        left = [tail.chain_id for tail, job in moved if isinstance(job, Job) and job.is_terminal]
    return ended


def is_awaited(job: Job) -> bool:
    """Tell whether somebody waits for the job's chain, or has waited."""
    return bool(job.traits & Trait.AWAITED)


def chains_named(blockers: bytes | None) -> list[str]:
    """Read the chains that a request waits for."""
    return [] if blockers is None else msgspec.json.decode(blockers, type=list[str])


def reach(chains: Sequence[str], mine: Mapping[str, Job]) -> Talk[frozenset[str]]:
    """Tell all the chains that these wait for, and they themselves; raises UnknownJob for one not there."""
    found: set[str] = set()
    left = list(chains)
    while left:
        found.update(left)
        tails = yield Ask("tails", left)
        known = [tail or mine.get(name) for name, tail in zip(left, tails, strict=True)]
        for name, tail in zip(left, known, strict=True):
            if tail is None and name in chains:
                raise UnknownJob(f"after= names chain {name!r}, which is not there: it may have been pruned.")
        beyond = yield from awaited_by([tail for tail in known if tail is not None])
        left = [name for name in dict.fromkeys(beyond) if name not in found]
    return frozenset(found)


def awaited_by(jobs: Sequence[Job]) -> Talk[list[str]]:
    """Tell what jobs wait for: their blockers, whoever they wait behind, whoever took their work over."""
    found = list(joined.from_iterable(open_blockers(job) for job in jobs))
    found += [job.superseded_by for job in jobs if job.superseded_by is not None]
    for job in jobs:
        if job.next_key is not None:
            view = yield Ask("look", job.next_key)
            found += [] if view.holder is None else [view.holder.chain_id]
    return found


def open_blockers(job: Job) -> list[str]:
    """Tell which blockers a job still waits for."""
    arrivals = zip(job.awaits, job.arrived or b"", strict=True)
    return [name for name, digit in arrivals if digit == Arrival.AWAITED[0] and not job.is_terminal]


# ── when somebody died in between ─────────────────────────────────────────────────────────────────


def mend(offset: int) -> Talk[tuple[int, int]]:
    """Bring news that was lost to some jobs that wait; answer how many those are, and how many changed."""
    jobs = yield Ask("find", Filter(blocked=True, limit=PAGE, offset=offset, newest_first=False))
    chains = dict.fromkeys(joined.from_iterable(open_blockers(job) for job in jobs))
    ended = yield from note(chains)
    tails = (yield Ask("tails", ended)) if ended else []
    changed = yield from spread(endings(tails))
    return len(jobs), changed


# ── around an admission ───────────────────────────────────────────────────────────────────────────


def settle_in(request: Request, verdict: Verdict, mine: Mapping[str, Job]) -> Talk[Verdict]:
    """Do what an admission makes necessary elsewhere; answer the verdict, with the job as it is then.

    Whoever waited for a job that was replaced waits for the new one; chains are told that they are awaited.
    """
    if verdict.superseded is not None and is_awaited(verdict.superseded):
        yield from spread({verdict.superseded.chain_id: Ending(Arrival.AWAITED, heir=verdict.job.id)})
    if request.job.blockers is None or verdict.job.id != request.job.id:
        return verdict
    changed = yield from begin_to_wait(verdict.job, mine)
    return verdict if changed is None else msgspec.structs.replace(verdict, job=changed)


def is_quiet(request: Request, verdict: Any) -> bool:
    """Tell whether an admission concerns nobody else."""
    if not isinstance(verdict, Verdict):
        return True
    return request.job.blockers is None and (verdict.superseded is None or not is_awaited(verdict.superseded))
