"""What makes requests the same work as a job: the part of its arguments that its key is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onejob import App, Call, Job
from onejob.errors import OnejobError
from onejob.http.pages.text import cut, plain, summary

LONGEST = 200  # characters
HIDDEN = {"v", "namespace", "task"}  # dimensions that every key of a task shares


def same_work(app: App, job: Job) -> str:
    """Return the key of a job in clear text: customer_id = 4711; all its arguments if that is not known.

    A task that is unknown here, or has another policy by now, does not say what the key was made of.
    """
    call = call_like(app, job)
    return summary(job) if call is None else cut(clear(call.dimensions), LONGEST) or "one per task"


def call_like(app: App, job: Job, *, force: bool = False) -> Call[Any] | None:
    """Return a call with the arguments and the key of a job; None if its task cannot make it."""
    if job.key is None or job.is_sealed or job.is_tombstone or job.task not in app.tasks:
        return None
    try:
        task = app.tasks[job.task].options(queue=job.queue, meta=job.metadata, force=force)
        call = task.call_from(job.arguments)
        return call if call.key == job.key.hex() else None
    except (OnejobError, TypeError, ValueError):  # the task has other arguments by now
        return None


def clear(dimensions: Mapping[str, Any]) -> str:
    """Return dimensions in one line; arguments by their own names."""
    pairs = [*dimensions.get("args", {}).items()]
    pairs += [(name, value) for name, value in dimensions.items() if name not in {"args", *HIDDEN}]
    return ", ".join(f"{name} = {plain(value)}" for name, value in pairs)
