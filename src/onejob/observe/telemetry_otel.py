"""OpenTelemetry: a producer span per enqueue, a consumer span per run that is linked to it, and metrics.

The context of the producer span is stored with the job (`Job.trace`), beside its payload: neither the key nor
the payload digest depends on it.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from opentelemetry import propagate, trace
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider

from onejob.core.decide import Request, Verdict
from onejob.core.job import Job
from onejob.engine.decided import is_absorbed
from onejob.engine.engine import Engine
from onejob.engine.events import Event
from onejob.engine.hooks import Traced
from onejob.engine.timings import read_longest_due
from onejob.errors import OnejobError

SCOPE = "onejob"


def instrument(
    engine: Engine, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None
) -> None:
    """Trace and measure the admissions and runs of an engine."""
    meter = get_meter(SCOPE, meter_provider=meter_provider)
    tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
    engine.hooks.tracing = Spans(tracer, meter, sealed=engine.sealer is not None)
    measure(engine, meter)
    measure_lateness(engine, meter)


# ── spans ─────────────────────────────────────────────────────────────────────────────────────────


class Spans:
    """Encloses admissions and runs in spans, by the conventions for messaging systems."""

    def __init__(self, tracer: Tracer, meter: Meter, *, sealed: bool) -> None:
        self._tracer = tracer
        self._sealed = sealed  # then the words of an error may not be shown
        self._active = meter.create_up_down_counter(
            "onejob.active", unit="{job}", description="Jobs that run in this process."
        )

    @contextmanager
    def send(self, requests: Sequence[Request]) -> Iterator[Sending]:
        """Enclose an admission in a producer span; the requests carry its context."""
        queues = sorted({request.job.queue for request in requests})
        about = of_request(requests[0].job) if len(requests) == 1 else of_batch(requests, queues)
        name = f"enqueue {queues[0]}" if len(queues) == 1 else "enqueue"
        with self._tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=about) as span:
            yield Sending(span, requests)

    @contextmanager
    def run(self, attempt: Traced) -> Iterator[None]:
        """Enclose a run in a consumer span that is linked to its request; an exception fails the span."""
        job = attempt.job
        about = of_run(job)
        by_task = {"onejob.task": job.task, "messaging.destination.name": job.queue}
        self._active.add(1, by_task)
        try:
            with self._tracer.start_as_current_span(
                f"run {job.queue}",
                context=trace.set_span_in_context(trace.INVALID_SPAN),  # each run is a trace of its own
                kind=SpanKind.CONSUMER,
                attributes=about,
                links=links_to(job),
            ) as span:
                yield
                if attempt.exception is not None:
                    self._fail(span, attempt.exception)
        finally:
            self._active.add(-1, by_task)

    def _fail(self, span: Span, error: BaseException) -> None:
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        span.set_attribute("error.type", type(error).__qualname__)
        if not self._sealed:
            span.record_exception(error)


class Sending:
    """Requests that are being admitted inside a producer span."""

    def __init__(self, span: Span, requests: Sequence[Request]) -> None:
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        context = msgspec.json.encode(carrier) if carrier else None
        self.requests = [with_trace(request, context) for request in requests]
        self._span = span

    def decided(self, verdicts: Sequence[Verdict | OnejobError]) -> None:
        """Mark the span with the outcome; a duplicate is linked to the job that serves it, and no error."""
        if not self._span.is_recording():
            return
        decided = [verdict for verdict in verdicts if isinstance(verdict, Verdict)]
        if len(verdicts) == 1 and decided:
            self._mark(decided[0])
        else:
            for outcome, number in Counter(str(verdict.outcome) for verdict in decided).items():
                self._span.set_attribute(f"onejob.outcomes.{outcome}", number)
        for error in (verdict for verdict in verdicts if isinstance(verdict, OnejobError)):
            self._span.set_status(Status(StatusCode.ERROR, type(error).__name__))

    def _mark(self, verdict: Verdict) -> None:
        absorbed = is_absorbed(verdict)
        self._span.set_attribute("onejob.outcome", str(verdict.outcome))
        self._span.set_attribute("onejob.deduplicated", absorbed)
        if verdict.refusal != "full":
            self._span.set_attribute("messaging.message.id", verdict.job.id)
        for link in links_to(verdict.job) if absorbed else ():
            self._span.add_link(link.context, link.attributes)


def with_trace(request: Request, context: bytes | None) -> Request:
    """Return a request whose job carries a trace context."""
    job = msgspec.structs.replace(request.job, trace=context)
    return msgspec.structs.replace(request, job=job)


def links_to(job: Job) -> list[Link]:
    """Return a link to the span in which a job was requested, if it is known."""
    try:
        carrier = msgspec.json.decode(job.trace or b"{}", type=dict[str, str])
    except msgspec.MsgspecError:  # written by a version with another form
        return []
    context = trace.get_current_span(propagate.extract(carrier)).get_span_context()
    return [Link(context, {"messaging.message.id": job.id})] if context.is_valid else []


# ── attributes ────────────────────────────────────────────────────────────────────────────────────


def of_request(job: Job) -> dict[str, Any]:
    """Return what is known of a request before it is decided; never its arguments."""
    return of_job(job) | {"messaging.operation.name": "enqueue", "messaging.operation.type": "send"}


def of_batch(requests: Sequence[Request], queues: Sequence[str]) -> dict[str, Any]:
    """Return what is known of several requests."""
    return {
        "messaging.system": SCOPE,
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": len(requests),
    } | ({"messaging.destination.name": queues[0]} if len(queues) == 1 else {})


def of_run(job: Job) -> dict[str, Any]:
    """Return what a run's span says of its job."""
    return of_job(job) | {
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.message.id": job.id,
        "messaging.message.conversation_id": job.chain_id,
        "onejob.attempt": job.attempt,
    }


def of_job(job: Job) -> dict[str, Any]:
    """Return the attributes that all spans of a job have."""
    about = {"messaging.system": SCOPE, "messaging.destination.name": job.queue, "onejob.task": job.task}
    return about if job.key is None else about | {"onejob.key": job.key.hex()}


# ── metrics ───────────────────────────────────────────────────────────────────────────────────────


def measure(engine: Engine, meter: Meter) -> None:
    """Count requests and runs by outcome, and measure how long jobs wait and run."""
    requests = meter.create_counter("onejob.requests", unit="{request}", description="Requests by outcome.")
    ends = meter.create_counter("onejob.ends", unit="{job}", description="Ends of jobs, and retries.")
    runs = meter.create_histogram("messaging.process.duration", unit="s", description="How long a run took.")
    waits = meter.create_histogram("onejob.wait.duration", unit="s", description="From due to started.")

    def count_request(event: Event) -> None:
        requests.add(1, labels(event) | {"onejob.outcome": str(event.outcome)})

    def measure_wait(event: Event) -> None:
        waits.record(event.waited or 0.0, labels(event))

    def count_end(event: Event) -> None:
        about = labels(event) | {"onejob.state": event.kind}
        ends.add(1, about)
        if event.duration is not None:
            runs.record(event.duration, about | {"messaging.operation.name": "run"})

    for kind in ("created", "deduplicated"):
        engine.hooks.add(kind, count_request)
    engine.hooks.add("started", measure_wait)
    for kind in ("completed", "retryable", "cancelled", "discarded"):
        engine.hooks.add(kind, count_end)


def measure_lateness(engine: Engine, meter: Meter) -> None:
    """Measure for how long the oldest due job of each queue waits, whenever metrics are collected.

    A meter lives as long as the process: it keeps no engine alive, and opens no store that was closed.
    """
    weakly = weakref.ref(engine)

    def read(_options: CallbackOptions) -> Iterable[Observation]:
        engine = weakly()
        if engine is None or not engine.is_used:
            return
        now, found = engine.store.now(), engine.portal.run(read_longest_due(engine))
        for queue, job in found.items():
            seconds = max((now - job.due_since).total_seconds(), 0.0)
            yield Observation(seconds, {"messaging.system": SCOPE, "messaging.destination.name": queue})

    description = "For how long the oldest due job of a queue waits to start."
    meter.create_observable_gauge("onejob.oldest_due", [read], unit="s", description=description)


def labels(event: Event) -> dict[str, Any]:
    """Return the attributes by which a measurement is grouped."""
    return {
        "messaging.system": SCOPE,
        "messaging.destination.name": event.queue,
        "onejob.task": event.task,
    }
