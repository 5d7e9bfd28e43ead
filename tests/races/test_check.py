"""The checker accepts histories that may happen and rejects, by the right rule, those that may not."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.races.check import check
from tests.races.history import (
    FOREVER,
    Absorbed,
    Admitted,
    Answer,
    Ask,
    Cancel,
    Close,
    Ended,
    Enqueue,
    Expire,
    History,
    Idle,
    Journal,
    KeyState,
    Lease,
    Leased,
    Look,
    Observation,
    Op,
    Release,
    Renew,
    Repair,
    Sampled,
    Seen,
    Settle,
    Shown,
    Start,
    Unknown,
    read,
    write_close,
)

X, Y, Z = (Seen(name, "available", 0, 0, payload) for payload, name in enumerate("XYZ", start=1))
NEXT = replace(Y, state="pending")


def running(job: Seen, token: int = 1) -> Seen:
    """Return a job under its first lease or a later one, with no attempt handed back before."""
    return replace(job, state="active", token=token, attempt=token)


def then(job: Seen, state: str) -> Seen:
    """Return a job in a later state."""
    return replace(job, state=state)


# ── operations ────────────────────────────────────────────────────────────────────────────────────

When = tuple[int, int]


def asked(outcome: str, job: Seen, holder: Seen | None, at: When, *, payload: int = 0, batch: int = 0) -> Op:
    """Return a request and its answer; a request that makes a job has the job's payload."""
    makes = outcome not in {"kept", "rejected", "stale"}
    ask = Enqueue("key", job.payload if makes else payload or 100 + at[0], job.version)
    return Op(ask, Admitted(outcome, job, holder), *at, "client", batch)


def unanswered(ask: Ask, call: int) -> Op:
    """Return an operation without an answer."""
    return Op(ask, None, call, FOREVER)


def answered(ask: Ask, job: Seen | None, at: When) -> Op:
    """Return any other operation and its answer."""
    return Op(ask, Shown(job), *at)


def started(job: Seen, at: When) -> Op:
    """Return a lease."""
    return answered(Start(job.job, job.token), job, at)


def settled(how: str, job: Seen, at: When) -> Op:
    """Return the end of a run, which the store accepted."""
    return answered(Settle(job.job, job.token, how), job, at)


def looked(holder: Seen | None, successor: Seen | None, at: When) -> Op:
    """Return a look at the key."""
    return Op(Look(), KeyState(holder, successor), *at)


def one_run(job: Seen, since: int) -> list[Op]:
    """Return a run that succeeds."""
    done = then(running(job), "completed")
    return [started(running(job), (since, since + 1)), settled("Completed", done, (since + 2, since + 3))]


def drained(
    key: str, ops: list[Op], *jobs: Ended, absorbed: Counter[tuple[str, str, str]] | None = None
) -> History:
    """Return a history whose jobs have all ended."""
    end = Op(Idle(), Shown(), FOREVER - 2, FOREVER - 1)
    counted = Counter() if absorbed is None else absorbed
    return History(
        {key: [*ops, end]}, jobs={ended.job.job: ended for ended in jobs}, absorbed=counted, drained=True
    )


def ended(key: str, job: Seen, superseded_by: str | None = None) -> Ended:
    """Return a job as the store has it in the end."""
    return Ended(key, job, superseded_by)


DONE_X, DONE_Y = (then(running(job), "completed") for job in (X, Y))
CREATED = asked("created", X, None, (0, 1))


# ── what may happen ───────────────────────────────────────────────────────────────────────────────

GOOD = {
    "one after the other": ("keep", [CREATED, asked("kept", X, X, (2, 3)), *one_run(X, 4)]),
    "the winner answers last": ("keep", [asked("kept", X, X, (0, 5)), asked("created", X, None, (1, 9))]),
    "a key changes hands during a call": (
        "keep",
        [CREATED, *one_run(X, 2), asked("created", Y, None, (3, 9)), asked("kept", Y, Y, (3, 8))],
    ),
    "rejected by the job that runs": (
        "reject",
        [CREATED, started(running(X), (2, 3)), asked("rejected", running(X), running(X), (4, 5))],
    ),
    "updated while waiting, followed while running": (
        "coalesce",
        [
            CREATED,
            asked("updated", replace(X, payload=7), X, (2, 3)),
            started(running(replace(X, payload=7)), (4, 5)),
            asked("rerun", NEXT, running(replace(X, payload=7)), (6, 7)),
            looked(running(replace(X, payload=7)), NEXT, (8, 9)),
            settled("Failed", then(running(replace(X, payload=7)), "superseded"), (10, 11)),
            looked(then(Y, "scheduled"), None, (12, 13)),
            *one_run(Y, 14),
        ],
    ),
    "replaced, and overruled": (
        "overrule",
        [
            CREATED,
            asked("replaced", Y, X, (2, 3)),
            started(running(Y), (4, 5)),
            asked("rerun", then(Z, "pending"), running(Y), (6, 7)),
            settled("HandedBack", replace(running(Y), state="cancelled", asked=True), (8, 9)),
            looked(Z, None, (10, 11)),
        ],
    ),
    "released at the start": (
        "start",
        [CREATED, started(running(X), (2, 3)), asked("created", Y, None, (4, 5)), *one_run(Y, 6)],
    ),
    "stale, and withdrawn": (
        "latest",
        [
            asked("created", replace(X, version=5), None, (0, 1)),
            asked("stale", replace(X, version=5), replace(X, version=5), (2, 3)),
            answered(Cancel("X"), replace(X, version=5, state="cancelled"), (4, 5)),
            asked("created", replace(Y, version=5), None, (6, 7)),
        ],
    ),
    "a newer version ends a job that was handed back, unseen": (
        "latest",
        [
            asked("created", replace(X, version=5), None, (0, 1)),
            started(running(replace(X, version=5)), (2, 3)),
            asked("rerun", replace(NEXT, version=6), running(replace(X, version=5)), (4, 5)),
            settled("HandedBack", replace(X, version=5, token=1), (6, 7)),
            started(running(replace(Y, version=6)), (8, 9)),
        ],
    ),
    "time comes, and a lease runs out": (
        "keep",
        [
            CREATED,
            started(running(X), (2, 3)),
            settled("Snoozed", replace(X, state="scheduled", token=1), (4, 5)),
            started(replace(running(X, 2), attempt=1), (6, 7)),
            answered(Expire("X"), replace(X, state="retryable", token=2, attempt=1), (8, 9)),
            answered(Settle("X", 2, "Completed"), None, (8, 20)),
            answered(Renew("X", 2), None, (10, 11)),
            asked("kept", replace(X, token=2, attempt=1), replace(X, token=2, attempt=1), (12, 13)),
        ],
    ),
    "a lease expires twice, without an answer": (
        "keep",
        [
            CREATED,
            started(running(X), (2, 3)),
            unanswered(Expire("X"), 4),
            started(running(X, 2), (6, 13)),
            unanswered(Expire("X"), 8),
            started(running(X, 3), (10, 11)),
        ],
    ),
    "both cancelled, and a key released": (
        "follow",
        [
            CREATED,
            started(running(X), (2, 3)),
            asked("rerun", NEXT, running(X), (4, 5)),
            answered(Cancel("X", successors=True), replace(running(X), asked=True), (6, 7)),
            answered(Release("key"), None, (8, 9)),
            answered(Release("key", force=True), replace(running(X), asked=True), (10, 11)),
            asked("created", Z, None, (12, 13)),
            answered(Cancel("Y"), then(Y, "cancelled"), (14, 15)),
        ],
    ),
    "a successor that comes and goes while both are being cancelled": (
        "coalesce",
        [
            CREATED,
            started(running(X), (2, 3)),
            answered(Cancel("X"), replace(running(X), asked=True), (4, 5)),
            answered(Cancel("X", successors=True), replace(running(X), asked=True), (6, 20)),
            asked("rerun", NEXT, replace(running(X), asked=True), (7, 8)),
            looked(replace(running(X), asked=True), None, (9, 10)),
        ],
    ),
    "a batch, in its order": (
        "keep",
        [asked("created", X, None, (0, 9), batch=4), asked("kept", X, X, (0, 9), batch=4)],
    ),
    "an unanswered request made the job": (
        "keep",
        [unanswered(Enqueue("key", 1), 0), asked("kept", X, X, (5, 6)), *one_run(X, 7)],
    ),
    "an unanswered request had no effect": (
        "keep",
        [unanswered(Enqueue("key", 1), 0), asked("created", Y, None, (5, 6)), *one_run(Y, 7)],
    ),
    "an unanswered update came late": (
        "coalesce",
        [
            CREATED,
            unanswered(Enqueue("key", 7), 2),
            looked(X, None, (3, 4)),
            started(running(replace(X, payload=7)), (5, 6)),
        ],
    ),
    "an unanswered result was written": (
        "keep",
        [
            CREATED,
            started(running(X), (2, 3)),
            unanswered(Settle("X", 1, "Completed"), 4),
            answered(Settle("X", 1, "Completed"), None, (5, 6)),
            asked("created", Y, None, (7, 8)),
        ],
    ),
}


@pytest.mark.parametrize("story", GOOD)
def test_a_possible_history_is_accepted(story: str) -> None:
    policy, ops = GOOD[story]
    assert check(History({f"{policy}/1": ops})) == []


def test_a_lease_that_a_killed_worker_got_is_accepted() -> None:
    ops = [
        CREATED,
        answered(Expire("X"), replace(X, state="retryable", token=1, attempt=1), (8, 9)),
        started(running(X, 2), (10, 11)),
    ]
    assert check(History({"keep/1": ops}, leases_lost=[3])) == []
    assert {violation.rule for violation in check(History({"keep/1": ops}))} == {"leases", "order"}


# ── what may not ──────────────────────────────────────────────────────────────────────────────────

BAD = {
    "two creators": ("keep", "order", [CREATED, asked("created", Y, None, (0, 3))]),
    "the same job made twice": (
        "keep",
        "untrue answer",
        [CREATED, *one_run(X, 2), replace(CREATED, call=8, back=9)],
    ),
    "a kept answer names a job that had ended": (
        "keep",
        "untrue answer",
        [CREATED, *one_run(X, 2), asked("kept", X, X, (8, 9))],
    ),
    "a kept answer names a job that comes later": (
        "keep",
        "untrue answer",
        [asked("kept", X, X, (0, 1)), asked("created", X, None, (2, 3))],
    ),
    "a kept answer shows a state that is over": (
        "keep",
        "order",
        [CREATED, started(running(X), (2, 3)), asked("kept", X, X, (4, 5))],
    ),
    "a kept answer shows a payload that no request had": (
        "keep",
        "order",
        [CREATED, asked("kept", replace(X, payload=3), replace(X, payload=3), (4, 5))],
    ),
    "a kept answer between two jobs": (
        "keep",
        "order",
        [
            CREATED,
            *one_run(X, 2),
            looked(None, None, (6, 7)),
            asked("created", Y, None, (8, 9)),
            asked("kept", Y, Y, (6, 7)),
        ],
    ),
    "overlapping leases": (
        "keep",
        "leases",
        [CREATED, started(running(X), (2, 3)), started(running(X, 2), (4, 5))],
    ),
    "a falling token": (
        "keep",
        "leases",
        [
            CREATED,
            started(running(X, 2), (2, 3)),
            settled("Failed", then(running(X, 2), "retryable"), (4, 5)),
            started(running(X, 1), (6, 7)),
        ],
    ),
    "one token for two": (
        "keep",
        "leases",
        [CREATED, started(running(X), (2, 3)), started(running(X), (2, 3))],
    ),
    "a lost lease that still counts": (
        "keep",
        "order",
        [
            CREATED,
            started(running(X), (2, 3)),
            answered(Expire("X"), then(running(X), "retryable"), (4, 5)),
            started(running(X, 2), (6, 7)),
            settled("Completed", then(running(X), "completed"), (8, 9)),
        ],
    ),
    "a lease expired twice, and was taken back once by then": (
        "keep",
        "order",
        [
            CREATED,
            started(running(X), (2, 3)),
            unanswered(Expire("X"), 4),
            started(running(X, 2), (6, 7)),
            unanswered(Expire("X"), 12),
            started(running(X, 3), (10, 11)),
        ],
    ),
    "a result refused, though the lease was in force": (
        "keep",
        "order",
        [CREATED, started(running(X), (2, 3)), answered(Settle("X", 1, "Completed"), None, (4, 5))],
    ),
    "a run with an old payload": (
        "coalesce",
        "order",
        [CREATED, asked("updated", replace(X, payload=7), X, (2, 3)), started(running(X), (4, 5))],
    ),
    "an update that keeps the attempts": (
        "coalesce",
        "order",
        [
            CREATED,
            started(running(X), (2, 3)),
            settled("Failed", then(running(X), "retryable"), (4, 5)),
            asked(
                "updated",
                replace(X, state="retryable", token=1, attempt=1, payload=7),
                then(running(X), "retryable"),
                (6, 7),
            ),
        ],
    ),
    "two successors": (
        "coalesce",
        "order",
        [
            CREATED,
            started(running(X), (2, 3)),
            asked("rerun", NEXT, running(X), (4, 7)),
            asked("rerun", then(Z, "pending"), running(X), (4, 7)),
        ],
    ),
    "a successor beside its predecessor": (
        "coalesce",
        "order",
        [
            CREATED,
            started(running(X), (2, 3)),
            asked("rerun", NEXT, running(X), (4, 5)),
            started(running(Y), (6, 7)),
        ],
    ),
    "a successor that is not promoted": (
        "coalesce",
        "order",
        [
            CREATED,
            started(running(X), (2, 3)),
            asked("rerun", NEXT, running(X), (4, 5)),
            settled("Completed", DONE_X, (6, 7)),
            looked(None, NEXT, (8, 9)),
        ],
    ),
    "a successor that had to be repaired": (
        "coalesce",
        "repairs",
        [
            CREATED,
            started(running(X), (2, 3)),
            asked("rerun", NEXT, running(X), (4, 5)),
            settled("Completed", DONE_X, (6, 7)),
            answered(Repair("Y"), Y, (8, 9)),
        ],
    ),
    "an older version after a newer": (
        "latest",
        "order",
        [
            asked("created", replace(X, version=5), None, (0, 1)),
            asked("updated", replace(X, version=4, payload=7), replace(X, version=5), (2, 3)),
        ],
    ),
    "an old version's result": (
        "latest",
        "order",
        [
            asked("created", replace(X, version=5), None, (0, 1)),
            started(running(replace(X, version=5)), (2, 3)),
            asked("rerun", replace(NEXT, version=6), running(replace(X, version=5)), (4, 5)),
            settled("Completed", replace(DONE_X, version=5), (6, 7)),
        ],
    ),
    "a job that was cancelled and starts": (
        "keep",
        "order",
        [CREATED, answered(Cancel("X"), then(X, "cancelled"), (2, 3)), started(running(X), (4, 5))],
    ),
    "a job that ended twice": (
        "keep",
        "endings",
        [CREATED, *one_run(X, 2), answered(Cancel("X"), then(running(X), "cancelled"), (8, 9))],
    ),
    "a batch out of order": (
        "keep",
        "order",
        [asked("kept", X, X, (0, 9), batch=4), asked("created", X, None, (0, 9), batch=4)],
    ),
    "a job that no request made": ("keep", "order", [asked("kept", X, X, (5, 6))]),
    "an unanswered request made two jobs": (
        "keep",
        "order",
        [unanswered(Enqueue("key", 1), 0), *one_run(X, 3), *one_run(replace(Y, payload=1), 7)],
    ),
}


@pytest.mark.parametrize("story", BAD)
def test_an_impossible_history_is_rejected(story: str) -> None:
    policy, rule, ops = BAD[story]
    violations = check(History({f"{policy}/1": ops}))
    assert rule in {violation.rule for violation in violations}, violations


def test_a_job_that_does_not_exist_is_reported() -> None:
    history = drained(
        "keep/1", [CREATED, *one_run(X, 2), asked("kept", Y, Y, (3, 4))], ended("keep/1", DONE_X)
    )
    assert "untrue answer: keep/1: Y does not exist" in " ".join(map(str, check(history)))


FIRST, SECOND = Observation("keep/1", "aa", X), Observation("keep/1", "aa", Y)


@pytest.mark.parametrize(
    "sample",
    [
        Sampled([FIRST, SECOND], []),
        Sampled([FIRST], [SECOND, replace(SECOND, job=Z)]),
        Sampled([replace(FIRST, job=DONE_X)], []),
        Sampled([FIRST, Observation("keep/2", "aa", Z)], []),
        Sampled([FIRST], [Observation("keep/1", "bb", NEXT)]),
    ],
)
def test_a_sample_shows_one_holder_and_one_successor_of_a_key(sample: Sampled) -> None:
    good = Sampled([FIRST, Observation("keep/2", "cc", Z)], [replace(SECOND, job=NEXT)])
    assert check(History({}, samples=[good])) == []
    assert {violation.rule for violation in check(History({}, samples=[good, sample]))} == {"two holders"}


# ── how it ends ───────────────────────────────────────────────────────────────────────────────────

FOLLOWED = [CREATED, started(running(X), (2, 3)), asked("rerun", NEXT, running(X), (4, 5))]
COUNTED = Counter({("coalesce", "rerun", "Y"): 1})


def test_every_accepted_request_is_covered_by_a_run() -> None:
    ops = [*FOLLOWED, settled("Completed", DONE_X, (6, 7)), *one_run(Y, 8)]
    jobs = ended("coalesce/1", DONE_X), ended("coalesce/1", DONE_Y)
    assert check(drained("coalesce/1", ops, *jobs, absorbed=COUNTED)) == []


@pytest.mark.parametrize(
    ("rule", "last"),
    [
        ("endings", NEXT),  # a dead successor
        ("lost request", then(Y, "cancelled")),  # that no client cancelled
        ("lost request", then(Y, "superseded")),  # by no job
    ],
)
def test_a_lost_request_is_reported(rule: str, last: Seen) -> None:
    ops = [*FOLLOWED, settled("Completed", DONE_X, (6, 7))]
    jobs = ended("coalesce/1", DONE_X), ended("coalesce/1", last)
    violations = check(drained("coalesce/1", ops, *jobs, absorbed=COUNTED))
    assert rule in {violation.rule for violation in violations}


def test_a_request_may_be_cancelled_or_covered_by_another_job() -> None:
    cancelled = [CREATED, answered(Cancel("X"), then(X, "cancelled"), (2, 3))]
    assert check(drained("keep/1", cancelled, ended("keep/1", then(X, "cancelled")))) == []
    replaced = [CREATED, asked("replaced", Y, X, (2, 3)), *one_run(Y, 4)]
    jobs = ended("replace/1", then(X, "superseded"), "Y"), ended("replace/1", DONE_Y)
    assert check(drained("replace/1", replaced, *jobs)) == []


KEPT = [CREATED, asked("kept", X, X, (0, 5)), *one_run(X, 6)]


@pytest.mark.parametrize(
    ("jobs", "absorbed"),
    [
        ([DONE_X], {}),  # the store lost one
        ([DONE_X], {("keep", "kept", "X"): 2}),  # or made one up
        ([DONE_X], {("keep", "kept", "Y"): 1}),  # or counted it for another
        ([DONE_X, DONE_Y], {("keep", "kept", "X"): 1}),  # a job that no call made
        ([], {("keep", "kept", "X"): 1}),  # a job that is gone
    ],
)
def test_counters_that_do_not_add_up_are_rejected(
    jobs: list[Seen], absorbed: dict[tuple[str, str, str], int]
) -> None:
    right = drained("keep/1", KEPT, ended("keep/1", DONE_X), absorbed=Counter({("keep", "kept", "X"): 1}))
    assert check(right) == []
    wrong = drained("keep/1", KEPT, *(ended("keep/1", job) for job in jobs), absorbed=Counter(absorbed))
    assert "counters" in {violation.rule for violation in check(wrong)}


@pytest.mark.parametrize(("number", "right"), [(0, True), (1, True), (2, False)])
def test_a_killed_caller_may_lose_counts_but_not_add_any(number: int, right: bool) -> None:  # noqa: FBT001
    counted = Counter({("keep", "kept", "X"): number})
    history = drained("keep/1", KEPT, ended("keep/1", DONE_X), absorbed=counted)
    assert (check(dataclasses.replace(history, killed=True)) == []) is right


# ── the files ─────────────────────────────────────────────────────────────────────────────────────


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    acts: list[tuple[list[Ask], list[Answer]]] = [
        ([Enqueue("keep/1", 1)], [Admitted("created", X)]),
        ([Look()], [Sampled([Observation("keep/1", "aa", X)], [])]),
        ([Lease()], [Leased([running(X)])]),
        ([Enqueue("keep/1", 2), Enqueue("keep/1", 3)], [Admitted("kept", running(X), running(X))] * 2),
        ([Renew("X", 1), Expire("X")], [Unknown(), Shown()]),
        ([Settle("X", 1, "Completed")], [Shown(DONE_X)]),
    ]
    journal = Journal(tmp_path / "someone.history")
    for asks, answers in acts:
        journal.back(journal.call(asks), answers)
    journal.call([Lease()])
    journal.call([Enqueue("keep/1", 4)])
    write_close(tmp_path, Close(jobs=[Ended("keep/1", DONE_X)], absorbed=[Absorbed("keep", "kept", "X", 2)]))
    with (tmp_path / "someone.history").open("a") as file:
        file.write('["Call",9')  # killed in the middle of a line

    history = read(tmp_path)
    kinds = [type(op.ask).__name__ for op in history.keys["keep/1"]]
    assert kinds == ["Enqueue", "Look", "Start", "Enqueue", "Enqueue", "Renew", "Settle", "Enqueue", "Idle"]
    assert [op.unknown for op in history.keys["keep/1"]] == [False] * 5 + [True, False, True, False]
    assert len(history.leases_lost) == 1
    assert check(history) == []
