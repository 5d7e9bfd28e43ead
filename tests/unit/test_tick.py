"""A tick is planned and made by pure functions: what is due, who wins, and what the mark remembers."""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from onejob import Retry, State, Unique
from onejob.core import cron, manual, runs
from onejob.core.decide import Outcome, Request
from onejob.core.job import Job, Trait, alter
from onejob.core.policy import OnConflict
from onejob.core.replay import replay
from onejob.core.step import Changes, Step
from onejob.core.ticks import (
    COUNTED,
    LATE,
    MOST,
    Tick,
    Ticked,
    begin,
    check,
    end,
    last_tick,
    plan,
    reset,
    tick,
)
from onejob.errors import InvalidSchedule
from onejob.stores.working_copy import WorkingCopy

KEY = b"k" * 32
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
FIVE = cron.read("*/5 * * * *")
ZONE = cron.zone_named("UTC")


def request(at: datetime, overlap: Unique | None, *, number: int = 1, digest: bytes = b"same") -> Request:
    job = Job(
        id=f"job-{number}",
        namespace="",
        task="report",
        queue="default",
        state=State.AVAILABLE,
        priority=0,
        run_at=at,
        place=number,
        created_at=at,
        args=b"{}",
        meta=msgspec.json.encode({"tick": at.isoformat()}),
        payload_digest=digest,
        retry=Retry(),
        chain_id=f"job-{number}",
        key=KEY,
    )
    return Request(job, overlap, run_at=at)


class World:
    """A book in which a schedule began at noon."""

    def __init__(self, overlap: Unique | None = None) -> None:
        self.book, self.overlap, self.number = WorkingCopy(), overlap, 0
        self.run(partial(begin, key=KEY), NOON)

    def run(self, act: partial[Changes[Any]], now: datetime, job_id: str | None = None) -> object:
        return self.book.run(Step(act, job_id, KEY), now, lambda _: None)

    def tick(self, minutes: int, since: int, *, digest: bytes = b"same") -> Ticked | None:
        """Make the tick of so many minutes past noon."""
        self.number += 1
        at = NOON + minutes * MINUTE
        asked = request(at, self.overlap, number=self.number, digest=digest)
        one = Tick(at, NOON + since * MINUTE, runs=True)
        answer = self.run(partial(tick, key=KEY, one=one, request=asked), at)
        assert answer is None or isinstance(answer, Ticked)
        return answer

    def outcome(self, minutes: int, since: int, *, digest: bytes = b"same") -> Outcome:
        made = self.tick(minutes, since, digest=digest)
        assert made is not None
        assert made.verdict is not None
        return made.verdict.outcome

    @property
    def jobs(self) -> list[Job]:
        return list(self.book.jobs.values())

    @property
    def last(self) -> datetime | None:
        return last_tick(self.book.marks.get(KEY))


class TestPlanning:
    def test_nothing_is_due_between_ticks(self) -> None:
        assert plan(FIVE, ZONE, "one", NOON, NOON + 4 * MINUTE) == []

    @pytest.mark.parametrize("missed", ["skip", "one", "all"])
    def test_a_tick_on_time_misses_nothing(self, missed: str) -> None:
        now = NOON + 5 * MINUTE + LATE
        assert plan(FIVE, ZONE, missed, NOON, now) == [Tick(NOON + 5 * MINUTE, NOON, runs=True)]  # type: ignore[arg-type]

    def test_skip_passes_over_what_is_late(self) -> None:
        now = NOON + 17 * MINUTE
        assert plan(FIVE, ZONE, "skip", NOON, now) == [Tick(NOON + 15 * MINUTE, NOON, runs=False, missed=3)]

    def test_skip_runs_the_last_if_that_is_on_time(self) -> None:
        now = NOON + 15 * MINUTE
        assert plan(FIVE, ZONE, "skip", NOON, now) == [Tick(now, NOON, runs=True, missed=2)]

    def test_one_stands_for_all(self) -> None:
        now = NOON + 17 * MINUTE
        assert plan(FIVE, ZONE, "one", NOON, now) == [Tick(NOON + 15 * MINUTE, NOON, runs=True, missed=2)]

    def test_all_come_in_their_order_each_after_the_one_before(self) -> None:
        first, second, third = (NOON + n * MINUTE for n in (5, 10, 15))
        assert plan(FIVE, ZONE, "all", NOON, NOON + 17 * MINUTE) == [
            Tick(first, NOON, runs=True),
            Tick(second, first, runs=True),
            Tick(third, second, runs=True),
        ]

    def test_all_is_capped_and_the_rest_is_counted(self) -> None:
        due = plan(FIVE, ZONE, "all", NOON, NOON + timedelta(days=1))
        assert (len(due), due[0].missed, due[-1].at) == (MOST, 288 - MOST, NOON + timedelta(days=1))

    def test_counting_has_an_end(self) -> None:
        [one] = plan(cron.every("1s"), ZONE, "one", NOON, NOON + timedelta(days=365))
        assert one.missed == COUNTED


class TestWinning:
    def test_the_first_wins_and_the_second_writes_nothing(self) -> None:
        world = World()
        assert world.tick(5, since=0) is not None
        assert world.tick(5, since=0) is None
        assert [job.id for job in world.jobs] == ["job-1"]
        assert world.last == NOON + 5 * MINUTE

    def test_a_tick_before_the_mark_is_not_made(self) -> None:
        world = World()
        world.tick(10, since=0)
        assert world.tick(5, since=0) is None
        assert len(world.jobs) == 1

    def test_a_schedule_that_has_begun_does_not_begin_again(self) -> None:
        world = World()
        world.run(partial(begin, key=KEY), NOON + MINUTE)
        assert world.last == NOON

    def test_a_schedule_that_goes_on_forgets_what_was_due(self) -> None:
        world = World()
        world.run(partial(reset, key=KEY), NOON + 7 * MINUTE)
        assert world.last == NOON + 7 * MINUTE
        assert world.tick(5, since=0) is None

    def test_a_clock_that_went_back_brings_no_tick_back(self) -> None:
        world = World()
        world.tick(10, since=0)
        world.run(partial(reset, key=KEY), NOON)
        assert world.last == NOON + 10 * MINUTE

    def test_a_schedule_that_has_ended_ticks_no_more(self) -> None:
        world = World()
        world.run(partial(end), NOON)
        assert world.last is None
        assert world.tick(5, since=0) is None


class TestMeeting:
    def test_without_a_policy_runs_overlap(self) -> None:
        world = World(None)
        assert [world.outcome(5, 0), world.outcome(10, 5)] == [Outcome.CREATED, Outcome.CREATED]
        assert [job.stand for job in world.jobs] == [None, None]
        assert [job.metadata["tick"][11:16] for job in world.jobs] == ["12:05", "12:10"]

    @pytest.mark.parametrize(
        ("conflict", "outcome", "jobs"),
        [("keep", "kept", 1), ("reject", "rejected", 1), ("update", "kept", 1), ("replace", "replaced", 2)],
    )
    def test_a_waiting_job_is_met_by_the_policy(self, conflict: OnConflict, outcome: str, jobs: int) -> None:
        world = World(Unique(on_conflict=conflict))
        assert [world.outcome(5, 0), world.outcome(10, 5)] == [Outcome.CREATED, outcome]
        assert len(world.jobs) == jobs
        assert world.last == NOON + 10 * MINUTE

    def test_another_payload_updates_and_names_its_tick(self) -> None:
        world = World(Unique.coalesce())
        assert [world.outcome(5, 0), world.outcome(10, 5, digest=b"other")] == [
            Outcome.CREATED,
            Outcome.UPDATED,
        ]
        assert [job.metadata["tick"][11:16] for job in world.jobs] == ["12:10"]

    def test_a_retry_keeps_its_budget_through_ticks_with_the_same_payload(self) -> None:
        world = World(Unique.coalesce())
        world.tick(5, since=0)
        world.book.put(alter(world.jobs[0], state=State.RETRYABLE, attempt=3))
        assert world.outcome(10, 5) is Outcome.KEPT
        assert world.jobs[0].attempt == 3

    def test_a_tick_during_a_run_follows_it(self) -> None:
        world = World(Unique.coalesce())
        world.tick(5, since=0)
        world.book.put(alter(world.jobs[0], state=State.ACTIVE))
        assert world.outcome(10, 5) is Outcome.RERUN
        assert world.jobs[1].metadata["tick"][11:16] == "12:10"

    def test_the_answer_names_the_job_as_it_is_stored(self) -> None:
        world = World(Unique(until="start", on_conflict="update"))
        made = world.tick(5, since=0)
        assert made is not None
        assert made.verdict is not None
        assert made.verdict.job == world.jobs[0]
        assert not world.jobs[0].traits & Trait.NEWEST_WINS


class TestTheMark:
    """The schedule's mark stays, whatever becomes of its jobs."""

    @pytest.mark.parametrize("overlap", [None, Unique(), Unique(until="start", on_conflict="update")])
    def test_ended_deleted_pruned_and_replayed_jobs_leave_it(self, overlap: Unique | None) -> None:
        world = World(overlap)
        world.tick(5, since=0)
        [job] = world.jobs
        later = NOON + timedelta(days=400)
        for act in (manual.cancel, replay, manual.cancel, manual.prune):
            world.run(partial(act), later, job.id)
            later += timedelta(days=400)
            assert world.last == NOON + 5 * MINUTE
        assert not world.jobs
        assert world.tick(5, since=0) is None

    def test_no_job_gives_way_to_it(self) -> None:
        world = World(Unique(until="start", on_conflict="replace"))
        world.tick(5, since=0)
        world.run(partial(runs.start, worker="w", lease=MINUTE), NOON, "job-1")
        world.tick(10, since=5)
        world.run(partial(runs.expire), NOON + timedelta(hours=1), "job-1")
        assert world.book.jobs["job-1"].state is State.RETRYABLE


@pytest.mark.parametrize(
    "overlap",
    [
        Unique(by="customer"),
        Unique(key="mine"),
        Unique(queue=True),
        Unique(family="reports"),
        Unique(version="seq"),
        Unique(on_conflict="update", merge={"ids": "union"}),
    ],
)
def test_an_overlap_that_says_what_the_schedule_says_is_refused(overlap: Unique) -> None:
    with pytest.raises(InvalidSchedule, match="ticks of a schedule are the same work"):
        check(overlap, "one")


def test_an_unknown_way_with_missed_ticks_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match=r"missed='some': write one of 'skip', 'one', 'all'\."):
        check(None, "some")
