"""What chains and blockers cost beside single jobs: enqueued and run by one worker process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.drain import in_a_process
from bench.measure import Pair, Plan, Reading, alternate, at_most
from bench.rows import CHAIN, ROWS
from bench.targets import Target


def chains(plan: Plan, target: Target) -> Iterator[Reading]:
    """Measure chains of ten against single jobs, and a wide fan-in against single jobs."""
    number, wide = plan.size(10_000, 5_000), ROWS["fan-in"].full
    run, run_wide = partial(in_a_process, target, number), partial(in_a_process, target, wide)
    chained = alternate(plan, lambda: run("chains"), lambda: run("single"))
    joined = alternate(plan, lambda: run_wide("fan-in"), lambda: run_wide("single"))
    yield cost(f"a job in a chain of {CHAIN}, {target.label}", chained, 1.3)
    yield cost(f"a job in a fan-in of {wide:,}, {target.label}", joined, 1.5)


def cost(name: str, rates: Pair, bar: float) -> Reading:
    """Judge the time per job, from rates."""
    pair = Pair(1000 / rates.ours, 1000 / rates.reference, 1 / rates.ratio)
    return at_most(name, pair, bar, against="single")
