"""Why?: what a request would meet, why a job is in its state, and why two jobs were not merged."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from onejob import App, Difference, Explanation, Task
from onejob.errors import OnejobError, StoreUnavailable
from onejob.http.pages.errors import BadRequest
from onejob.http.pages.render import base_of, render
from onejob.http.pages.search import ID_PART, KEY
from onejob.http.pages.state import app_of

SAID = {
    "created": "start a new job",
    "forced": "start a new job",
    "replaced": "replace the waiting job",
    "kept": "be kept",
    "updated": "update the waiting job",
    "rerun": "become one run after the present one",
    "rejected": "be rejected",
    "stale": "be stale",
}
GROUP = 4  # digits of a key that stand together


async def why(request: Request) -> Response:
    """Answer a question about a call, a job or a key."""
    text = request.query_params.get("q", "").strip()
    pair = request.query_params.get("a", "").strip(), request.query_params.get("b", "").strip()
    app = app_of(request)
    values: dict[str, Any] = {"explained": None, "job": None, "story": [], "difference": None, "problem": ""}
    if KEY.fullmatch(text):
        return RedirectResponse(f"{base_of(request)}/keys/{text.lower()}", 303)
    try:
        if ID_PART.fullmatch(text) and text not in app.tasks:
            values["job"] = await app.job(text.lower())
            values["story"] = (await app.why(values["job"].id)).sentences
        elif text:
            values["explained"] = await explain(app, text)
        if all(pair):
            values["difference"] = await compare(app, *pair)
    except StoreUnavailable:
        raise
    except OnejobError as error:
        values["problem"] = str(error)
    status = 404 if values["problem"] and values["job"] is None and ID_PART.fullmatch(text) else 200
    status = 400 if values["problem"] and status == 200 else status  # noqa: PLR2004 - a question that cannot be read
    return await render(
        request,
        "why",
        status=status,
        q=text,
        a=pair[0],
        b=pair[1],
        tasks=sorted(app.tasks),
        said=SAID,
        grouped=group_digits,
        **values,
    )


async def explain(app: App, text: str) -> tuple[str, dict[str, Any], Explanation]:
    """Return the task, its arguments, and what a request of both would meet."""
    try:
        name, *words = shlex.split(text)
    except ValueError:
        raise BadRequest("A quotation mark is not closed: write the second one, or none.") from None
    if not app.tasks:
        raise BadRequest("This dashboard was started with a URL, which has no tasks: start it with the app.")
    task = app.task_named(name)
    given = read_arguments(task, words)
    return name, given, await task.call_from(given).explain()


def read_arguments(task: Task[..., Any], words: list[str]) -> dict[str, Any]:
    """Return the arguments that are written as name=value, in the types that the task declares."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not re.fullmatch(r"[^\W\d]\w*", name):
            raise BadRequest(f"{word!r} is no argument: write name=value behind the task.")
        found[name] = read_value(task, name, value)
    return found


def read_value(task: Task[..., Any], name: str, text: str) -> Any:
    """Return a value as JSON if the parameter accepts that, else as text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if task.accepts(name, value) else text


async def compare(app: App, one: str, other: str) -> Difference:
    """Return how two jobs differ, and what would have made them the same work."""
    for wanted in (one, other):
        if not ID_PART.fullmatch(wanted):
            raise BadRequest(f"{wanted!r} is no job: give its id, or the beginning of it.")
    difference = (await app.why(one.lower(), other.lower())).difference
    assert difference is not None  # two jobs were compared
    return difference


def group_digits(key: str) -> str:
    """Return the beginning and the end of a key in groups of digits."""
    parts = [key[at : at + GROUP] for at in range(0, len(key), GROUP)]
    return " ".join([*parts[:4], "…", *parts[-2:]])
