"""Background jobs: the same work is never done twice by accident, the newest request is never lost."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onejob.admission import Admission
    from onejob.app import App, Explanation, Stats
    from onejob.chains import Chain, batch, chain, group
    from onejob.context import Context, current
    from onejob.decide import Outcome
    from onejob.errors import AdmissionBusy, Duplicate, OnejobError
    from onejob.fluent import unique
    from onejob.job import Job, Replay, Retry, State
    from onejob.letters import DeadGroup
    from onejob.policy import Unique
    from onejob.schedules import Schedule
    from onejob.signals import Cancel, Discard, RetryLater, Snooze
    from onejob.tasks import Call, Task
    from onejob.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "Admission",
    "AdmissionBusy",
    "App",
    "Call",
    "Cancel",
    "Chain",
    "Context",
    "DeadGroup",
    "Discard",
    "Duplicate",
    "Explanation",
    "Job",
    "OnejobError",
    "Outcome",
    "Replay",
    "Retry",
    "RetryLater",
    "Schedule",
    "Snooze",
    "State",
    "Stats",
    "Task",
    "Unique",
    "Worker",
    "batch",
    "chain",
    "current",
    "group",
    "unique",
]

_HOMES = {
    "admission": ("Admission",),
    "app": ("App", "Explanation", "Stats"),
    "chains": ("Chain", "batch", "chain", "group"),
    "context": ("Context", "current"),
    "decide": ("Outcome",),
    "errors": ("AdmissionBusy", "Duplicate", "OnejobError"),
    "fluent": ("unique",),
    "job": ("Job", "Replay", "Retry", "State"),
    "letters": ("DeadGroup",),
    "policy": ("Unique",),
    "schedules": ("Schedule",),
    "signals": ("Cancel", "Discard", "RetryLater", "Snooze"),
    "tasks": ("Call", "Task"),
    "worker": ("Worker",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that `import onejob` costs next to nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'onejob' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"onejob.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
