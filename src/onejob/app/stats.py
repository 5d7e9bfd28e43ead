"""An app in numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from onejob.core.histogram import Percentiles, add_up, percentiles
from onejob.core.job import UNSTARTED, State
from onejob.engine.engine import Engine
from onejob.engine.timings import Measured, group, read_longest_due, read_timings
from onejob.stores.queries import Stranded

MOST_LOST = 1000  # jobs that are counted


@dataclass(frozen=True)
class Times:
    """How long jobs took, in seconds.

    Attributes:
        wait: From when a job was due to its start.
        run: From the start of a run to its end; runs that were handed back or lost are left out.
    """

    wait: Percentiles
    run: Percentiles


@dataclass(frozen=True)
class Timings:
    """How long jobs took in a span of time that ends now.

    Attributes:
        by_task: The times of each task.
        by_queue: The times of each queue.
    """

    by_task: Mapping[str, Times]
    by_queue: Mapping[str, Times]


@dataclass(frozen=True)
class Stats:
    """An app in numbers.

    Attributes:
        waiting: How many jobs wait, retries included.
        running: How many jobs run.
        dead: How many dead letters there are.
        keys_waiting: How many keys have a waiting job.
        by_state: How many jobs are in each state.
        by_queue: The same, per queue.
        by_task: The same, per task.
        absorbed: How many requests were absorbed, per task and outcome.
        oldest_due: For how many seconds the job that has been due longest waits to start, per queue; a queue
            without a due job is left out.
        timings: How long jobs waited and ran in the last 5 minutes ("5m") and in the last hour ("1h"), to
            within a tenth. Workers write this every 5 seconds.
        lost: How many jobs wait behind a job that has ended or is gone, so that no worker starts them. There
            must be none; workers repair them, and `doctor` names the first.
    """

    waiting: int
    running: int
    dead: int
    keys_waiting: int
    by_state: Mapping[State, int]
    by_queue: Mapping[str, Mapping[State, int]]
    by_task: Mapping[str, Mapping[State, int]]
    absorbed: Mapping[str, Mapping[str, int]]
    oldest_due: Mapping[str, float]
    timings: Mapping[str, Timings]
    lost: int

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        return asdict(self)


async def read_stats(engine: Engine) -> Stats:
    """Count the jobs and the absorbed requests of the engine's namespace."""
    engine.counters.flush()
    counts = await engine.store.counts(engine.namespace)
    by_state = dict.fromkeys(State, 0)
    by_queue: dict[str, dict[State, int]] = {}
    by_task: dict[str, dict[State, int]] = {}
    for (queue, task, state), number in counts.jobs.items():
        by_state[state] += number
        by_queue.setdefault(queue, dict.fromkeys(State, 0))[state] += number
        by_task.setdefault(task, dict.fromkeys(State, 0))[state] += number
    return Stats(
        waiting=sum(by_state[state] for state in UNSTARTED),
        running=by_state[State.ACTIVE],
        dead=by_state[State.DISCARDED],
        keys_waiting=counts.keys_waiting,
        by_state=by_state,
        by_queue=by_queue,
        by_task=by_task,
        absorbed=await read_absorbed(engine),
        oldest_due=await read_oldest_due(engine),
        timings={window: summarise(found) for window, found in (await read_timings(engine)).items()},
        lost=len(await engine.find(Stranded(namespace=engine.namespace, limit=MOST_LOST))),
    )


async def read_absorbed(engine: Engine) -> dict[str, dict[str, int]]:
    """Return how many requests were absorbed, per task and outcome."""
    absorbed: dict[str, dict[str, int]] = {}
    for tally in await engine.store.tallies(engine.namespace):
        outcomes = absorbed.setdefault(tally.task, {})
        outcomes[tally.outcome] = outcomes.get(tally.outcome, 0) + tally.count
    return absorbed


async def read_oldest_due(engine: Engine) -> dict[str, float]:
    """Return for how many seconds the job that has been due longest waits, per queue."""
    now, found = engine.store.now(), await read_longest_due(engine)
    return {queue: max((now - job.due_since).total_seconds(), 0.0) for queue, job in sorted(found.items())}


def summarise(measured: Sequence[Measured]) -> Timings:
    """Return measurements as percentiles, by task and by queue."""
    by_task, by_queue = group(measured, by_queue=False), group(measured, by_queue=True)
    return Timings(
        {task: times_of(some) for task, some in sorted(by_task.items())},
        {queue: times_of(some) for queue, some in sorted(by_queue.items())},
    )


def times_of(measured: Sequence[Measured]) -> Times:
    """Return the percentiles of several measurements together."""
    waits, runs = add_up(one.waits for one in measured), add_up(one.runs for one in measured)
    return Times(percentiles(waits), percentiles(runs))
