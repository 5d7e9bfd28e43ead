"""Measure, and print the table."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench import __doc__ as method
from bench import enqueue
from bench.chains import chains
from bench.crowd import crowd
from bench.drain import drain, drain_narrow, limited
from bench.floor import floor
from bench.latency import latency
from bench.machine import Machine, inspect
from bench.measure import Benchmark, Plan, Reading
from bench.report import Progress, as_json, table
from bench.targets import STORES, Target, open_targets

BENCHMARKS = (
    Benchmark("blocking", enqueue.blocking),
    Benchmark("awaited", enqueue.awaited),
    Benchmark("together", enqueue.together),
    Benchmark("duplicates", enqueue.duplicates),
    Benchmark("held", enqueue.held),
    Benchmark("bulk", enqueue.bulk),
    Benchmark("drain", drain),
    Benchmark("drain-8", drain_narrow),
    Benchmark("limited", limited),
    Benchmark("floor", floor),
    Benchmark("chains", chains),
    Benchmark("latency", latency),
    Benchmark("crowd", crowd),
)


def main() -> None:
    """Read the options, measure, print."""
    options = arguments()
    chosen = [one for one in BENCHMARKS if not options.only or one.name in options.only]
    rounds = options.rounds or (3 if options.quick else 7)
    readings, machine = measure(options.store or STORES, chosen, rounds, quick=options.quick)
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
    parser.add_argument("--store", action="append", choices=STORES, help="only this one; may be repeated")
    parser.add_argument("--rounds", type=positive, metavar="N", help="rounds per measurement (7; quick: 3)")
    return parser.parse_args()


def positive(text: str) -> int:
    """Return a number of rounds."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least one round")
    return number


def measure(
    stores: Sequence[str], chosen: Sequence[Benchmark], rounds: int, *, quick: bool
) -> tuple[list[Reading], Machine]:
    """Run the chosen benchmarks on files and servers that are removed afterwards."""
    readings: list[Reading] = []
    folder_of_all = os.environ.get("TMPDIR") or Path.cwd()  # not /tmp, which may be memory
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=folder_of_all) as name:
        folder = Path(name)
        machine = inspect(folder)
        for store in stores:
            with open_targets(store, folder) as found:
                readings += measure_at(found, chosen, rounds, quick=quick)
                servers = (target.software for target in found if target.software)
                machine = replace(machine, servers=(*machine.servers, *servers))
    return readings, machine


def measure_at(
    found: Sequence[Target], chosen: Sequence[Benchmark], rounds: int, *, quick: bool
) -> list[Reading]:
    """Run the benchmarks that each target names."""
    readings: list[Reading] = []
    todo = [(one, target) for one in chosen for target in found if one.name in target.bars]
    progress = Progress(len(todo))
    plan = Plan(rounds, quick, progress.tick, progress.say)
    for benchmark, target in todo:
        progress.enter(f"{benchmark.name} {target.label}")
        try:
            readings += benchmark.run(plan, target)
        except Exception:  # noqa: BLE001 - the others are still measured
            progress.leave()
            traceback.print_exc()
    progress.leave()
    return readings


if __name__ == "__main__":
    main()
