"""Sentry: report the exception of each dead letter, without arguments."""

from __future__ import annotations

import logging
from typing import Any

import sentry_sdk
from sentry_sdk.integrations.logging import ignore_logger
from sentry_sdk.utils import event_from_exception

from onejob.engine.engine import Engine
from onejob.engine.events import Event

WITHOUT_VARIABLES = {"include_local_variables": False}  # a frame's variables are the handler's arguments


def instrument(engine: Engine) -> None:
    """Send the error of each discarded job to Sentry, as an event of its own.

    Sentry's logging integration would send the log line of the same end with the frames' variables, so it is
    told to leave our lines out.
    """
    ignore_logger(logging.getLogger("onejob").name)
    sealed = engine.sealer is not None

    def report(event: Event) -> None:
        with sentry_sdk.new_scope() as scope:
            for name, value in tags_of(event).items():
                scope.set_tag(name, value)
            sentry_sdk.capture_event(sentry_event(event, sealed=sealed))

    engine.hooks.add("discarded", report)


def tags_of(event: Event) -> dict[str, str]:
    """Return what identifies a job."""
    return {
        "onejob.job": event.job.id,
        "onejob.task": event.task,
        "onejob.queue": event.queue,
        "onejob.attempt": str(event.attempt),
    }


def sentry_event(event: Event, *, sealed: bool) -> Any:
    """Return a dead letter as Sentry takes it; the words of a sealed error are left out."""
    if event.exception is not None and not sealed:
        made, _ = event_from_exception(event.exception, client_options=options())
        return made | {"logger": "onejob", "level": "error"}
    error = event.error or {"type": event.reason or "discarded", "message": ""}
    words = "" if sealed else error["message"]
    value = {"type": error["type"], "value": words, "mechanism": {"type": "onejob", "handled": True}}
    return {"logger": "onejob", "level": "error", "exception": {"values": [value]}}


def options() -> dict[str, Any]:
    """Return the client's options, with the variables of frames switched off."""
    return {**sentry_sdk.get_client().options, **WITHOUT_VARIABLES}
