"""Read the arguments of `app.reschedule` and `app.run_now`: one job or several, and a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from onejob.core.durations import Duration, duration
from onejob.core.step import Step
from onejob.engine.jobs import rescheduling
from onejob.errors import InvalidCall
from onejob.tasks.admission import id_of
from onejob.tasks.options import is_aware


def is_several(job: object) -> bool:
    """Return whether an argument names several jobs."""
    return isinstance(job, list | tuple)


def read_rescheduling(
    job: Any, at: datetime | None, delay: Duration | None
) -> tuple[list[str], Callable[[Sequence[str]], list[Step[Any]]]]:
    """Return the ids of jobs, which may be short, and what returns the steps that move jobs by their ids.

    Raises:
        InvalidCall: The times have no meaning.
    """
    if (at is None) == (delay is None):
        raise InvalidCall("reschedule(…) needs one time: write at=datetime(…, tzinfo=UTC), or delay=.")
    if at is not None and not is_aware(at):
        raise InvalidCall(f"at={at!r}: write a datetime with a time zone.")
    ids = [id_of(one) for one in (job if is_several(job) else [job])]
    return ids, partial(rescheduling, at=at, delay=None if delay is None else duration(delay))
