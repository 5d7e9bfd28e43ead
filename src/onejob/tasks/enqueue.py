"""Have the engine decide about requests, and answer with admissions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onejob.core.decide import Outcome, Request, Verdict
from onejob.engine.portal import refuse_running_loop
from onejob.errors import Duplicate, MergeFailed, OnejobError, PayloadMismatch, QueueFull
from onejob.tasks.admission import Admission
from onejob.tasks.registry import Registry
from onejob.tasks.request import RequestBuilder
from onejob.tasks.unawaited import Unawaited


async def enqueue_call(
    builder: RequestBuilder, args: tuple[Any, ...], kwargs: Mapping[str, Any], unawaited: Unawaited
) -> Admission[Any]:
    """Admit one call; raise the error that a rejected one means."""
    unawaited.begin()
    request, connection = builder.request(args, kwargs), builder.options.connection
    [verdict] = await builder.engine.admit([request], connection, builder.at_hand, unawaited.caller)
    return answer_request(builder, verdict)


async def enqueue(builder: RequestBuilder, request: Request) -> Admission[Any]:
    """Admit one request; raise the error that a rejected one means."""
    [verdict] = await builder.engine.admit([request], builder.options.connection, builder.at_hand)
    return answer_request(builder, verdict)


def enqueue_sync(builder: RequestBuilder, request: Request) -> Admission[Any]:
    """Blocking variant of `enqueue`; with the caller's connection, it may be called on an event loop."""
    if builder.options.connection is None:
        refuse_running_loop("Task.enqueue")
    [verdict] = builder.engine.admit_sync([request], builder.options.connection, builder.at_hand)
    return answer_request(builder, verdict)


def answer_request(builder: RequestBuilder, verdict: Verdict | OnejobError) -> Admission[Any]:
    """Return the admission of a verdict; raise an error, or the error that a rejected request means."""
    if isinstance(verdict, OnejobError):
        raise verdict
    admission: Admission[Any] = Admission(builder.engine, builder.registry, verdict)
    if verdict.outcome is Outcome.REJECTED:
        raise refusal_of(builder.registry, admission)
    return admission


def admission_of(builder: RequestBuilder, verdict: Verdict | OnejobError) -> Admission[Any]:
    """Return the admission of a verdict; raise an error."""
    if isinstance(verdict, OnejobError):
        raise verdict
    return Admission(builder.engine, builder.registry, verdict)


def admissions_of(
    builders: Sequence[RequestBuilder], verdicts: Sequence[Verdict | OnejobError]
) -> list[Admission[Any]]:
    """Return the admissions of verdicts, in order; raise the first error."""
    return [admission_of(builder, verdict) for builder, verdict in zip(builders, verdicts, strict=True)]


def refusal_of(registry: Registry, admission: Admission[Any]) -> OnejobError:
    """Return the error that a single enqueue raises for a rejected request."""
    match admission.refusal:
        case "mismatch":
            return PayloadMismatch(admission)
        case "merge":
            return MergeFailed(admission.reason)
        case "full":
            queue = admission.job.queue
            return QueueFull(queue, admission.depth or 0, registry.queue(queue).max_depth or 0)
        case _:
            return Duplicate(admission)
