"""OpenTelemetry, Prometheus and Sentry with their real SDKs: what is sent, and that no argument is."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from onejob import (
    AesGcmCodec,
    App,
    Duplicate,
    Retry,
    Unique,
    current,
    instrument_opentelemetry,
    instrument_prometheus,
    instrument_sentry,
    render_metrics,
)
from onejob.http import dashboard
from onejob.testing import drain
from tests.dashboard.shop import Client

ONEJOB = str(Path(sys.executable).with_name("onejob"))
PRIVATE = "ada@example.org"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with App(f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL") as app:
        yield app


# ── OpenTelemetry ─────────────────────────────────────────────────────────────────────────────────


class Telemetry:
    """An app's spans and metrics, in memory."""

    def __init__(self, app: App) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer = tracers.get_tracer("test")
        meters = MeterProvider(metric_readers=[self._reader])
        instrument_opentelemetry(app, tracer_provider=tracers, meter_provider=meters)

    def take(self) -> list[ReadableSpan]:
        """Return the spans that have ended since the last call."""
        spans = list(self._spans.get_finished_spans())
        self._spans.clear()
        return spans

    def points(self) -> dict[str, list[Any]]:
        """Return the data points of every metric."""
        data = self._reader.get_metrics_data()
        assert data is not None
        [scope] = data.resource_metrics[0].scope_metrics
        return {metric.name: list(metric.data.data_points) for metric in scope.metrics}


@pytest.fixture
def telemetry(app: App) -> Telemetry:
    return Telemetry(app)


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


async def test_a_run_is_linked_to_its_request(app: App, telemetry: Telemetry) -> None:
    inside: list[int] = []

    @app.task(queue="mail", unique=Unique(by="to"))
    async def send(to: str) -> str:
        inside.append(get_current_span().get_span_context().span_id)
        return to

    @app.task
    def send_in_thread() -> None:
        inside.append(get_current_span().get_span_context().span_id)

    with telemetry.tracer.start_as_current_span("view") as view:
        job = (await send.enqueue(PRIVATE)).job
    sent, _ = telemetry.take()
    assert (sent.name, sent.kind, sent.status.status_code) == (
        "enqueue mail",
        SpanKind.PRODUCER,
        StatusCode.UNSET,
    )
    assert sent.parent is not None
    assert sent.parent.span_id == view.get_span_context().span_id
    assert job.key is not None
    assert about(sent) == {
        "messaging.system": "onejob",
        "messaging.destination.name": "mail",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.message.id": job.id,
        "onejob.task": "send",
        "onejob.key": job.key.hex(),
        "onejob.outcome": "created",
        "onejob.deduplicated": False,
    }
    await asyncio.to_thread(send_in_thread.enqueue_sync)
    [sent_too] = telemetry.take()
    await drain(app)
    run, run_too = sorted(telemetry.take(), key=lambda span: span.name, reverse=True)
    assert (run.name, run.kind, run.parent, linked(run)) == (
        "run mail",
        SpanKind.CONSUMER,
        None,
        [span_id(sent)],
    )
    assert linked(run_too) == [span_id(sent_too)]
    assert sorted(inside) == sorted([span_id(run), span_id(run_too)])
    assert about(run)["messaging.operation.type"] == "process"
    assert about(run)["messaging.message.id"] == about(run)["messaging.message.conversation_id"] == job.id
    assert PRIVATE not in f"{sent.to_json()} {run.to_json()}"


async def test_a_duplicate_is_marked_and_linked_to_the_winner(app: App, telemetry: Telemetry) -> None:
    @app.task(unique=Unique(by="n"))
    async def keep(n: int) -> None: ...

    @app.task(unique=Unique(by="n", on_conflict="reject"))
    async def reject(n: int) -> None: ...

    winner = (await keep.enqueue(1)).job
    again = await keep.enqueue(1)
    won, lost = telemetry.take()
    assert again.job.id == winner.id
    assert not again.payload_differs  # the trace context is no part of the payload
    assert (about(lost)["onejob.outcome"], about(lost)["onejob.deduplicated"]) == ("kept", True)
    assert about(lost)["messaging.message.id"] == winner.id
    assert linked(lost) == [span_id(won)]
    assert lost.status.status_code is StatusCode.UNSET

    await reject.enqueue(1)
    with pytest.raises(Duplicate):
        await reject.enqueue(1)
    won, lost = telemetry.take()
    assert (about(lost)["onejob.outcome"], linked(lost)) == ("rejected", [span_id(won)])
    assert (lost.status.status_code, lost.events) == (StatusCode.UNSET, ())


async def test_tracing_changes_no_key_and_no_digest(app: App) -> None:
    @app.task(unique=Unique(on_conflict="update", on_mismatch="ignore"))
    async def send(to: str) -> None: ...

    before = (await send.enqueue("a")).job
    telemetry = Telemetry(app)
    with telemetry.tracer.start_as_current_span("view"):
        again = await send.enqueue("a")
    assert str(again.outcome) == "kept"  # equal payload: nothing is written
    assert again.job == before
    await app.cancel(before.id)
    after = (await send.enqueue("a")).job
    assert (after.key, after.payload_digest, after.meta) == (before.key, before.payload_digest, before.meta)
    assert (before.trace, (await app.job(after.id)).trace is None) == (None, False)


async def test_a_batch_has_one_span_to_which_all_its_runs_are_linked(app: App, telemetry: Telemetry) -> None:
    @app.task(unique=Unique(by="n"))
    async def send(n: int) -> None: ...

    await app.enqueue_many([send.call(number % 2) for number in range(5)])
    [sent] = telemetry.take()
    assert about(sent)["messaging.batch.message_count"] == 5
    assert (about(sent)["onejob.outcomes.created"], about(sent)["onejob.outcomes.kept"]) == (2, 3)
    await drain(app)
    assert [linked(run) for run in telemetry.take()] == [[span_id(sent)]] * 2


async def test_a_failed_run_is_an_error_and_a_chain_stays_linked(app: App, telemetry: Telemetry) -> None:
    @app.task(retry=Retry.never())
    async def fail() -> None:
        raise ValueError("no luck")

    @app.task
    async def begin() -> None:
        current().continue_with(fail.call())

    await begin.enqueue()
    [sent] = telemetry.take()
    await drain(app)
    first, second = telemetry.take()
    assert (first.status.status_code, second.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert linked(first) == linked(second) == [span_id(sent)]
    assert about(second)["error.type"] == "ValueError"
    [event] = second.events
    assert (event.name, dict(event.attributes or {})["exception.message"]) == ("exception", "no luck")


async def test_a_sealed_apps_spans_have_no_words_of_an_error(tmp_path: Path) -> None:
    codec = AesGcmCodec(AesGcmCodec.generate_key())
    async with App(f"sqlite:///{tmp_path / 'sealed.db'}", secret="s" * 16, codec=codec) as app:
        telemetry = Telemetry(app)

        @app.task(retry=Retry.never())
        async def fail(mail: str) -> None:
            raise ValueError(mail)

        await fail.enqueue(PRIVATE)
        await drain(app)
        assert PRIVATE not in " ".join(span.to_json() for span in telemetry.take())


async def test_metrics_count_and_measure(app: App, telemetry: Telemetry) -> None:
    active: list[float] = []

    @app.task(unique=Unique(by="n"), retry=Retry.never())
    async def work(n: int) -> None:
        active.extend(point.value for point in telemetry.points()["onejob.active"])
        if n == 1:
            raise ValueError

    for number in (0, 0, 1):
        await work.enqueue(number)
    await drain(app)
    points = telemetry.points()
    counted = {point.attributes["onejob.outcome"]: point.value for point in points["onejob.requests"]}
    assert counted == {"created": 2, "kept": 1}
    ended = {point.attributes["onejob.state"]: point.value for point in points["onejob.ends"]}
    assert ended == {"completed": 1, "discarded": 1}
    assert max(active) >= 1
    assert [point.value for point in points["onejob.active"]] == [0]
    for name, number in (("messaging.process.duration", 2), ("onejob.wait.duration", 2)):
        histograms = [point for point in points[name] if isinstance(point, HistogramDataPoint)]
        assert sum(point.count for point in histograms) == number
        assert all(point.sum >= 0 for point in histograms)


async def test_metrics_show_for_how_long_the_oldest_due_job_waits(app: App, telemetry: Telemetry) -> None:
    @app.task(queue="mail")
    async def work() -> None: ...

    await work.enqueue()
    [point] = telemetry.points()["onejob.oldest_due"]
    assert point.attributes["messaging.destination.name"] == "mail"
    assert 0 <= point.value < 60
    await drain(app)
    assert "onejob.oldest_due" not in telemetry.points()


async def test_a_closed_app_is_not_opened_by_a_collection(app: App, telemetry: Telemetry) -> None:
    @app.task
    async def work() -> None: ...

    await work.enqueue()
    await app.close()
    assert "onejob.oldest_due" not in telemetry.points()


# ── Prometheus ────────────────────────────────────────────────────────────────────────────────────


def read(text: str) -> dict[str, float]:
    """Parse the text format, and return values by name and labels."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    labels = [",".join(f"{name}={value}" for name, value in sorted(one.labels.items())) for one in samples]
    return {f"{one.name}{{{label}}}": one.value for one, label in zip(samples, labels, strict=True)}


def steady(text: str) -> dict[str, float]:
    """Parse the text format, and leave out when it was read and how long jobs waited and ran."""
    changing = ("onejob_read_", "onejob_recent_")
    return {name: value for name, value in read(text).items() if not name.startswith(changing)}


def printed(*arguments: str) -> str:
    """Run a command and return what it prints."""
    return subprocess.run([ONEJOB, *arguments], capture_output=True, text=True, check=True).stdout


async def fill(app: App) -> None:
    @app.task(name='we"ird', unique=Unique(by="n"))
    async def work(n: int) -> None: ...

    for number in (1, 1, 2):
        await work.enqueue(number)
    await drain(app)
    await work.options(delay="1h").enqueue(3)


EXPECTED = {
    'onejob_jobs{queue=default,state=completed,task=we"ird}': 2.0,
    'onejob_jobs{queue=default,state=scheduled,task=we"ird}': 1.0,
    "onejob_keys_waiting{}": 1.0,
    'onejob_absorbed_total{outcome=kept,task=we"ird}': 1.0,
}


async def test_the_figures_of_a_store_are_rendered(app: App) -> None:
    await fill(app)
    found = read(await render_metrics(app))
    times = {name: value for name, value in found.items() if name.startswith("onejob_recent")}
    read_at = found.pop("onejob_read_timestamp_seconds{}")
    assert abs(read_at - datetime.now(UTC).timestamp()) < 60
    assert found.items() - times.items() == EXPECTED.items()
    assert times.keys() == {
        f'onejob_recent_{what}_seconds{{quantile={share},queue=default,task=we"ird}}'
        for what in ("wait", "run")
        for share in (0.5, 0.95, 0.99)
    }
    assert all(0 < value < 60 for value in times.values())


async def test_the_oldest_due_job_is_rendered_by_queue(app: App) -> None:
    @app.task(queue="mail")
    async def work() -> None: ...

    await work.enqueue()
    assert 0 <= read(await render_metrics(app))["onejob_oldest_due_seconds{queue=mail}"] < 60


async def test_what_a_process_does_is_counted(app: App) -> None:
    registry = CollectorRegistry()
    instrument_prometheus(app, registry=registry)
    await fill(app)
    labels = 'queue=default,task=we"ird'
    found = read(generate_latest(registry).decode())
    assert found['onejob_requests_total{outcome=created,queue=default,task=we"ird}'] == 3
    assert found['onejob_requests_total{outcome=kept,queue=default,task=we"ird}'] == 1
    assert found['onejob_ends_total{queue=default,state=completed,task=we"ird}'] == 2
    assert found[f"onejob_run_seconds_count{{{labels}}}"] == 2
    assert found[f"onejob_wait_seconds_count{{{labels}}}"] == 2
    both = steady(await render_metrics(app, registry=registry))
    assert both.items() >= EXPECTED.items()
    assert both.keys() == found.keys() | EXPECTED.keys()


async def test_the_command_prints_the_figures(app: App, tmp_path: Path) -> None:
    await fill(app)
    await app.close()  # so that what it has absorbed is counted in the file
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    assert steady(await asyncio.to_thread(printed, "metrics", url)) == EXPECTED
    samples = json.loads(await asyncio.to_thread(printed, "metrics", url, "--json"))
    assert {"name": "onejob_keys_waiting", "labels": {}, "value": 1.0} in samples


async def test_the_dashboard_serves_the_figures_under_its_guard(app: App) -> None:
    await fill(app)
    client = Client(dashboard(app, token="secret"))
    assert (await client.get("/metrics", accept="text/plain")).status_code == 401
    assert (await client.get("/metrics", host="evil.example")).status_code == 400
    response = await client.get("/metrics", authorization="Bearer secret")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert steady(response.text) == EXPECTED


# ── Sentry ────────────────────────────────────────────────────────────────────────────────────────


class Local(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.sent += [item.payload.json for item in envelope.items if item.type == "event"]


@pytest.fixture
def sentry() -> Iterator[Local]:
    transport = Local()
    client = sentry_sdk.Client(
        dsn="http://key@127.0.0.1/1",
        transport=transport,
        default_integrations=False,  # patches no thread
    )
    with sentry_sdk.isolation_scope():
        sentry_sdk.get_global_scope().set_client(client)
        yield transport
        sentry_sdk.get_global_scope().set_client(None)
        client.close()


async def test_the_exception_of_a_dead_letter_is_sent_without_arguments(app: App, sentry: Local) -> None:
    instrument_sentry(app)

    @app.task(queue="mail", retry=Retry(attempts=2, base=0, jitter=0))
    async def fail(mail: str) -> None:
        raise ValueError("no luck" if mail else "")

    job = (await fail.enqueue(PRIVATE)).job
    await drain(app)
    [event] = sentry.sent
    assert event["tags"] == {
        "onejob.job": job.id,
        "onejob.task": "fail",
        "onejob.queue": "mail",
        "onejob.attempt": "2",
    }
    [error] = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "no luck")
    frames = error["stacktrace"]["frames"]
    assert frames[-1]["function"] == "fail"
    assert not any("vars" in frame for frame in frames)
    assert PRIVATE not in str(event)


async def test_a_dead_letter_without_an_exception_here_is_sent_too(app: App, sentry: Local) -> None:
    instrument_sentry(app)
    first = await app.task(name="a")(len).enqueue("")
    await app.task(name="b")(len).options(after=[first], on_blocker_failure="fail").enqueue("")
    await app.cancel(first.job.id)
    [event] = sentry.sent
    assert event["tags"]["onejob.task"] == "b"
    assert event["exception"]["values"][0]["type"] == "BlockerFailed"
