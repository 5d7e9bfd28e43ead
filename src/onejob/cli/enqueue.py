"""`onejob enqueue`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from onejob.cli.apps import app_command
from onejob.cli.arguments import Pair, make_call, task_arguments
from onejob.cli.options import json_or_text, read_duration, read_pair
from onejob.cli.output import compact, emit, facts, paint, plain
from onejob.errors import Duplicate

if TYPE_CHECKING:
    from onejob import Admission, App


@app_command(
    example="onejob enqueue shop:app sync_user user_id=42 --delay 30s", needs_tasks=True, may_be_empty=True
)
@click.argument("task")
@task_arguments
@click.option(
    "--delay", type=read_duration, metavar="DURATION", help="Run after this time at the earliest: 30s, 5m."
)
@click.option("--expires-in", type=read_duration, metavar="DURATION", help="Do not start after this time.")
@click.option("--priority", type=int, help="Higher starts sooner.")
@click.option("--queue", help="Another queue than the task's.")
@click.option("--key", help="An identity of your own, instead of the policy's.")
@click.option("--force", is_flag=True, help="Admit even if the same work is waiting or running.")
@click.option(
    "--meta", type=read_pair, multiple=True, metavar="NAME=VALUE", help="Metadata; may be repeated."
)
@click.option("--wait", is_flag=True, help="Wait for the result and print it.")
async def enqueue(
    app: App,
    *,
    task: str,
    pairs: tuple[Pair, ...],
    given: dict[str, Any] | None,
    meta: tuple[Pair, ...],
    wait: bool,
    as_json: bool,
    **choices: Any,
) -> int | None:
    """Enqueue a call of TASK, and print what happened to the request.

    Values are read as JSON if possible, else as text. A duplicate is an answer, not an error, unless the
    policy rejects it.
    """
    fields = {name: json_or_text(text) for name, text in meta} or None
    call = make_call(app.task_named(task).options(meta=fields, **choices), pairs, given)
    try:
        admission: Admission[Any] = await call.enqueue()
    except Duplicate as refusal:
        show(refusal.admission, as_json=as_json)
        return 1
    if wait and not as_json:
        show(admission, as_json=False)
    outcome = {"result": await admission.result()} if wait else {}
    if as_json or not wait:
        show(admission, as_json=as_json, **outcome)
    else:
        facts({"result": compact(outcome["result"])})
    return None


def show(admission: Admission[Any], *, as_json: bool, **more: Any) -> None:
    """Print what happened to a request."""
    if as_json:
        emit(admission.as_dict() | more)
        return
    click.echo(f"{paint(str(admission.outcome))}  job {admission.job.id}  {admission.job.state}")
    click.echo(plain(admission.reason))
    if admission.key is not None:
        facts({"key": admission.key})
