"""Which run the present task or thread belongs to."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from onejob.core.job import Job


class Running(Protocol):
    """A run, as requests made inside it need it."""

    @property
    def job(self) -> Job:
        """The job that runs."""


_running: ContextVar[Running | None] = ContextVar("onejob_running", default=None)


def running() -> Running | None:
    """Return the run of the present task or thread, or None outside of a run."""
    return _running.get()


def set_running(run: Running) -> None:
    """Make this the run of the present task or thread."""
    _running.set(run)
