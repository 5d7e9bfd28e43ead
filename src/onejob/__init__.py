"""Background jobs: the same work is never done twice by accident, the newest request is never lost."""

from onejob.admission import Admission
from onejob.app import App, Explanation, Stats
from onejob.context import Context, current
from onejob.errors import AdmissionBusy, Duplicate, OnejobError
from onejob.fluent import unique
from onejob.job import Job, Retry, State
from onejob.policy import Unique
from onejob.signals import Cancel, Discard, RetryLater, Snooze
from onejob.tasks import Call, Task
from onejob.unique import Outcome
from onejob.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "Admission",
    "AdmissionBusy",
    "App",
    "Call",
    "Cancel",
    "Context",
    "Discard",
    "Duplicate",
    "Explanation",
    "Job",
    "OnejobError",
    "Outcome",
    "Retry",
    "RetryLater",
    "Snooze",
    "State",
    "Stats",
    "Task",
    "Unique",
    "Worker",
    "current",
    "unique",
]
