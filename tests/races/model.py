"""A model of a key and of all operations on it, one at a time.

It implements the rules of deduplication a second time, for policies without windows. It shares no code with
onejob, so that a fault stays hidden only if both are wrong in the same way. `after` returns how an operation
with a given answer leaves a key, or None if the key could not have given that answer.

Two things happen to a key without an answer. A job becomes due: `after` lets that happen whenever an answer
needs it. And a worker that is about to lease a job ends it instead, if there is a newer version: `drifts`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tests.races.history import (
    ENDED,
    Admitted,
    Answer,
    Ask,
    Cancel,
    Enqueue,
    Expire,
    Idle,
    KeyState,
    Look,
    Release,
    Renew,
    Seen,
    Settle,
    Shown,
    Start,
)

Result = tuple[Answer, "Key"]


class Rules(msgspec.Struct, frozen=True, gc=False):
    """The policy of a key."""

    on_conflict: str = "keep"
    on_active: str = "keep"
    until_start: bool = False
    versioned: bool = False
    attempts: int = 3


RULES = {
    "keep": Rules(),
    "reject": Rules("reject", "reject"),
    "update": Rules("update", "keep"),
    "coalesce": Rules("update", "rerun"),
    "follow": Rules("keep", "rerun"),
    "replace": Rules("replace", "rerun"),
    "overrule": Rules("replace", "cancel"),
    "start": Rules(until_start=True),
    "latest": Rules("update", "rerun", versioned=True),
}
"""The policies by name; a key is called by its policy's name and a number: keep/7."""


class Key(msgspec.Struct, frozen=True, gc=False):
    """A key's holder and successor, its other live jobs, its ended jobs, and its newest admitted version."""

    holder: Seen | None = None
    successor: Seen | None = None
    others: tuple[Seen, ...] = ()
    gone: frozenset[str] = frozenset()
    newest: int | None = None
    newest_job: str | None = None
    withdrawn: bool = False  # the newest version's job was cancelled or discarded
    done: int = -1  # the highest version that ran to its end

    @property
    def live(self) -> tuple[Seen, ...]:
        """Return every job that has not ended."""
        return (*(job for job in (self.holder, self.successor) if job is not None), *self.others)


FREE = Key()
alter = msgspec.structs.replace


# ── what may follow ───────────────────────────────────────────────────────────────────────────────


def after(rules: Rules, key: Key, ask: Ask, answer: Answer | None, fresh: str = "") -> Key | None:
    """Return the key after an operation with this answer, or None if the answer is impossible.

    Without an answer every result is possible; a job that is made then has the id `fresh`.
    """
    for now in (key, *ripened(key)):
        result = act(rules, now, ask, answer, fresh)
        if result is not None and (answer is None or matches(result[0], answer)):
            return result[1]
    return None


def spent(key: Key, ask: Ask) -> bool:
    """Return whether an operation can change nothing any more, whatever comes before it."""
    if not isinstance(ask, Start | Settle | Renew | Expire | Cancel):
        return False
    job = find(key, ask.job)
    if job is None:
        return ask.job in key.gone
    match ask:
        case Start():
            return job.token >= ask.token
        case Settle():
            return job.token > ask.token or (job.token == ask.token and job.state != "active")
        case _:
            return isinstance(ask, Renew)


def ripened(key: Key) -> Iterator[Key]:
    """Yield the key after one of its jobs became due."""
    for job in key.live:
        if job.state in {"scheduled", "retryable"}:
            yield put(key, alter(job, state="available"))


def drifts(rules: Rules, key: Key) -> Iterator[Key]:
    """Yield the key after a worker ended a job instead of leasing it, because of a newer version."""
    if not rules.versioned:
        return
    for job in key.live:
        if job.state in {"available", "scheduled", "retryable"} and outdated(key, job):
            yield end(key, job, "superseded")[1]


def matches(expected: Answer, answer: Answer) -> bool:
    """Compare answers; of a job that had ended before, the model remembers the id alone."""
    if expected == answer:
        return True
    match expected, answer:
        case Shown(Seen() as job), Shown(Seen() as seen):
            return faded(job, seen)
        case Admitted(), Admitted():
            same = (expected.outcome, expected.holder) == (answer.outcome, answer.holder)
            return same and faded(expected.job, answer.job)
        case _:
            return False


def faded(job: Seen, seen: Seen) -> bool:
    """Return whether an answer shows this job, which has ended."""
    return job.state == "ended" and job.job == seen.job and seen.state in ENDED


def act(rules: Rules, key: Key, ask: Ask, answer: Answer | None, fresh: str) -> Result | None:
    """Apply one operation to a key, and return its answer and the key after it."""
    match ask:
        case Enqueue():
            return enqueue(rules, key, ask, answer.job.job if isinstance(answer, Admitted) else fresh)
        case Start():
            return start(rules, key, ask)
        case Settle():
            job = owned(key, ask)
            return settle(rules, key, job, ask.how) if job else (Shown(), key)
        case Renew():
            return Shown(owned(key, ask)), key
        case Expire():
            found = find(key, ask.job)
            return settle(rules, key, found, "Failed") if found and found.state == "active" else None
        case Cancel():
            return cancel(key, ask)
        case Release():
            return release(key, ask)
        case Look():
            return KeyState(key.holder, key.successor), key
        case Idle():
            return None if key.live else (Shown(), key)
        case _:
            return None


# ── enqueue ───────────────────────────────────────────────────────────────────────────────────────


def enqueue(rules: Rules, key: Key, ask: Enqueue, fresh: str) -> Result | None:
    """Admit a request; it meets the successor if there is one, the newest request, else the holder."""
    job = Seen(fresh, "available", 0, 0, ask.payload, ask.version if rules.versioned else None)
    standing = key.successor or key.holder
    if ask.force:
        holder, key = key.holder, alter(leave(key, key.successor), others=others(key))
        return made("forced", alter(key, holder=job), job, holder)
    if rules.versioned and stale(key, ask.version or 0):
        assert key.newest_job is not None
        newest = find(key, key.newest_job) or ended(key.newest_job)
        return Admitted("stale", newest, standing), key
    if standing is None:
        return made("created", alter(key, holder=job), job, None)
    if standing.state == "active":
        return meet(rules.on_active, key, standing, job)
    return meet(rules.on_conflict, key, standing, job)


def meet(policy: str, key: Key, standing: Seen, job: Seen) -> Result | None:
    """Apply the policy to the job that the request meets."""
    match policy:
        case "keep":
            return Admitted("kept", standing, standing), key
        case "reject":
            return Admitted("rejected", standing, standing), key
        case "update":
            newer = alter(standing, payload=job.payload, version=job.version, attempt=0)
            if (newer.payload, newer.version) == (standing.payload, standing.version):
                return Admitted("kept", standing, standing), key
            return made("updated", put(key, newer), newer, standing)
        case "replace" if standing is key.successor:
            job = alter(job, state="pending")
            return made("replaced", alter(leave(key, standing), successor=job), job, standing)
        case "replace":
            return made("replaced", alter(leave(key, standing), holder=job), job, standing)
        case "rerun" | "cancel":
            job = alter(job, state="pending")
            holder = alter(standing, asked=standing.asked or policy == "cancel")
            return made("rerun", alter(key, holder=holder, successor=job), job, standing)
        case _:
            raise ValueError(policy)


def made(outcome: str, key: Key, job: Seen, holder: Seen | None) -> Result | None:
    """Return the answer to a request that changed something; if it made a job, the id must be known."""
    if not job.job:
        return None
    if job.version is not None:
        key = alter(key, newest=job.version, newest_job=job.job, withdrawn=False)
    return Admitted(outcome, job, holder), key


def stale(key: Key, version: int) -> bool:
    """Return whether this version or a newer one was admitted and not withdrawn."""
    if key.newest is None:
        return False
    return version < key.newest or (version == key.newest and not key.withdrawn)


def outdated(key: Key, job: Seen) -> bool:
    """Return whether a newer version runs, waits, or has run."""
    versions = [other.version for other in key.live if other.version is not None]
    return job.version is not None and job.version < max(key.done, *versions)


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────


def start(rules: Rules, key: Key, ask: Start) -> Result | None:
    """Lease an available job; under until="start" this releases its key."""
    job = find(key, ask.job)
    if job is None or job.state != "available" or job.token != ask.token - 1 or outdated(key, job):
        return None
    running = alter(job, state="active", token=job.token + 1, attempt=job.attempt + 1)
    if rules.until_start and job is key.holder:
        key = release(key, Release("", force=True))[1]
    return Shown(running), put(key, running)


def owned(key: Key, ask: Settle | Renew) -> Seen | None:
    """Return the job if this lease of it is in force."""
    job = find(key, ask.job)
    return job if job is not None and job.state == "active" and job.token == ask.token else None


def settle(rules: Rules, key: Key, job: Seen, how: str) -> Result:
    """Apply the result of a run."""
    match how:
        case "Completed":
            return end(key, job, "superseded" if outdated(key, job) else "completed")
        case "Stopped":
            return end(key, job, "cancelled")
        case "Failed" | "Discarded":
            return fail(rules, key, job, final=how == "Discarded")
        case "Snoozed" | "HandedBack" if job.asked:
            return end(key, job, "cancelled")
        case "Snoozed" | "HandedBack":
            state = "scheduled" if how == "Snoozed" else "available"
            waiting = alter(job, state=state, attempt=job.attempt - 1)
            return Shown(waiting), put(key, waiting)
        case _:
            raise ValueError(how)


def fail(rules: Rules, key: Key, job: Seen, *, final: bool) -> Result:
    """Retry a failed run, unless it was asked to stop, a newer request waits, or no attempt is left."""
    behind = key.successor if job is key.holder else None
    if job.asked:
        return end(key, job, "cancelled")
    if outdated(key, job) and behind is None:
        return end(key, job, "superseded")
    if final or job.attempt >= rules.attempts:
        return end(key, job, "discarded")
    if behind is not None:  # it runs when the retry would have run
        answer, key = end(key, job, "superseded")
        return answer, put(key, alter(behind, state="scheduled"))
    waiting = alter(job, state="retryable")
    return Shown(waiting), put(key, waiting)


def end(key: Key, job: Seen, state: str) -> Result:
    """End a job; if it held the key, promote its successor."""
    key = leave(key, job)
    if state == "completed" and job.version is not None:
        key = alter(key, done=max(key.done, job.version))
    if state in {"cancelled", "discarded"} and job.job == key.newest_job:
        key = alter(key, withdrawn=True)
    return Shown(alter(job, state=state)), key


def leave(key: Key, job: Seen | None) -> Key:
    """Remove a job; if it held the key, promote its successor."""
    if job is None:
        return key
    key = alter(key, gone=key.gone | {job.job})
    if job is key.holder:
        return alter(key, holder=promoted(key), successor=None)
    if job is key.successor:
        return alter(key, successor=None)
    return alter(key, others=tuple(other for other in key.others if other is not job))


def promoted(key: Key) -> Seen | None:
    """Return the successor as the new holder."""
    return None if key.successor is None else alter(key.successor, state="available")


# ── cancel and release ────────────────────────────────────────────────────────────────────────────


def cancel(key: Key, ask: Cancel) -> Result | None:
    """End a waiting job, or ask a running one to stop."""
    job = find(key, ask.job)
    if job is None:
        return (Shown(ended(ask.job)), key) if ask.job in key.gone else None
    if ask.successors and job is key.holder and key.successor is not None:
        key = end(key, key.successor, "cancelled")[1]
    if job.state != "active":
        return end(key, job, "cancelled")
    stopping = alter(job, asked=True)
    return Shown(stopping), put(key, stopping)


def release(key: Key, ask: Release) -> tuple[Shown, Key]:
    """Take the key from its holder, which continues without it, and promote the successor."""
    if key.holder is None or (key.holder.state == "active" and not ask.force):
        return Shown(), key
    return Shown(key.holder), alter(key, holder=promoted(key), successor=None, others=others(key))


# ── parts of a key ────────────────────────────────────────────────────────────────────────────────


def others(key: Key) -> tuple[Seen, ...]:
    """Return the jobs without a hold, including the present holder, in a fixed order."""
    gone = () if key.holder is None else (key.holder,)
    return tuple(sorted((*key.others, *gone), key=lambda job: job.job))


def find(key: Key, job_id: str) -> Seen | None:
    """Return a live job by its id."""
    return next((job for job in key.live if job.job == job_id), None)


def put(key: Key, job: Seen) -> Key:
    """Return the key with a new state of a job that it has."""
    if key.holder is not None and key.holder.job == job.job:
        return alter(key, holder=job)
    if key.successor is not None and key.successor.job == job.job:
        return alter(key, successor=job)
    return alter(key, others=tuple(job if other.job == job.job else other for other in key.others))


def ended(job_id: str) -> Seen:
    """Return a placeholder for a job that has ended."""
    return Seen(job_id, "ended", 0, 0, 0)
