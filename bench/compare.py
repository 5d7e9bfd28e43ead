"""Compare two source trees of onejob, measured in turn: python -m bench.compare --before PATH_TO_SRC.

Each measurement runs in a process of its own with PYTHONPATH set to one of the trees, in an empty store. In
every round both trees take turns, and the order changes from round to round. The table has the medians of the
rates, and the median of the rounds' ratios, after divided by before: more is better.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.__main__ import positive
from bench.machine import inspect
from bench.measure import Pair, Plan, alternate
from bench.report import Progress, heading
from bench.rows import ROWS
from bench.targets import STORES, Target, open_targets

ROOT = Path(__file__).parents[1]
PATIENCE = 600.0  # seconds for one measurement
HEAD = ("| row | store | before | after | after / before |", "|---|---|--:|--:|--:|")


class Line(NamedTuple):
    """One row of the table."""

    row: str
    target: Target
    rates: Pair


def main() -> None:
    """Read the options, and print each row of the table as it is measured."""
    options = arguments()
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=os.environ.get("TMPDIR") or Path.cwd()) as name:
        folder = Path(name)
        print(heading(inspect(folder), options.rounds))
        print(f"\nbefore: {options.before}\nafter: {options.after}\n")
        print(*HEAD, sep="\n", flush=True)
        for line in compare(options, folder):
            print(markdown(line), flush=True)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--before", type=source_tree, required=True, metavar="PATH", help="the tree to beat")
    parser.add_argument("--after", type=source_tree, default=ROOT / "src", metavar="PATH", help="(this one)")
    parser.add_argument("--only", action="append", choices=ROWS, metavar="NAME", help=", ".join(ROWS))
    parser.add_argument("--store", action="append", choices=STORES, help="only this one; may be repeated")
    parser.add_argument("--rounds", type=positive, default=5, metavar="N", help="rounds per row (5)")
    parser.add_argument("--quick", action="store_true", help="measure less: good for a look, not for a claim")
    return parser.parse_args()


def source_tree(text: str) -> Path:
    """Return the folder that contains the package `onejob`."""
    for path in (Path(text).resolve(), Path(text).resolve() / "src"):
        if (path / "onejob" / "__init__.py").exists():
            return path
    raise argparse.ArgumentTypeError(f"{text} does not contain onejob: name its folder src")


def compare(options: argparse.Namespace, folder: Path) -> Iterator[Line]:
    """Measure every chosen row on every chosen store."""
    for store in options.store or STORES:
        with open_targets(store, folder) as targets:
            progress = Progress(len(targets) * len(options.only or ROWS))
            plan = Plan(options.rounds, options.quick, progress.tick, progress.say)
            for target in targets:
                for row in options.only or ROWS:
                    progress.enter(f"{row} {target.label}")
                    after, before = (
                        Side(plan, target, row, tree) for tree in (options.after, options.before)
                    )
                    try:
                        yield Line(row, target, alternate(plan, after, before))
                    except (RuntimeError, subprocess.TimeoutExpired) as error:
                        print(f"\n{row} {target.label}: {error}", file=sys.stderr)
            progress.leave()


class Side(NamedTuple):
    """One tree's turn at a row."""

    plan: Plan
    target: Target
    row: str
    tree: Path

    def __call__(self) -> float:
        """Run the row in a process of its own and return its rate."""
        number = self.plan.size(ROWS[self.row].full, ROWS[self.row].quick)
        with self.target.empty_store("compare") as url:
            return run(self.tree, self.row, url, number)


def run(tree: Path, row: str, url: str, number: int) -> float:
    """Run a row with the onejob of a tree; raise RuntimeError with its output if it fails."""
    environment = os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "bench.rows", row, url, str(number)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=tree
    )
    if done.returncode:
        raise RuntimeError(f"{row} failed with {tree}:\n{done.stderr[-3000:]}")
    return float(done.stdout)


def markdown(line: Line) -> str:
    """Return one row of the table."""
    store = line.target.label if line.target.software else f"SQLite {line.target.label}"
    rates = line.rates
    return (
        f"| {ROWS[line.row].title} | {store} | {rates.reference:,.0f}/s | {rates.ours:,.0f}/s "
        f"| {rates.ratio:.2f} |"
    )


if __name__ == "__main__":
    main()
