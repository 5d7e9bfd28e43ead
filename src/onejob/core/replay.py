"""Dead letters: how an operator replays them, and how they are replayed automatically."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from onejob.core.blockers import expect_again
from onejob.core.decide import Outcome, Verdict, remember, stands
from onejob.core.holds import detach, free, hold, overtaken, ready, too_late
from onejob.core.job import Job, Mark, State, Trait, alter
from onejob.core.step import NO_CHANGES, Changes, View


def replay(view: View, *, edit: Callable[[Job], Job] | None = None) -> Changes[Verdict | None]:
    """Make a dead letter available again; decided as keep, whatever its policy: created, kept or stale.

    `edit` returns the letter with another payload, or raises. Answer None if the job is no dead letter.
    """
    job = view.job
    if job is None or job.state not in {State.DISCARDED, State.CANCELLED} or job.is_tombstone:
        return NO_CHANGES
    job = job if edit is None else edit(job)
    standing = view.successor or view.holder
    if not job.holds:  # not unique, or admitted in shadow: no other job is in its way
        return revive(job, view)
    if standing is not None and standing.id != job.id and stands(standing, view):
        reason = f"The same work is already {standing.state}; the dead letter stays where it is."
        return Changes(Verdict(Outcome.KEPT, standing, standing, reason))
    if outranked(job, view.mark) and view.marked is not None:
        reason = "A newer version has been admitted since; the dead letter stays where it is."
        return Changes(Verdict(Outcome.STALE, view.marked, standing, reason))
    return revive(job, view)


def replay_due(view: View) -> Changes[Verdict | None]:
    """Replay a dead letter whose time has come; one that is kept or stale has spent a replay and waits on."""
    letter = view.job
    if letter is None or letter.returns_at is None or letter.returns_at > view.now:
        return NO_CHANGES  # another worker was faster
    changes = replay(view)
    if changes.answer is None or changes.answer.outcome is Outcome.CREATED:
        return changes
    waiting = schedule_replay(alter(letter, replays=letter.replays + 1), view.now)
    return Changes(changes.answer, updates=(waiting,))


def outranked(job: Job, mark: Mark | None) -> bool:
    """Return whether another job of this version or a newer one was admitted to the key."""
    if job.version is None or mark is None or mark.version is None or mark.job == job.chain_id:
        return False
    return job.version < mark.version or (job.version == mark.version and not mark.void)


def revive(job: Job, view: View) -> Changes[Verdict | None]:
    """Make an ended job available again, with its key and all its attempts."""
    others = job.holds and view.holder is not None and view.holder.id != job.id
    freed = (free(view.holder, view.now),) if others and view.holder else ()
    if job.version is None and overtaken(job, view.mark):
        job = detach(job, view.now)  # it is not the newest again: the two run side by side
    alive = alter(
        expect_again(job),
        run_at=view.now,
        attempt=0,
        replays=job.replays + 1,
        traits=job.traits & ~Trait.RETURNS,
        finished_at=None,
        kept_until=None,
        reason=None,
        superseded_by=None,
        cancel_requested=False,
        expires_at=None if too_late(job, view.now) else job.expires_at,
    )
    alive = alter(alive, state=ready(alive, view.now))
    alive = hold(alive, view.now) if job.holds else alive
    marks = job.version is not None or bool(job.traits & Trait.NEWEST_WINS)
    mark = remember(job.key, job.version, job.chain_id, view, {job.chain_id}) if marks and job.key else None
    verdict = Verdict(Outcome.CREATED, alive, None, "The job is available again.")
    return Changes(verdict, updates=(*freed, alive), mark=mark)


def schedule_replay(letter: Job, now: datetime, *, final: bool = False) -> Job:
    """Return a dead letter with the time of its next automatic replay, if its policy has one left."""
    if final or letter.replay is None or letter.replays >= letter.replay.times:
        return stop_replays(letter)
    run_at = now + letter.replay.delay(letter.replays)
    return alter(letter, run_at=run_at, traits=letter.traits | Trait.RETURNS)


def stop_replays(letter: Job) -> Job:
    """Return a dead letter that is replayed only by an operator."""
    return alter(letter, traits=letter.traits & ~Trait.RETURNS)
