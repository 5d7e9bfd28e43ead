"""Which jobs a lease starts: the rules of `core.leasing`, on random states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from onejob import Job, Retry, State
from onejob.core.leasing import Capacity, Lease, Load, Rate, choose, next_start, rank

NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUEUES = ("a", "b", "c")
PARTITIONS = (None, "", "x", "y")
SPAN = timedelta(seconds=10)


def candidate(number: int, queue: str, partition: str | None, priority: int, seconds: int) -> Job:
    """Return an available job."""
    return Job(
        id=f"{number:04}",
        namespace="",
        task="work",
        queue=queue,
        state=State.AVAILABLE,
        priority=priority,
        run_at=NOW - timedelta(seconds=seconds),
        place=number % 3,
        created_at=NOW,
        args=b"{}",
        meta=b"{}",
        payload_digest=b"",
        retry=Retry.never(),
        chain_id=f"{number:04}",
        partition=partition,
    )


class Case(NamedTuple):
    """A state of a store, and a request for jobs."""

    jobs: list[Job]
    wanted: Lease
    load: Load


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a state and a request."""
    small = st.integers(0, 4)
    traits = st.tuples(
        st.sampled_from(QUEUES), st.sampled_from(PARTITIONS), st.integers(0, 2), st.integers(0, 2)
    )
    jobs = [candidate(number, *each) for number, each in enumerate(draw(st.lists(traits, max_size=14)))]
    per_queue = st.dictionaries(st.sampled_from(QUEUES), st.integers(1, 4))
    wanted = Lease(
        namespace="",
        worker="worker",
        queues={queue: draw(small) for queue in QUEUES},
        total=draw(st.integers(0, 10)),
        duration=SPAN,
        tasks=["work"],
        limits=draw(per_queue),
        shares=draw(per_queue),
        rates={queue: Rate(times, SPAN) for queue, times in draw(per_queue).items()},
    )
    active = draw(st.dictionaries(st.tuples(st.sampled_from(QUEUES), st.sampled_from(["", "x", "y"])), small))
    ages = st.lists(st.integers(0, 15), max_size=5)
    starts = {queue: [NOW - timedelta(seconds=age) for age in sorted(draw(ages))[::-1]] for queue in QUEUES}
    return Case(
        draw(st.permutations(jobs)), wanted, Load(active, starts, draw(st.sets(st.sampled_from(QUEUES))))
    )


def chosen(case: Case) -> list[Job]:
    """Apply the rule under test."""
    return choose(case.jobs, Capacity(case.wanted, case.load, NOW))


# ── a specification that is slow and obvious ──────────────────────────────────────────────────────


def is_allowed(case: Case, started: Sequence[Job]) -> bool:
    """Return whether no limit is exceeded if all these jobs start now."""
    wanted, load = case.wanted, case.load
    if len(started) > wanted.total:
        return False
    for queue, number in Counter(job.queue for job in started).items():
        recent = [at for at in load.starts.get(queue, ()) if NOW - at < SPAN]
        active = sum(count for (name, _), count in load.active.items() if name == queue)
        if (
            queue in load.paused
            or number > wanted.queues[queue]
            or (queue in wanted.limits and active + number > wanted.limits[queue])
            or (queue in wanted.rates and len(recent) + number > wanted.rates[queue].times)
        ):
            return False
    shares = Counter((job.queue, job.partition) for job in started if job.partition)
    return all(
        queue not in wanted.shares or number + load.active.get((queue, partition), 0) <= wanted.shares[queue]
        for (queue, partition), number in shares.items()
    )


def specified(case: Case) -> list[Job]:
    """Go through the jobs, best first, and start each that may start beside those before it."""
    started: list[Job] = []
    for job in sorted(case.jobs, key=lambda job: (-job.priority, job.run_at, job.place, job.id)):
        if is_allowed(case, [*started, job]):
            started.append(job)
    return started


# ── properties ────────────────────────────────────────────────────────────────────────────────────


@given(cases())
@settings(max_examples=400)
def test_the_choice_is_the_specified_one(case: Case) -> None:
    assert [job.id for job in chosen(case)] == [job.id for job in specified(case)]


@given(cases())
@settings(max_examples=150)
def test_no_limit_is_exceeded(case: Case) -> None:
    assert is_allowed(case, chosen(case))


@given(cases())
@settings(max_examples=150)
def test_jobs_start_by_priority_time_place_and_id(case: Case) -> None:
    started = chosen(case)
    assert started == sorted(started, key=rank)
    assert len({rank(job) for job in case.jobs}) == len(case.jobs), "the order has no ties"


@given(cases())
@settings(max_examples=150)
def test_a_job_that_is_left_out_could_not_have_started(case: Case) -> None:
    """A crowded partition or a full queue hides nothing behind it: capacity that fits is used."""
    started = chosen(case)
    for job in case.jobs:
        assert job in started or not is_allowed(case, [*started, job])


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_a_lease_in_rounds_starts_what_one_round_starts(case: Case, chance: Random) -> None:
    """A store may start some of the chosen jobs, count again, and choose among the rest."""
    started: list[Job] = []
    active, starts = Counter(case.load.active), {name: list(at) for name, at in case.load.starts.items()}
    while True:
        load = Load(active, starts, case.load.paused)
        left = [job for job in case.jobs if job not in started]
        again = choose(left, Capacity(case.wanted, load, NOW, started))
        if not again:
            break
        begun = again[: chance.randint(1, len(again))]
        started += begun
        for job in begun:
            active[job.queue, job.partition or ""] += 1
            starts.setdefault(job.queue, []).append(NOW)
    assert [job.id for job in started] == [job.id for job in chosen(case)]


@given(cases())
@settings(max_examples=100)
def test_more_candidates_than_needed_change_nothing(case: Case) -> None:
    """A store may supply the best candidates of each queue and partition only."""
    most = case.wanted.total
    best: list[Job] = []
    for queue in QUEUES:
        for partition in PARTITIONS:
            group = [job for job in case.jobs if (job.queue, job.partition) == (queue, partition)]
            best += sorted(group, key=rank)[:most]
    assert chosen(case) == chosen(case._replace(jobs=best))


# ── free capacity ─────────────────────────────────────────────────────────────────────────────────


@given(cases())
@settings(max_examples=100)
def test_free_capacity_is_what_one_queue_alone_could_start(case: Case) -> None:
    capacity = Capacity(case.wanted, case.load, NOW)
    for queue in QUEUES:
        for partition in PARTITIONS:
            many = [candidate(number, queue, partition, 0, 0) for number in range(12)]
            alone = choose(many, Capacity(case.wanted, case.load, NOW))
            assert capacity.free_of(queue, partition) == len(alone)


def test_a_paused_queue_has_no_capacity() -> None:
    wanted = Lease(namespace="", worker="w", queues={"a": 3, "b": 3}, total=9, duration=SPAN, tasks=[])
    capacity = Capacity(wanted, Load(paused=["a"]), NOW)
    assert (capacity.free("a"), capacity.free("b")) == (0, 3)


def test_jobs_without_a_partition_share_no_limit() -> None:
    wanted = Lease(
        namespace="", worker="w", queues={"a": 9}, total=9, duration=SPAN, tasks=[], shares={"a": 1}
    )
    jobs = [candidate(number, "a", partition, 0, 0) for number, partition in enumerate(PARTITIONS * 2)]
    started = choose(jobs, Capacity(wanted, Load(), NOW))
    assert Counter(job.partition for job in started) == {None: 2, "": 2, "x": 1, "y": 1}


# ── rates ─────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(1, 5), st.lists(st.integers(0, 15), max_size=9))
@settings(max_examples=150)
def test_the_next_start_is_the_first_moment_at_which_the_rate_allows_one(times: int, ages: list[int]) -> None:
    rate = Rate(times, SPAN)
    starts = sorted(NOW - timedelta(seconds=age) for age in ages)

    def allows(at: datetime) -> bool:
        return sum(start + SPAN > at for start in starts) < times

    found = next_start(rate, starts, NOW)
    assert (found is None) == allows(NOW)
    if found is not None:
        assert found > NOW
        assert allows(found)
        assert not allows(found - timedelta.resolution)
