"""Measure, and print the table."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import __doc__ as method
from bench import enqueue
from bench.crowd import crowd
from bench.drain import drain
from bench.latency import latency
from bench.machine import Machine, inspect
from bench.measure import Benchmark, Plan, Reading
from bench.redis_store import redis_store
from bench.report import Progress, as_json, table

BENCHMARKS = (
    Benchmark("blocking", enqueue.blocking, 2),
    Benchmark("awaited", enqueue.awaited, 2),
    Benchmark("together", enqueue.together, 1),
    Benchmark("duplicates", enqueue.duplicates, 4),
    Benchmark("bulk", enqueue.bulk, 2),
    Benchmark("drain", drain, 4),
    Benchmark("latency", latency, 1),
    Benchmark("crowd", crowd, 1),
    Benchmark("redis", redis_store, 5),
)


def main() -> None:
    """Read the options, measure, print."""
    options = arguments()
    chosen = [one for one in BENCHMARKS if not options.only or one.name in options.only]
    rounds = options.rounds or (3 if options.quick else 7)
    readings, machine = measure(chosen, rounds, quick=options.quick)
    if options.json:
        print(as_json(readings, machine, rounds=rounds))
    else:
        print(table(readings, machine, rounds=rounds, color=sys.stdout.isatty()))


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=method, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--quick", action="store_true", help="measure less: good for a look, not for a claim")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=positive, metavar="N", help="rounds per measurement (7; quick: 3)")
    return parser.parse_args()


def positive(text: str) -> int:
    """Read a number of rounds."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least one round")
    return number


def measure(chosen: Sequence[Benchmark], rounds: int, *, quick: bool) -> tuple[list[Reading], Machine]:
    """Run the chosen benchmarks on files that are removed afterwards."""
    progress = Progress(sum(benchmark.turns for benchmark in chosen) * rounds * 2)
    readings: list[Reading] = []
    place = os.environ.get("TMPDIR") or Path.cwd()  # not /tmp, which may be memory
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=place) as folder:
        plan = Plan(Path(folder), rounds, quick, progress.tick)
        machine = inspect(plan.folder)
        for benchmark in chosen:
            progress.enter(benchmark.name)
            readings += benchmark.run(plan)
        progress.leave()
    return readings, machine


if __name__ == "__main__":
    main()
