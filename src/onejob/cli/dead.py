"""`onejob dead` and `replay`: dead letters."""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onejob.cli.apps import app_command
from onejob.cli.arguments import Pair, fitting
from onejob.cli.enqueue import show
from onejob.cli.jobs import tries
from onejob.cli.options import read_duration, read_object, read_pair
from onejob.cli.output import away, emit, job_document, number_of, table
from onejob.errors import InvalidCall, OnejobError

if TYPE_CHECKING:
    from onejob import Admission, App, DeadGroup, Job
    from onejob.letters import Which

F = TypeVar("F", bound=Callable[..., Any])
TOGETHER = 100  # letters that share a commit
MEANINGS = {
    "created": "available again",
    "kept": "left where they are, for the same work is already under way",
    "stale": "left where they are, for a newer version has been admitted since",
    "refused": "left where they are, for the edit does not fit them or would make them other work",
    "gone": "left alone, for somebody else replayed or removed them meanwhile",
}


def which_letters(function: F) -> F:
    """Let a command be about some dead letters only."""
    options = (
        click.option("--task", help="Of this task."),
        click.option("--queue", help="Of this queue."),
        click.option(
            "--error", metavar="TYPE", help="That died of this type of error, such as TimeoutError."
        ),
        click.option("--message", metavar="TEXT", help="With this in the error's message."),
        click.option(
            "--older-than", type=read_duration, metavar="TIME", help="Dead for so long, such as 2h."
        ),
        click.option(
            "--newer-than", type=read_duration, metavar="TIME", help="Dead for no longer than that."
        ),
    )
    return reduce(lambda command, option: option(command), reversed(options), function)


@app_command(example="onejob dead shop:app --group --newer-than 1d")
@which_letters
@click.option("--group", is_flag=True, help="Count those that died of the same, the most frequent first.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
async def dead(app: App, *, group: bool, limit: int, as_json: bool, **given: Any) -> None:
    """List dead letters, the latest dead first, with the error that ended each."""
    if group:
        return show_groups((await app.dead_groups(**which(given)))[:limit], as_json=as_json)
    found = await app.dead(limit=limit, **which(given))
    if as_json:
        return emit([job_document(job) for job in found])
    rows = [(job.id, job.task, tries(job), away(job.finished_at), last_error(job)) for job in found]
    titles = ("ID", "TASK", "TRIES", "DIED", "LAST ERROR")
    return table(titles, rows, yields=("LAST ERROR", "TASK"), empty="No dead letters.")


def which(given: dict[str, Any]) -> Which:
    """Say which letters are meant, as the app asks for it."""
    chosen: Which = {
        "task": given["task"],
        "queue": given["queue"],
        "error": given["error"],
        "message": given["message"],
        "older_than": given["older_than"],
        "newer_than": given["newer_than"],
    }
    return chosen


def show_groups(groups: Sequence[DeadGroup], *, as_json: bool) -> None:
    """Print letters that died of the same, together."""
    if as_json:
        return emit([asdict(group) for group in groups])
    rows = [
        (
            one.count,
            one.task,
            f"{one.error}: {one.message}",
            away(one.first_at),
            away(one.last_at),
            one.example,
        )
        for one in groups
    ]
    titles = ("LETTERS", "TASK", "ERROR", "FIRST", "LAST", "EXAMPLE")
    return table(titles, rows, yields=("ERROR", "TASK"), empty="No dead letters.")


def last_error(job: Job) -> str:
    """Tell the last error in one line."""
    if not job.failures:
        return job.reason or ""
    return f"{job.failures[-1]['type']}: {job.failures[-1]['message']}"


@app_command(example="onejob replay shop:app --all --task sync_user --error TimeoutError")
@click.argument("job_id", metavar="[ID]", required=False)
@click.option("--all", "everything", is_flag=True, help="Replay every dead letter, or those that are meant.")
@which_letters
@click.option(
    "--set", "pairs", type=read_pair, multiple=True, metavar="NAME=VALUE", help="With this argument instead."
)
@click.option("--args", "edits", type=read_object, metavar="JSON", help="With these arguments instead.")
async def replay(
    app: App,
    *,
    job_id: str | None,
    everything: bool,
    pairs: tuple[Pair, ...],
    edits: dict[str, Any] | None,
    as_json: bool,
    **given: Any,
) -> int | None:
    """Bring a dead letter back to life, or many, perhaps with other arguments.

    A letter whose key is held, or whose version is no longer the newest, stays where it is. An edit
    that would change the key or the version is refused: enqueue such work anew.
    """
    if everything == (job_id is not None) or (any(given.values()) and not everything):
        raise click.UsageError(
            "Name one dead letter by its ID, or write --all, and perhaps --task or another option with that."
        )
    if job_id is None:
        report(await replay_all(app, which(given), pairs, edits), as_json=as_json)
        return None
    task = (await app.job(job_id)).task
    admission = await app.replay(job_id, args=edit(app, task, pairs, edits))
    show(admission, as_json=as_json)
    return 1 if admission.deduplicated else None


def edit(
    app: App, task: str | None, pairs: tuple[Pair, ...], edits: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Read what arguments are to be; None if they stay as they are."""
    if not pairs:
        return edits
    if task is None:
        raise click.UsageError("--set with --all needs --task, which tells what its values are.")
    named = app.task_named(task)
    return (edits or {}) | {name: fitting(named, name, text) for name, text in pairs}


async def replay_all(
    app: App, meant: Which, pairs: tuple[Pair, ...], edits: dict[str, Any] | None
) -> Counter[str]:
    """Replay letters, the latest dead first, so that of two with one key the newest gets it."""
    args = edit(app, meant.get("task"), pairs, edits)
    letters = await app.dead_ids(**meant)
    outcomes: Counter[str] = Counter()
    with progress(len(letters)) as bar:
        for some in portions(letters):
            outcomes.update(outcome(answer) for answer in await app.replay_many(some, args=args))
            bar.update(len(some))
    return outcomes


def portions(letters: Sequence[str]) -> Iterator[Sequence[str]]:
    """Part the letters into groups that share a commit."""
    return (letters[start : start + TOGETHER] for start in range(0, len(letters), TOGETHER))


def outcome(answer: Admission[Any] | OnejobError | None) -> str:
    """Name what became of a letter; that somebody else was faster is an outcome."""
    if isinstance(answer, OnejobError) and not isinstance(answer, InvalidCall):
        raise answer
    if answer is None:
        return "gone"
    return "refused" if isinstance(answer, OnejobError) else str(answer.outcome)


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
