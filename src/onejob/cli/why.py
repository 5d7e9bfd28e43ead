"""`onejob why`: what a request would meet, and why a job waits or how it ended."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.apps import URL, app_command, unusable
from onejob.cli.arguments import Pair, bind, task_arguments
from onejob.cli.holds import JOB_ID, frees
from onejob.cli.output import compact, emit, facts, job_document, number_of, plain, stamp, when
from onejob.cli.story import tell

if TYPE_CHECKING:
    from onejob import App, Explanation, Job


@app_command(example="""onejob why shop:app sync_user --args '{"user_id": 42}'""")
@click.argument("what", metavar="TASK|ID")
@task_arguments
async def why(
    app: App, *, what: str, pairs: tuple[Pair, ...], given: dict[str, Any] | None, as_json: bool
) -> None:
    """Tell what a request of TASK would meet, without making it; or why the job ID waits, or how it ended."""
    if JOB_ID.fullmatch(what):
        return await why_job(app, what, as_json=as_json)
    place = click.get_current_context().params["app"]
    if URL.fullmatch(place):
        raise unusable(f"{place} names a store, which knows no tasks: name the app, or ask about a job's ID.")
    task = app.task_named(what)
    args, kwargs = bind(task, pairs, given)
    explanation = await task.explain(*args, **kwargs)
    ways = ways_to_run(explanation, place, [what, *words(pairs, given)])
    return emit(document(explanation, ways)) if as_json else show(explanation, ways)


async def why_job(app: App, job_id: str, *, as_json: bool) -> None:
    """Tell a job's story."""
    job = await app.job(job_id)
    story = await tell(app, job)
    if as_json:
        return emit({"job": job_document(job), "why": story})
    return click.echo(plain("\n".join(story)))


def words(pairs: Sequence[Pair], given: dict[str, Any] | None) -> list[str]:
    """Write arguments as they were written."""
    named = [f"{name}={value}" for name, value in pairs]
    return named if given is None else [*named, "--args", compact(given)]


def ways_to_run(explanation: Explanation, place: str, call: Sequence[str]) -> list[str]:
    """Tell which commands would make the call run now, if it would not."""
    if not explanation.deduplicated:
        return []
    ways = [shlex.join(["onejob", "enqueue", place, *call, "--force"])]
    if explanation.holder is not None:
        running = ["--force"] if explanation.holder.state == "active" else []
        ways.append(shlex.join(["onejob", "release", place, explanation.holder.id, *running]))
    return ways


def document(explanation: Explanation, ways: Sequence[str]) -> dict[str, Any]:
    """Write an explanation under stable names."""
    holder, successor = explanation.holder, explanation.successor
    return {
        "outcome": str(explanation.outcome),
        "reason": explanation.reason,
        "policy": explanation.policy,
        "dimensions": explanation.dimensions,
        "key": explanation.key,
        "holder": job_document(holder) if holder else None,
        "successor": job_document(successor) if successor else None,
        "frees_at": stamp(explanation.frees_at),
        "absorbed": explanation.absorbed,
        "to_run_now": list(ways),
    }


def show(explanation: Explanation, ways: Sequence[str]) -> None:
    """Print an explanation."""
    dimensions = {
        name: value for name, value in explanation.dimensions.items() if name != "v" and value != ""
    }
    facts(
        {
            "verdict": explanation.outcome,
            "because": explanation.reason,
            "rule": explanation.policy,
            "same work": "\n".join(f"{name} = {text(value)}" for name, value in dimensions.items()) or None,
            "key": explanation.key,
            "holder": one_line(explanation.holder),
            "successor": one_line(explanation.successor),
            "frees": ends(explanation.holder),
            "absorbed": number_of(explanation.absorbed, "request") if explanation.holder else None,
            "to run now": "\n".join(ways) or None,
        }
    )


def text(value: object) -> str:
    """Write a dimension; what JSON cannot say is written as Python does."""
    try:
        return compact(value)
    except (TypeError, ValueError):
        return repr(value)


def one_line(job: Job | None) -> str | None:
    """Name a job, its state and its age."""
    return None if job is None else f"{job.id}, {job.state}, created {when(job.created_at)}"


def ends(holder: Job | None) -> str | None:
    """Tell when a hold ends."""
    if holder is None:
        return None
    return frees(holder) if holder.holds_until is None else f"{when(holder.holds_until)} at the latest"
