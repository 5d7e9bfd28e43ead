"""Background jobs: the same work is never done twice by accident, the newest request is never lost."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onejob.app.app import App
    from onejob.app.dead_letters import DeadFilter, DeadGroup
    from onejob.app.listing import Searched
    from onejob.app.move import Moved
    from onejob.app.queues import QueueStatus
    from onejob.app.schedules import ScheduleStatus
    from onejob.app.stats import Stats, Times, Timings
    from onejob.app.telemetry import (
        instrument_opentelemetry,
        instrument_prometheus,
        instrument_sentry,
        render_metrics,
        report_commits,
    )
    from onejob.core.decide import Outcome
    from onejob.core.durations import duration, rough, spell
    from onejob.core.fluent import unique
    from onejob.core.histogram import Percentiles
    from onejob.core.job import Job, Replay, Retry, State
    from onejob.core.policy import Unique
    from onejob.engine.absorbed_log import AbsorbedRequest
    from onejob.engine.audit import Release
    from onejob.engine.events import Event, WorkerEvent
    from onejob.engine.log_lines import log_formatter
    from onejob.engine.presence import WorkerStatus
    from onejob.engine.retention import Pruned
    from onejob.engine.sealing import AesGcmCodec, Codec
    from onejob.errors import AdmissionBusy, Duplicate, OnejobError
    from onejob.observe.advice import Advice
    from onejob.observe.compare import Difference
    from onejob.observe.recent import Recent, RecentEvent
    from onejob.observe.why import AbsorbedCount, Why
    from onejob.stores.contract import Finding, Guarantees
    from onejob.tasks.admission import Admission
    from onejob.tasks.call import Call
    from onejob.tasks.chain import Chain
    from onejob.tasks.collection import Tasks
    from onejob.tasks.current import Context, current
    from onejob.tasks.explain import Explanation
    from onejob.tasks.groups import batch, chain, group
    from onejob.tasks.schedule import Schedule
    from onejob.tasks.task import Task
    from onejob.worker.signals import Cancel, Discard, RetryLater, Snooze
    from onejob.worker.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "AbsorbedCount",
    "AbsorbedRequest",
    "Admission",
    "AdmissionBusy",
    "Advice",
    "AesGcmCodec",
    "App",
    "Call",
    "Cancel",
    "Chain",
    "Codec",
    "Context",
    "DeadFilter",
    "DeadGroup",
    "Difference",
    "Discard",
    "Duplicate",
    "Event",
    "Explanation",
    "Finding",
    "Guarantees",
    "Job",
    "Moved",
    "OnejobError",
    "Outcome",
    "Percentiles",
    "Pruned",
    "QueueStatus",
    "Recent",
    "RecentEvent",
    "Release",
    "Replay",
    "Retry",
    "RetryLater",
    "Schedule",
    "ScheduleStatus",
    "Searched",
    "Snooze",
    "State",
    "Stats",
    "Task",
    "Tasks",
    "Times",
    "Timings",
    "Unique",
    "Why",
    "Worker",
    "WorkerEvent",
    "WorkerStatus",
    "batch",
    "chain",
    "current",
    "duration",
    "group",
    "instrument_opentelemetry",
    "instrument_prometheus",
    "instrument_sentry",
    "log_formatter",
    "render_metrics",
    "report_commits",
    "rough",
    "spell",
    "unique",
]

_HOMES = {
    "app.app": ("App",),
    "app.dead_letters": ("DeadFilter", "DeadGroup"),
    "app.listing": ("Searched",),
    "app.move": ("Moved",),
    "app.queues": ("QueueStatus",),
    "app.schedules": ("ScheduleStatus",),
    "app.stats": ("Stats", "Times", "Timings"),
    "app.telemetry": (
        "instrument_opentelemetry",
        "instrument_prometheus",
        "instrument_sentry",
        "render_metrics",
        "report_commits",
    ),
    "core.decide": ("Outcome",),
    "core.durations": ("duration", "rough", "spell"),
    "core.fluent": ("unique",),
    "core.histogram": ("Percentiles",),
    "core.job": ("Job", "Replay", "Retry", "State"),
    "core.policy": ("Unique",),
    "engine.absorbed_log": ("AbsorbedRequest",),
    "engine.audit": ("Release",),
    "engine.presence": ("WorkerStatus",),
    "engine.events": ("Event", "WorkerEvent"),
    "engine.log_lines": ("log_formatter",),
    "engine.retention": ("Pruned",),
    "engine.sealing": ("Codec", "AesGcmCodec"),
    "errors": ("AdmissionBusy", "Duplicate", "OnejobError"),
    "observe.advice": ("Advice",),
    "observe.compare": ("Difference",),
    "observe.recent": ("Recent", "RecentEvent"),
    "observe.why": ("AbsorbedCount", "Why"),
    "stores.contract": ("Finding", "Guarantees"),
    "tasks.admission": ("Admission",),
    "tasks.call": ("Call",),
    "tasks.chain": ("Chain",),
    "tasks.collection": ("Tasks",),
    "tasks.current": ("Context", "current"),
    "tasks.explain": ("Explanation",),
    "tasks.groups": ("batch", "chain", "group"),
    "tasks.schedule": ("Schedule",),
    "tasks.task": ("Task",),
    "worker.signals": ("Cancel", "Discard", "RetryLater", "Snooze"),
    "worker.worker": ("Worker",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that `import onejob` is fast."""
    if name not in _HOME:
        from onejob.core.suggestions import MODULE

        if name in MODULE:  # an ImportError, because `from onejob import …` replaces an AttributeError
            raise ImportError(f"onejob has no {name}: write {MODULE[name]}.", name=__name__)
        raise AttributeError(f"module 'onejob' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"onejob.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
