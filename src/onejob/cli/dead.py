"""`onejob dead` and `replay`: dead letters."""

from __future__ import annotations

import asyncio
import io
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.apps import app_command
from onejob.cli.enqueue import show
from onejob.cli.jobs import tries
from onejob.cli.output import away, emit, job_document, number_of, table
from onejob.errors import InvalidCall, UnknownJob

if TYPE_CHECKING:
    from onejob import App, Job

PAGE = 1000
TOGETHER = 100  # letters that may share a commit
MEANINGS = {
    "created": "available again",
    "kept": "left where they are, for the same work is already under way",
    "stale": "left where they are, for a newer version has been admitted since",
    "gone": "left alone, for somebody else replayed or removed them meanwhile",
}


@app_command(example="onejob dead shop:app --task sync_user")
@click.option("--task", help="Of this task.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
async def dead(app: App, *, task: str | None, limit: int, as_json: bool) -> None:
    """List dead letters, newest first, with the error that ended each."""
    found = await app.dead(task=task, limit=limit)
    if as_json:
        return emit([job_document(job) for job in found])
    rows = [(job.id, job.task, tries(job), away(job.finished_at), last_error(job)) for job in found]
    titles = ("ID", "TASK", "TRIES", "DIED", "LAST ERROR")
    return table(titles, rows, yields=("LAST ERROR", "TASK"), empty="No dead letters.")


def last_error(job: Job) -> str:
    """Tell the last error in one line."""
    if not job.failures:
        return job.reason or ""
    return f"{job.failures[-1]['type']}: {job.failures[-1]['message']}"


@app_command(example="onejob replay shop:app --all --task sync_user")
@click.argument("job_id", metavar="[ID]", required=False)
@click.option("--all", "everything", is_flag=True, help="Replay every dead letter.")
@click.option("--task", help="With --all: of this task only.")
async def replay(
    app: App, *, job_id: str | None, everything: bool, task: str | None, as_json: bool
) -> int | None:
    """Bring a dead letter back to life, or all of them.

    A letter whose key is held, or whose version is no longer the newest, stays where it is.
    """
    if everything == (job_id is not None) or (task and not everything):
        raise click.UsageError(
            "Name one dead letter by its ID, or write --all, and perhaps --task with that."
        )
    if job_id is None:
        report(await replay_all(app, task), as_json=as_json)
        return None
    admission = await app.replay(job_id)
    show(admission, as_json=as_json)
    return 1 if admission.deduplicated else None


async def replay_all(app: App, task: str | None) -> Counter[str]:
    """Replay every letter, newest first, so that of two with one key the newest gets it."""
    letters = await collect(app, task)
    outcomes: Counter[str] = Counter()
    with progress(len(letters)) as bar:
        for some in portions(letters):
            outcomes.update(await asyncio.gather(*(attempt(app, letter) for letter in some)))
            bar.update(len(some))
    return outcomes


async def collect(app: App, task: str | None) -> list[str]:
    """List the ids of all letters before the first is touched."""
    found: list[str] = []
    while page := await app.jobs(state="discarded", task=task, limit=PAGE, offset=len(found)):
        found += [job.id for job in page]
    return found


def portions(letters: Sequence[str]) -> Iterator[Sequence[str]]:
    """Part the letters into groups that may share a commit."""
    return (letters[start : start + TOGETHER] for start in range(0, len(letters), TOGETHER))


async def attempt(app: App, letter: str) -> str:
    """Replay one letter; that somebody else was faster is an outcome."""
    try:
        return str((await app.replay(letter)).outcome)
    except (InvalidCall, UnknownJob):
        return "gone"


def progress(length: int) -> AbstractContextManager[Any]:
    """Show how far long work is, on a terminal."""
    stream = sys.stderr if sys.stderr.isatty() else io.StringIO()
    return click.progressbar(length=length, label="Replaying", file=stream)


def report(outcomes: Counter[str], *, as_json: bool) -> None:
    """Tell how many letters came to what."""
    if as_json:
        return emit({"total": outcomes.total(), **{name: outcomes[name] for name in MEANINGS}})
    if not outcomes:
        return click.echo("No dead letters.")
    for name, meaning in MEANINGS.items():
        if outcomes[name]:
            click.echo(f"{number_of(outcomes[name], 'dead letter')}: {meaning}.")
    return None
