"""What chains and blockers cost beside single jobs: enqueued and worked off by one worker process.

    python -m bench.chains chained|single|fan-in URL COUNT

does COUNT jobs and prints how many it did per second: in chains of ten, each by itself, or all of them as the
blockers of one more.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from bench.measure import Pair, Plan, Reading, alternate, at_most, timing
from bench.places import Place
from onejob import App, batch, current

STEPS = 10
WIDE = 1000
CONCURRENCY = 500
PATIENCE = 300.0


def chains(plan: Plan, place: Place) -> Iterator[Reading]:
    """Measure chains of ten against single jobs, and a wide fan-in against single jobs."""
    run = partial(in_a_process, place)
    number = plan.size(10_000, 5_000)
    chained = alternate(plan, lambda: run(number, "chained"), lambda: run(number, "single"))
    wide = alternate(plan, lambda: run(WIDE, "fan-in"), lambda: run(WIDE, "single"))
    yield cost(f"a job in a chain of {STEPS}, {place.label}", chained, 1.3)
    yield cost(f"a job in a fan-in of {WIDE:,}, {place.label}", wide, 1.5)


def cost(name: str, rates: Pair, bar: float) -> Reading:
    """Judge the time per job, from rates."""
    pair = Pair(1000 / rates.ours, 1000 / rates.reference, 1 / rates.ratio)
    return at_most(name, pair, bar, against="single")


def in_a_process(place: Place, number: int, side: str) -> float:
    """Let one side work in a process of its own, in an empty store."""
    with place.fresh("chains") as url:
        command = [sys.executable, "-m", "bench.chains", side, url, str(number)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
    return float(done.stdout)


async def work(url: str, number: int, side: str) -> float:
    """Enqueue and work off."""
    async with App(url) as app:

        @app.task
        async def step(left: int) -> int:
            if left:
                current().continue_with(step.call(left - 1))
            return left

        @app.task
        async def last() -> int:
            return len(current().blockers)

        app.migrate()
        with timing() as watch:
            match side:
                case "chained":
                    await app.enqueue_many([step.call(STEPS - 1) for _ in range(number // STEPS)])
                case "single":
                    await app.enqueue_many([step.call(0) for _ in range(number)])
                case "fan-in":
                    await batch(*(step.call(0) for _ in range(number)), on_success=last.call()).enqueue()
            await app.worker(concurrency=CONCURRENCY, drain=True).run()
        done = (await app.stats()).by_state
    assert set(done.values()) == {0, number + (side == "fan-in")}
    return watch.rate(number)


def main() -> None:
    """Run one side and print its rate."""
    side, url, number = sys.argv[1:]
    print(asyncio.run(work(url, int(number), side)))


if __name__ == "__main__":
    main()
