"""Telemetry of an app: OpenTelemetry, Prometheus and Sentry, and the commits that adapters report."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from onejob.app.maintenance import AnyApp, engine_of
from onejob.engine.hooks import Reporter
from onejob.errors import InvalidCall

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry


def instrument_opentelemetry(
    app: AnyApp,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Trace enqueues and runs, and measure them.

    Args:
        app: The app, in the processes that enqueue and in the workers.
        tracer_provider: Where spans go; the global provider if left out.
        meter_provider: Where measurements go; the global provider if left out.

    Raises:
        InvalidCall: `onejob[otel]` is not installed.
    """
    require("opentelemetry", "otel")
    from onejob.observe.telemetry_otel import instrument

    instrument(engine_of(app.maintenance), tracer_provider, meter_provider)


def instrument_prometheus(app: AnyApp, *, registry: CollectorRegistry | None = None) -> None:
    """Count what this process does, in a registry of `prometheus_client`.

    Args:
        app: The app.
        registry: Where the metrics are registered; the client's own registry if left out.

    Raises:
        InvalidCall: `onejob[prometheus]` is not installed.
    """
    require("prometheus_client", "prometheus")
    from prometheus_client import REGISTRY

    from onejob.observe.telemetry_prometheus import instrument

    instrument(engine_of(app.maintenance), REGISTRY if registry is None else registry)


async def render_metrics(app: AnyApp, *, registry: CollectorRegistry | None = None) -> str:
    """Return the figures of an app's store in the text format of Prometheus.

    Args:
        app: The app.
        registry: A registry whose metrics are appended, such as that of `instrument_prometheus`.

    Raises:
        InvalidCall: `onejob[prometheus]` is not installed.
    """
    require("prometheus_client", "prometheus")
    from onejob.observe.telemetry_prometheus import render

    return await render(engine_of(app.maintenance), registry)


def instrument_sentry(app: AnyApp) -> None:
    """Send the error of each dead letter to Sentry: job, task and queue as tags, never arguments.

    Args:
        app: The app, in the workers, after `sentry_sdk.init`.

    Raises:
        InvalidCall: `sentry-sdk` is not installed.
    """
    require("sentry_sdk", "sentry")
    from onejob.observe.telemetry_sentry import instrument

    instrument(engine_of(app.maintenance))


def report_commits(app: AnyApp, reporter: Callable[[Any, Callable[[], None]], bool]) -> None:
    """Let an adapter say when a caller's transaction was committed, so that hooks are called then.

    Args:
        app: The app.
        reporter: Called after each enqueue with `connection=` that has events, with that connection and a
            function without arguments. It returns whether it will call the function after the commit, and
            not at all after a rollback.

    Examples:
        >>> report_commits(app, lambda connection, fire: bool(transaction.on_commit(fire)) or True)
    """
    reporters: list[Reporter] = engine_of(app.maintenance).hooks.reporters
    reporters.append(reporter)


def require(module: str, extra: str) -> None:
    """Raise InvalidCall if a package is missing."""
    if find_spec(module) is None:
        raise InvalidCall(f"{module} is missing: install it with pip install 'onejob[{extra}]'.")
