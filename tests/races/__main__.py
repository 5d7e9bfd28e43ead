"""Race on a store and check the history: python -m tests.races --store sqlite --clients 32 --keys 100."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import click

from tests.races.check import check
from tests.races.history import Enqueue, History, read
from tests.races.load import Plan, Run
from tests.races.scans import Violation
from tests.races.stores import STORES


class Row(NamedTuple):
    """One line of the table."""

    store: str
    admissions: int
    unanswered: int
    operations: int
    racing: float
    checking: float
    samples: int
    holders: int
    violations: int


class Progress:
    """A line on stderr with the phase of the run and how far it is."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._began = time.monotonic()
        self._phase = ""
        self._next = 0.0
        self._live = sys.stderr.isatty()

    def __call__(self, phase: str, detail: str) -> None:
        """Print a new phase at once, else once a second in place, or every ten seconds without a terminal."""
        passed = time.monotonic() - self._began
        if passed >= self._next or phase != self._phase:
            self._phase = phase
            self._next = passed + (1 if self._live else 10)
            line = f"{self._store}: {passed:.0f} s: {phase} {detail}"
            click.echo(line.ljust(70) + ("\r" if self._live else "\n"), err=True, nl=False)


def race(store: str, plan: Plan) -> tuple[Row, History, list[Violation]]:
    """Run a plan and check what was recorded."""
    began, progress = time.monotonic(), Progress(store)
    Run(plan, progress).play()
    played = time.monotonic()
    history = read(plan.folder)
    violations = check(history, lambda key, worlds: progress("checking", f"{key}: {worlds:,} worlds"))
    checked = time.monotonic()
    enqueued = [op for _, op in history.operations if isinstance(op.ask, Enqueue)]
    row = Row(
        store=store,
        admissions=len(enqueued),
        unanswered=sum(op.unknown for op in enqueued),
        operations=sum(map(len, history.keys.values())),
        racing=played - began,
        checking=checked - played,
        samples=len(history.samples),
        holders=sum(len(sample.holders) for sample in history.samples),
        violations=len(violations),
    )
    return row, history, violations


def report(store: str, history: History, violations: list[Violation], *, verbose: bool) -> None:
    """Print what was found, and with `verbose` how often each task gave each answer."""
    for violation in violations[:20]:
        click.echo(f"{store}: {violation}")
    answers: Counter[tuple[str, str]] = Counter()
    for key, op in history.operations if verbose else ():
        if isinstance(op.ask, Enqueue):
            answers[key.partition("/")[0], getattr(op.answer, "outcome", "unanswered")] += 1
    for (task, outcome), number in sorted(answers.items()):
        click.echo(f"  {task:10} {outcome:10} {number:9,}")


def table(rows: list[Row]) -> str:
    """Return rows under their headings."""
    cells = [
        Row._fields,
        *([row.store, f"{row.admissions:,}", *(f"{cell:,.0f}" for cell in row[2:])] for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in cells)


@click.command()
@click.option("--store", "stores", multiple=True, type=click.Choice(list(STORES)), help="Default: all.")
@click.option("--url", help="Use this existing, empty store instead.")
@click.option("--clients", default=32, show_default=True, help="Processes that enqueue.")
@click.option("--keys", default=100, show_default=True)
@click.option("--admissions", default=200_000, show_default=True, help="Requests per store.")
@click.option("--seconds", default=1800.0, show_default=True, help="When clients stop at the latest.")
@click.option("--workers", default=3, show_default=True, help="Processes that run jobs.")
@click.option("--worker-kills", default=10, show_default=True)
@click.option("--client-kills", default=0, show_default=True, help="Counters are compared only without any.")
@click.option("--seed", type=int, help="Repeat what was drawn; default: a new seed, which is printed.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to keep the history.")
@click.option("--verbose", is_flag=True, help="Print how often each task gave each answer.")
def main(
    stores: tuple[str, ...],
    url: str | None,
    folder: Path | None,
    seed: int | None,
    *,
    verbose: bool,
    **options: Any,
) -> None:
    """Let processes race on few keys, and check every answer that they got."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    click.echo(f"--seed {seed}")
    rows: list[Row] = []
    for store in ["given"] if url else (stores or STORES):
        home = folder / store if folder else Path(tempfile.mkdtemp(prefix="onejob-races-"))
        home.mkdir(parents=True, exist_ok=True)
        with nullcontext(url) if url else STORES[store](home) as opened:
            row, history, violations = race(store, Plan(url=opened, folder=home, seed=seed, **options))
        report(store, history, violations, verbose=verbose)
        rows.append(row)
        if violations:
            click.echo(f"{store}: the history is in {home}")
        elif not folder:
            shutil.rmtree(home)
    click.echo(table(rows))
    sys.exit(any(row.violations or row.admissions < options["admissions"] for row in rows))


if __name__ == "__main__":
    main()
