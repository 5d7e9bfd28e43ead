"""`onejob why`: what a request would meet or has met, why a job waits, or how it ended."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.apps import URL, app_command, redacted, unusable
from onejob.cli.arguments import Pair, make_call, task_arguments
from onejob.cli.holds import KEY, frees, is_job_id
from onejob.cli.output import compact, emit, facts, number_of, plain, stamp, table, when

if TYPE_CHECKING:
    from onejob import AbsorbedRequest, App, Explanation, Job, Why


@app_command(example="""onejob why shop:app sync_user --args '{"user_id": 42}'""")
@click.argument("what", metavar="TASK|ID|KEY")
@click.option("--compare", metavar="ID", help="Say why job ID was not merged with this one.")
@click.option("--redact", is_flag=True, help="Leave out the values that make the key.")
@task_arguments
async def why(
    app: App,
    *,
    what: str,
    compare: str | None,
    redact: bool,
    pairs: tuple[Pair, ...],
    given: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Explain why a request was or would be absorbed, why a job waits, or how it ended.

    TASK with arguments says what a request would meet, without making it, and what happened to earlier ones.
    ID is a job's id or the beginning of one; KEY is a key of 64 hexadecimal digits. The log of absorbed
    requests answers about the past.
    """
    if compare is not None or KEY.fullmatch(what) or (is_job_id(what) and what not in app.tasks):
        return show_story(await app.why(what, compare), as_json=as_json)
    place = click.get_current_context().params["app"]
    if URL.fullmatch(place):
        raise unusable(
            f"{redacted(place)} names a store, which has no tasks: name the app, or give the ID of a job."
        )
    answer = await app.why(make_call(app.task_named(what), pairs, given))
    ways = ways_to_run(explanation_of(answer, redact=redact), place, [what, *words(pairs, given)])
    if as_json:
        known = {"counted": counts(answer), "log": entries(answer)}
        return emit(document(explanation_of(answer, redact=redact), ways) | known)
    show(explanation_of(answer, redact=redact), ways)
    return show_log(answer.absorbed)


def explanation_of(answer: Why, *, redact: bool) -> Explanation:
    """Return what a request would meet, perhaps without the values that make its key."""
    assert answer.explanation is not None  # a call was asked about
    if not redact:
        return answer.explanation
    return replace(answer.explanation, dimensions=hidden(answer.explanation.dimensions))


def hidden(value: Any) -> Any:
    """Return nested values without those at the ends of the paths."""
    return {name: hidden(inner) for name, inner in value.items()} if isinstance(value, Mapping) else "…"


def show_story(answer: Why, *, as_json: bool) -> None:
    """Print an answer in sentences, and the latest absorbed requests."""
    place = click.get_current_context().params["app"]
    story = [line.replace(" APP", f" {redacted(place)}") for line in answer.sentences]
    if as_json:
        job = None if answer.job is None else answer.job.as_dict()
        return emit({"job": job, "why": story, "counted": counts(answer), "log": entries(answer)})
    click.echo(plain("\n".join(story)))
    return show_log(answer.absorbed)


def counts(answer: Why) -> list[dict[str, Any]]:
    """Return how many requests each job has absorbed, and when first and last, as JSON values."""
    return [
        {"job": job, "count": one.count, "first_at": stamp(one.first_at), "last_at": stamp(one.last_at)}
        for job, one in answer.counted.items()
    ]


def entries(answer: Why) -> list[dict[str, Any]]:
    """Return entries of the log as JSON values."""
    import msgspec

    return [msgspec.to_builtins(entry) for entry in answer.absorbed]


def show_log(absorbed: Sequence[AbsorbedRequest]) -> None:
    """Print the latest absorbed requests, if there are any."""
    if not absorbed:
        return
    click.echo()
    table(
        ("ABSORBED", "OUTCOME", "TIMES", "JOB", "CALLER"),
        [(when(one.at), one.outcome, one.times, one.job, one.line) for one in absorbed],
        yields=("CALLER",),
        empty="",
    )


def words(pairs: Sequence[Pair], given: dict[str, Any] | None) -> list[str]:
    """Return arguments as they were given on the command line."""
    named = [f"{name}={value}" for name, value in pairs]
    return named if given is None else [*named, "--args", compact(given)]


def ways_to_run(explanation: Explanation, place: str, call: Sequence[str]) -> list[str]:
    """Return commands that would make a deduplicated call run now."""
    if not explanation.deduplicated:
        return []
    ways = [shlex.join(["onejob", "enqueue", place, *call, "--force"])]
    if explanation.holder is not None:
        running = ["--force"] if explanation.holder.state == "active" else []
        ways.append(shlex.join(["onejob", "release", place, explanation.holder.id, *running]))
    return ways


def document(explanation: Explanation, ways: Sequence[str]) -> dict[str, Any]:
    """Return an explanation as JSON values."""
    holder, successor = explanation.holder, explanation.successor
    return {
        "outcome": str(explanation.outcome),
        "reason": explanation.reason,
        "policy": explanation.policy,
        "dimensions": explanation.dimensions,
        "key": explanation.key,
        "holder": holder.as_dict() if holder else None,
        "successor": successor.as_dict() if successor else None,
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
    """Return a dimension as JSON, or as Python source if it has no JSON form."""
    try:
        return compact(value)
    except (TypeError, ValueError):
        return repr(value)


def one_line(job: Job | None) -> str | None:
    """Return a job, its state and its age on one line."""
    return None if job is None else f"{job.id}, {job.state}, created {when(job.created_at)}"


def ends(holder: Job | None) -> str | None:
    """Return when a hold ends."""
    if holder is None:
        return None
    return frees(holder) if holder.holds_until is None else f"{when(holder.holds_until)} at the latest"
