"""How fast one worker process empties a queue of jobs that do nothing, beside other job systems.

All have everything enqueued before the clock starts, and stop it when the store holds no unfinished job.
A job of onejob is leased, fenced, completed and kept.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from bench.measure import Plan, Reading, alternate, judged, shown
from bench.rows import LIMIT, NARROW, PROCESSES, ROWS, WIDE
from bench.targets import Target

PATIENCE = 300.0


def drain(plan: Plan, target: Target) -> Iterator[Reading]:
    """Measure onejob against its peers, of which the fastest counts; without keys, as peers have none."""
    run = partial(in_a_process, target, plan.size(*target.drained))
    plain = {
        peer: alternate(plan, lambda: run("drain"), lambda: run(peer))  # noqa: B023 - called in this round
        for peer in target.peers
    }
    best = min(plain, key=lambda peer: plain[peer].ratio)
    keyed = alternate(plan, lambda: run("drain-keyed"), lambda: run(best))
    title = f"drain no-ops, {target.label}"
    for peer, pair in plain.items():
        if peer == best:
            yield judged(title, pair, target.bars["drain"], unit="jobs/s", against=peer)
        else:
            yield shown(title, pair, unit="jobs/s", against=peer)
    yield shown(f"drain keyed no-ops, {target.label}", keyed, unit="jobs/s", against=best)


def drain_narrow(plan: Plan, target: Target) -> Iterator[Reading]:
    """Measure a worker of the default concurrency against a wide one."""
    run = partial(in_a_process, target, plan.size(ROWS["drain-8"].full, ROWS["drain-8"].quick))
    pair = alternate(plan, lambda: run("drain-8"), lambda: run("drain"))
    title = f"drain no-ops, concurrency {NARROW}, {target.label}"
    yield judged(title, pair, target.bars["drain-8"], unit="jobs/s", against=f"ours, concurrency {WIDE}")


def limited(plan: Plan, target: Target) -> Iterator[Reading]:
    """Measure a queue with a limit against the same workers without one."""
    run = partial(in_a_process, target, plan.size(ROWS["limited"].full, ROWS["limited"].quick))
    pair = alternate(plan, lambda: run("limited"), lambda: run("unlimited"))
    title = f"drain no-ops, {PROCESSES} workers, limit of {LIMIT}, {target.label}"
    yield judged(title, pair, target.bars["limited"], unit="jobs/s", against="ours, no limit")


def in_a_process(target: Target, number: int, side: str) -> float:
    """Let one side drain in a process of its own, in an empty store, and count what it drained."""
    module = "bench.rows" if side in ROWS else "bench.peers"
    with target.empty_store("drain") as url:
        command = [sys.executable, "-m", module, side, url, str(number)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
        assert side not in ROWS or target.count(url) == number + (side == "fan-in")
    return float(done.stdout)
