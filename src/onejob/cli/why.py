"""`onejob why`: what a request would meet or has met, why a job waits, or how it ended."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.apps import URL, app_command, app_named
from onejob.cli.arguments import Pair, make_call, task_arguments
from onejob.cli.holds import KEY, frees, is_job_id, release_command
from onejob.cli.output import compact, emit, facts, number_of, plain, stamp, table, when

if TYPE_CHECKING:
    from onejob import AbsorbedRequest, App, Explanation, Job, Why


PRIVATE = ("args", "meta", "result")  # fields of a job that have values of the caller
PRIVATE_DIMENSIONS = ("args", "meta", "key")
PAYLOAD = {False: "same", True: "differs"}


@app_command(example="""onejob why shop:app sync_user --args '{"user_id": 42}'""")
@click.argument("what", metavar="TASK|ID|KEY")
@click.option("--compare", metavar="ID", help="Say why job ID was not merged with this one.")
@click.option("--redact", is_flag=True, help="Leave out the values of arguments, metadata and results.")
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
        answer = await app.why(what, compare)
        if KEY.fullmatch(what) and answer.job is None and not answer.absorbed:
            raise click.ClickException(answer.sentences[0])
        return show_story(answer, redact=redact, as_json=as_json)
    place = app_named()
    if URL.fullmatch(place):
        raise click.UsageError(
            f"{place} names a store, which has no tasks: name the app, or the ID of a job."
        )
    answer = await app.why(make_call(app.task_named(what), pairs, given))
    assert answer.explanation is not None  # a call was asked about
    explanation = without_values(answer.explanation) if redact else answer.explanation
    ways = ways_to_run(explanation, place, [what, *words(pairs, given, redact=redact)])
    if as_json:
        known = {"counted": counts(answer), "log": entries(answer)}
        return emit(document(explanation, ways, redact=redact) | known)
    facts({"verdict": explanation.outcome, "because": explanation.reason, **facts_of(explanation, ways)})
    return show_log(answer.absorbed)


def without_values(explanation: Explanation) -> Explanation:
    """Return an explanation without the values that make its key."""
    dimensions = explanation.dimensions
    shown = {name: hidden(dimensions[name]) for name in dimensions.keys() & set(PRIVATE_DIMENSIONS)}
    return replace(explanation, dimensions={**dimensions, **shown}, canonical="")


def hidden(value: Any) -> Any:
    """Return nested values without those at the ends of the paths."""
    return {name: hidden(inner) for name, inner in value.items()} if isinstance(value, Mapping) else "…"


def job_document(job: Job | None, *, redact: bool) -> dict[str, Any] | None:
    """Return a job as JSON values, perhaps without those of the caller."""
    if job is None:
        return None
    document = job.as_dict()
    return document | {name: hidden(document[name]) for name in PRIVATE if redact and document[name]}


def show_story(answer: Why, *, redact: bool, as_json: bool) -> None:
    """Print an answer in sentences, what makes the key and who holds it, and the latest absorbed requests."""
    place = app_named()
    story = [line.replace(" APP", f" {place}") for line in answer.sentences]
    explained = answer.explanation
    if explained is not None and redact:
        explained = without_values(explained)
    ways = [] if answer.difference is not None else ways_for_job(answer, place, redact=redact)
    if as_json:
        found = {"job": job_document(answer.job, redact=redact), "why": story, "counted": counts(answer)}
        found |= {} if explained is None else {"request": document(explained, ways, redact=redact)}
        found |= {"differences": differences(answer, redact=redact)} if answer.difference else {}
        return emit(found | {"log": entries(answer), "to_run_now": ways})
    click.echo(plain("\n".join(story)))
    if answer.difference is not None:
        return show_differences(answer, redact=redact)
    shown = {"to run now": "\n".join(ways) or None} if explained is None else facts_of(explained, ways)
    if any(value is not None for value in shown.values()):
        click.echo()
        facts(shown)
    return show_log(answer.absorbed)


def differences(answer: Why, *, redact: bool) -> list[dict[str, str]]:
    """Return the arguments in which two jobs differ."""
    assert answer.difference is not None  # two jobs were compared
    return [
        {"path": path, "one": hidden(one) if redact else one, "other": hidden(other) if redact else other}
        for path, one, other in answer.difference.arguments
        if one != other
    ]


def show_differences(answer: Why, *, redact: bool) -> None:
    """Print the arguments in which two jobs differ, side by side."""
    assert answer.difference is not None  # two jobs were compared
    one, other = answer.difference.one, answer.difference.other
    if rows := differences(answer, redact=redact):
        click.echo()
        table(
            ("ARGUMENT", one.id, other.id),
            [(row["path"], row["one"] or "missing", row["other"] or "missing") for row in rows],
            yields=(one.id, other.id),
            empty="",
        )


def counts(answer: Why) -> list[dict[str, Any]]:
    """Return how many requests each job has absorbed, and when first and last, as JSON values."""
    return [
        {"job": job, **asdict(one), "first_at": stamp(one.first_at), "last_at": stamp(one.last_at)}
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
        ("ABSORBED", "OUTCOME", "TIMES", "PAYLOAD", "JOB", "CALLER"),
        [
            (when(one.at), one.outcome, one.times, PAYLOAD[one.payload_differs], one.job, caller(one))
            for one in absorbed
        ],
        yields=("CALLER",),
        empty="",
    )
    share = min(one.sampled for one in absorbed)
    if share < 1:
        click.echo(f"At times only {share:.0%} of the requests that differ were logged. Counts are exact.")


def caller(one: AbsorbedRequest) -> str:
    """Return the line, the machine and the process that made a request; empty if they were not recorded."""
    return f"{one.line} on {one.host}:{one.process}".strip() if one.host else ""


def words(pairs: Sequence[Pair], given: dict[str, Any] | None, *, redact: bool) -> list[str]:
    """Return arguments as they were given on the command line, perhaps without their values."""
    named = [f"{name}={'…' if redact else value}" for name, value in pairs]
    return named if given is None else [*named, "--args", compact(hidden(given) if redact else given)]


def ways_to_run(explanation: Explanation, place: str, call: Sequence[str]) -> list[str]:
    """Return commands that would make a deduplicated call run now."""
    if not explanation.deduplicated:
        return []
    ways = [shlex.join(["onejob", "enqueue", place, *call, "--force"])]
    if explanation.holder is not None:
        ways.append(release_command(explanation.holder, place))
    return ways


def ways_for_job(answer: Why, place: str, *, redact: bool) -> list[str]:
    """Return commands that would make a job run now, or run again."""
    job, explained = answer.job, answer.explanation
    if job is None:
        return []
    if job.state in {"scheduled", "retryable"}:
        return [shlex.join(["onejob", "run-now", place, job.id])]
    if explained is None:
        return []
    if job.is_successor and explained.holder is not None:
        return [release_command(explained.holder, place)]
    if job.state in {"completed", "cancelled"}:
        again = [job.task, "--args", compact(hidden(job.arguments) if redact else job.arguments)]
        return ways_to_run(explained, place, again) or [shlex.join(["onejob", "enqueue", place, *again])]
    return []


def document(explanation: Explanation, ways: Sequence[str], *, redact: bool) -> dict[str, Any]:
    """Return an explanation as JSON values."""
    return {
        "outcome": str(explanation.outcome),
        "reason": explanation.reason,
        "policy": explanation.policy,
        "dimensions": explanation.dimensions,
        "canonical": explanation.canonical or None,
        "key": explanation.key,
        "holder": job_document(explanation.holder, redact=redact),
        "successor": job_document(explanation.successor, redact=redact),
        "differs_at": list(explanation.differs_at),
        "frees_at": stamp(explanation.frees_at),
        "absorbed": explanation.absorbed,
        "to_run_now": list(ways),
    }


def facts_of(explanation: Explanation, ways: Sequence[str]) -> dict[str, object]:
    """Return what makes a key, which job holds it and until when, and what to do, by name."""
    dimensions = {
        name: value for name, value in explanation.dimensions.items() if name != "v" and value != ""
    }
    return {
        "rule": explanation.policy,
        "same work": "\n".join(f"{name} = {text(value)}" for name, value in dimensions.items()) or None,
        "canonical": explanation.canonical or None,
        "key": explanation.key,
        "holder": one_line(explanation.holder),
        "successor": one_line(explanation.successor),
        "differs at": ", ".join(explanation.differs_at) or None,
        "frees": ends(explanation.holder),
        "absorbed": number_of(explanation.absorbed, "request") if explanation.holder else None,
        "to run now": "\n".join(ways) or None,
    }


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
