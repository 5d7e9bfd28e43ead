"""Dead letters: grouped by task and type of error, and replayed one group at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from starlette.requests import Request
from starlette.responses import Response

from onejob import DeadGroup
from onejob.errors import OnejobError
from onejob.http.pages.forms import form_of
from onejob.http.pages.render import go, refuse, render
from onejob.http.pages.state import app_of, state_of
from onejob.http.pages.text import number, plural

SHOWN = 50
MOST = 1000  # dead letters that one action replays


async def dead(request: Request) -> Response:
    """List groups of dead letters, or the letters of one task and error."""
    task, error = request.query_params.get("task"), request.query_params.get("error")
    found = (await state_of(request).sampler.sample()).letters
    groups = [one for one in found.groups if task in {None, one.task} and error in {None, one.error}]
    letters = [
        job
        for job, name in zip(found.newest, found.errors, strict=True)
        if task in {None, job.task} and error in {None, name}
    ]
    return await render(
        request,
        "dead",
        groups=merge(groups, found.messages)[:SHOWN],
        letters=letters[:SHOWN] if task or error else [],
        task=task,
        error=error,
        total=found.total,
        looked_at=len(found.newest),
    )


@dataclass(frozen=True)
class Group:
    """Dead letters of one task and type of error."""

    task: str
    error: str
    count: int
    first_at: datetime
    last_at: datetime
    message: str  # of the newest
    others: int  # how many other messages there are, apart from numbers and ids


def merge(groups: Iterable[DeadGroup], messages: Mapping[str, str]) -> list[Group]:
    """Return groups of task and error, the largest first: those are what is replayed."""
    found: dict[tuple[str, str], list[DeadGroup]] = {}
    for group in groups:
        found.setdefault((group.task, group.error), []).append(group)
    merged = [
        Group(
            task,
            error,
            sum(one.count for one in some),
            min(one.first_at for one in some),
            max(one.last_at for one in some),
            newest_message(some, messages),
            len(some) - 1,
        )
        for (task, error), some in found.items()
    ]
    return sorted(merged, key=lambda one: -one.count)


def newest_message(groups: Iterable[DeadGroup], messages: Mapping[str, str]) -> str:
    """Return the message of the newest dead letter of some groups, whole if it is known."""
    newest = max(groups, key=lambda one: one.last_at)
    return messages.get(newest.example, newest.message)


async def replay_group(request: Request) -> Response:
    """Replay the dead letters of one task and error; those whose key is held stay where they are."""
    form, app = await form_of(request), app_of(request)
    task, error = form.one("task") or None, form.one("error") or None
    try:
        answers = await app.dead.replay_all(limit=MOST, task=task, error=error)
    except OnejobError as problem:
        return refuse(request, "/dead", problem)
    outcomes = Counter(answer.deduplicated for answer in answers)
    kept = (
        f" {plural(outcomes[True], 'dead letter')} stayed, because another job holds the key."
        if outcomes[True]
        else ""
    )
    return go(request, "/dead", f"{number(outcomes[False])} replayed.{kept}", good=not kept)
