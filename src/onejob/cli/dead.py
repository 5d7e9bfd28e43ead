"""`onejob dead` and `replay`: dead letters."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onejob.cli.apps import app_command, app_named
from onejob.cli.arguments import Pair, read_value
from onejob.cli.enqueue import show
from onejob.cli.holds import release_command
from onejob.cli.jobs import tries
from onejob.cli.options import limit_option, queue_option, read_duration, read_object, read_pair, task_option
from onejob.cli.output import away, emit, number_of, table
from onejob.errors import InvalidCall, OnejobError

if TYPE_CHECKING:
    from onejob import Admission, App, DeadGroup, Job

F = TypeVar("F", bound=Callable[..., Any])
TOGETHER = 100  # letters that share a commit
MEANINGS = {
    "created": "available again",
    "kept": "left where they are, because the same work is already waiting or running",
    "stale": "left where they are, because a newer version has been admitted since",
    "refused": "left where they are, because the edit does not fit them or would make them other work",
    "gone": "left alone, because they were replayed or removed meanwhile",
}


def dead_filters(function: F) -> F:
    """Add filters for dead letters to a command."""
    options = (
        task_option,
        queue_option,
        click.option("--error", metavar="TYPE", help="Only with this type of error, such as TimeoutError."),
        click.option("--message", metavar="TEXT", help="Only with this text in the error's message."),
        click.option(
            "--older-than",
            type=read_duration,
            metavar="TIME",
            help="Dead for at least this long.",
        ),
        click.option(
            "--newer-than", type=read_duration, metavar="TIME", help="Only dead for at most this long."
        ),
    )
    return reduce(lambda command, option: option(command), reversed(options), function)


@app_command(example="onejob dead shop:app --group --newer-than 1d")
@dead_filters
@click.option(
    "--group", is_flag=True, help="Count dead letters with the same error, the most frequent first."
)
@limit_option
async def dead(app: App, *, group: bool, limit: int, as_json: bool, **filters: Any) -> None:
    """List dead letters, newest first, with the error that ended each."""
    if group:
        return show_groups((await app.dead.groups(**filters))[:limit], as_json=as_json)
    found = await app.dead.list(limit=limit, **filters)
    if as_json:
        return emit([job.as_dict() for job in found])
    rows = [(job.id, job.task, tries(job), away(job.finished_at), last_error(job)) for job in found]
    titles = ("ID", "TASK", "TRIES", "DIED", "LAST ERROR")
    return table(titles, rows, yields=("LAST ERROR", "TASK"), empty="No dead letters.")


def show_groups(groups: Sequence[DeadGroup], *, as_json: bool) -> None:
    """Print groups of dead letters."""
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
    """Return the last error in one line."""
    if not job.failures:
        return job.reason or ""
    return f"{job.failures[-1]['type']}: {job.failures[-1]['message']}"


@app_command(example="onejob replay shop:app --all --task sync_user --error TimeoutError")
@click.argument("job_id", metavar="[ID]", required=False)
@click.option("--all", "everything", is_flag=True, help="Replay every dead letter that matches the filters.")
@dead_filters
@click.option(
    "--set", "pairs", type=read_pair, multiple=True, metavar="NAME=VALUE", help="Change this argument."
)
@click.option("--args", "edits", type=read_object, metavar="JSON", help="Change these arguments.")
async def replay(
    app: App,
    *,
    job_id: str | None,
    everything: bool,
    pairs: tuple[Pair, ...],
    edits: dict[str, Any] | None,
    as_json: bool,
    **filters: Any,
) -> int | None:
    """Replay one dead letter or many, perhaps with other arguments.

    A letter whose key is held, or whose version is no longer the newest, stays where it is. An edit
    that would change the key or the version is refused: enqueue such work anew.
    """
    if everything == (job_id is not None) or (any(filters.values()) and not everything):
        raise click.UsageError(
            "Name one dead letter by its ID, or write --all, and perhaps --task or another option with that."
        )
    if job_id is None:
        report(await replay_all(app, filters, pairs, edits), as_json=as_json)
        return None
    task = (await app.job(job_id)).task
    admission = await app.dead.replay(job_id, args=edit(app, task, pairs, edits))
    show(admission, as_json=as_json)
    if admission.deduplicated and not as_json:
        click.echo(choices(admission, job_id))
    return 1 if admission.deduplicated else None


def choices(admission: Admission[Any], letter: str) -> str:
    """Return what can be done about a dead letter that was not replayed."""
    if admission.outcome == "stale":
        return "Enqueue its work anew, with a newer version."
    release = release_command(admission.holder or admission.job, app_named())
    again = shlex.join(["onejob", "replay", app_named(), letter])
    return f"Replay it when that job has ended, or run both: {release} && {again}"


def edit(
    app: App, task: str | None, pairs: tuple[Pair, ...], edits: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Return the changed arguments; None if they stay as they are."""
    if not pairs:
        return edits
    if task is None:
        raise click.UsageError("--set with --all needs --task, whose types decide how values are read.")
    named = app.task_named(task)
    return (edits or {}) | {name: read_value(named, name, text) for name, text in pairs}


async def replay_all(
    app: App, filters: dict[str, Any], pairs: tuple[Pair, ...], edits: dict[str, Any] | None
) -> Counter[str]:
    """Replay dead letters, newest first; of two with one key, the newer gets the key."""
    args = edit(app, filters["task"], pairs, edits)
    letters = await app.dead.ids(**filters)
    outcomes: Counter[str] = Counter()
    with progress(len(letters)) as bar:
        for some in portions(letters):
            outcomes.update(outcome(answer) for answer in await app.dead.replay_many(some, args=args))
            bar.update(len(some))
    return outcomes


def portions(letters: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split dead letters into groups that share a commit."""
    return (letters[start : start + TOGETHER] for start in range(0, len(letters), TOGETHER))


def outcome(answer: Admission[Any] | OnejobError | None) -> str:
    """Return what happened to a dead letter, also to one that has been removed in the meantime."""
    if isinstance(answer, OnejobError) and not isinstance(answer, InvalidCall):
        raise answer
    if answer is None:
        return "gone"
    return "refused" if isinstance(answer, OnejobError) else str(answer.outcome)


def progress(length: int) -> AbstractContextManager[Any]:
    """Return a progress bar, which is shown on a terminal only."""
    hidden = not sys.stderr.isatty()
    return click.progressbar(length=length, label="Replaying", file=sys.stderr, hidden=hidden)


def report(outcomes: Counter[str], *, as_json: bool) -> None:
    """Print how many dead letters had each outcome."""
    if as_json:
        return emit({"total": outcomes.total(), **{name: outcomes[name] for name in MEANINGS}})
    if not outcomes:
        return click.echo("No dead letters.")
    for name, meaning in MEANINGS.items():
        if outcomes[name]:
            click.echo(f"{number_of(outcomes[name], 'dead letter')}: {meaning}.")
    return None
