"""Decided requests, as they are noted to be counted, logged and recorded: with time and caller."""

from __future__ import annotations

import inspect
import sys
from datetime import datetime
from types import FrameType

import msgspec

from onejob.core.decide import DEDUPLICATED, Request, Verdict
from onejob.core.job import Job

INTERNAL = (  # modules that call for others
    *("onejob.", "asyncio.", "concurrent.", "contextlib", "threading"),
    *("click.", "runpy"),  # of the command line
)

OWN_FRAMES = 6  # `find_caller` and those that lie between it and any caller, at least
NO_CALLER = ("", 0)

Caller = tuple[str, int]
"""A file and a line; empty if they are unknown."""


class Decided(msgspec.Struct, frozen=True, gc=False):
    """A request with its verdict."""

    request: Request
    verdict: Verdict
    at: datetime  # by the store's clock

    @property
    def outcome(self) -> str:
        """What happened to it; "shadow:kept" if a shadow policy would have kept it."""
        return outcome_of(self.verdict)


class Absorbed(Decided, frozen=True, gc=False):
    """A request that another job serves, or would if its policy were not a shadow."""

    caller: Caller | None = None  # if callers are recorded
    trace: str = ""  # the OpenTelemetry trace that it belongs to
    in_transaction: bool = False  # the caller's: it counts the request, or is rolled back

    @property
    def serving(self) -> Job:
        """The job that serves it, or would."""
        verdict = self.verdict
        return verdict.job if verdict.shadow is None or verdict.holder is None else verdict.holder


def outcome_of(verdict: Verdict) -> str:
    """Return what happened to a request; "shadow:kept" if a shadow policy would have kept it."""
    return str(verdict.outcome) if verdict.shadow is None else f"shadow:{verdict.shadow}"


def is_absorbed(verdict: Verdict) -> bool:
    """Return whether another request's job serves this request; a full queue serves none."""
    return verdict.outcome in DEDUPLICATED and verdict.refusal != "full"


def counted_outcome(verdict: Verdict) -> str | None:
    """Return the outcome under which a request is counted as absorbed, or None if it is not counted.

    A request that a shadow policy would have absorbed is counted as such, although it was admitted.
    """
    return outcome_of(verdict) if verdict.shadow is not None or is_absorbed(verdict) else None


def find_caller() -> Caller:
    """Return the file and line outside of onejob that led here; empty if there is none."""
    frame = inspect.currentframe()
    for _ in range(OWN_FRAMES):  # to look at them takes longer than to pass over them
        frame = frame and frame.f_back
    return caller_at(frame)


def caller_at(frame: FrameType | None) -> Caller:
    """Return the file and line outside of onejob that led to a frame; empty if there is none."""
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith(INTERNAL):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return NO_CALLER


def current_trace() -> str:
    """Return the id of the current OpenTelemetry trace; empty if there is none, or no OpenTelemetry."""
    telemetry = sys.modules.get("opentelemetry.trace")
    if telemetry is None:
        return ""
    context = telemetry.get_current_span().get_span_context()
    return format(context.trace_id, "032x") if context.is_valid else ""
