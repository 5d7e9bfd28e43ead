"""Prometheus: the figures of a store as text, and counters and histograms of what this process does."""

from __future__ import annotations

from collections import Counter as Sums
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from onejob.core.histogram import percentile
from onejob.engine.engine import Engine
from onejob.engine.events import Event
from onejob.engine.timings import read_longest_due, read_timings

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
LABELS = ("task", "queue")


async def render(engine: Engine, registry: CollectorRegistry | None) -> str:
    """Return the figures of a namespace in the text format of Prometheus, and those of a registry."""
    store = CollectorRegistry(auto_describe=False)
    store.register(Figures(await read_figures(engine)))
    text = generate_latest(store)
    if registry is not None:
        text += generate_latest(registry)
    return text.decode()


class Figures(Collector):
    """Metrics that have been read from a store."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._found


async def read_figures(engine: Engine) -> list[Metric]:
    """Count the jobs and the absorbed requests of a namespace."""
    engine.counters.flush()
    counts = await engine.store.counts(engine.namespace)
    jobs = GaugeMetricFamily("onejob_jobs", "Jobs in the store, by state.", labels=[*LABELS, "state"])
    for (queue, task, state), number in sorted(counts.jobs.items()):
        jobs.add_metric([task, queue, str(state)], number)
    keys = GaugeMetricFamily(
        "onejob_keys_waiting", "Keys that have a waiting job.", value=counts.keys_waiting
    )
    read = GaugeMetricFamily(
        "onejob_read_timestamp_seconds",
        "When these figures were read, by the store's clock.",
        value=engine.store.now().timestamp(),
    )
    return [
        read,
        jobs,
        keys,
        await read_absorbed(engine),
        await read_oldest(engine),
        *await read_times(engine),
    ]


async def read_absorbed(engine: Engine) -> Metric:
    """Return how many requests were absorbed, by task and outcome."""
    sums: Sums[tuple[str, str]] = Sums()
    for tally in await engine.store.tallies(engine.namespace):
        sums[tally.task, tally.outcome] += tally.count
    absorbed = CounterMetricFamily(
        "onejob_absorbed", "Requests that another request's job serves.", labels=["task", "outcome"]
    )
    for (task, outcome), number in sorted(sums.items()):
        absorbed.add_metric([task, outcome], number)
    return absorbed


async def read_oldest(engine: Engine) -> Metric:
    """Return for how long the job of each queue that has been due longest waits."""
    oldest = GaugeMetricFamily(
        "onejob_oldest_due_seconds", "For how long the oldest due job waits to start.", labels=["queue"]
    )
    now = engine.store.now()
    for queue, job in sorted((await read_longest_due(engine)).items()):
        oldest.add_metric([queue], max((now - job.due_since).total_seconds(), 0.0))
    return oldest


async def read_times(engine: Engine) -> list[Metric]:
    """Return how long jobs waited and ran on all workers, in the last five minutes."""
    labels = [*LABELS, "quantile"]
    waits = GaugeMetricFamily(
        "onejob_recent_wait_seconds", "From due to started, in the last 5 minutes.", labels=labels
    )
    runs = GaugeMetricFamily(
        "onejob_recent_run_seconds", "How long runs took, in the last 5 minutes.", labels=labels
    )
    for measured in (await read_timings(engine))["5m"]:
        for family, histogram in ((waits, measured.waits), (runs, measured.runs)):
            for share in (0.5, 0.95, 0.99) if histogram else ():
                family.add_metric([*measured.pair, str(share)], percentile(histogram, share))
    return [waits, runs]


# ── what this process does ────────────────────────────────────────────────────────────────────────


def instrument(engine: Engine, registry: CollectorRegistry) -> None:
    """Count requests and runs by outcome, and measure how long jobs wait and run, in a registry."""
    requests = Counter("onejob_requests", "Requests by outcome.", [*LABELS, "outcome"], registry=registry)
    ends = Counter("onejob_ends", "Ends of jobs, and retries.", [*LABELS, "state"], registry=registry)
    runs = Histogram("onejob_run_seconds", "How long a run took.", LABELS, registry=registry, buckets=SECONDS)
    waits = Histogram(
        "onejob_wait_seconds", "From due to started.", LABELS, registry=registry, buckets=SECONDS
    )

    def count_request(event: Event) -> None:
        requests.labels(event.task, event.queue, str(event.outcome)).inc()

    def measure_wait(event: Event) -> None:
        waits.labels(event.task, event.queue).observe(event.waited or 0.0)

    def count_end(event: Event) -> None:
        ends.labels(event.task, event.queue, event.kind).inc()
        if event.duration is not None:
            runs.labels(event.task, event.queue).observe(event.duration)

    for kind in ("created", "deduplicated"):
        engine.hooks.add(kind, count_request)
    engine.hooks.add("started", measure_wait)
    for kind in ("completed", "retryable", "cancelled", "discarded"):
        engine.hooks.add(kind, count_end)
