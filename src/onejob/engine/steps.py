"""Steps that the engine knows more about than their act: admissions and ticks; and the namespace boundary."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from onejob.core import ticks
from onejob.core.decide import Request, Verdict, decide
from onejob.core.step import Changes, Step, View
from onejob.core.ticks import Tick, Ticked
from onejob.engine.sealing import Sealer, act_sealed

T = TypeVar("T")


class AdmissionStep(Step[Verdict], frozen=True, kw_only=True, gc=False):
    """The step that decides about a request."""

    request: Request


class TickStep(Step[Ticked | None], frozen=True, kw_only=True):
    """The step that makes a schedule's tick; `counter` names the schedule where a tally names a job."""

    tick: Tick
    task: str
    counter: str


def admission_step(request: Request, sealer: Sealer | None = None) -> AdmissionStep:
    """Return the step that decides about a request; the job that gets its payload seals it."""
    marks = request.policy is not None and request.policy.marks
    queue = None if request.max_depth is None else (request.job.namespace, request.job.queue)
    act = seal_writes(partial(decide, request), sealer)
    return AdmissionStep(act=act, key=request.job.key, marks=marks, queue=queue, request=request)


def tick_step(
    key: bytes,
    one: Tick,
    request: Request | None,
    *,
    task: str,
    counter: str,
    sealer: Sealer | None = None,
) -> TickStep:
    """Return the step that makes a schedule's tick."""
    act = seal_writes(partial(ticks.tick, key=key, one=one, request=request), sealer)
    return TickStep(act=act, key=key, tick=one, task=task, counter=counter)


def seal_writes(act: Callable[[View], Changes[T]], sealer: Sealer | None) -> Callable[[View], Changes[T]]:
    """Return an act that seals the arguments that it writes, if there is a sealer."""
    return act if sealer is None else partial(act_sealed, act, sealer)


# ── the namespace boundary ────────────────────────────────────────────────────────────────────────

OWN = (AdmissionStep, TickStep)


def confine(step: Step[T], namespace: str) -> Step[T]:
    """Return a step to which jobs of other namespaces are unknown.

    Steps that the engine's own requests and leases made concern the namespace already.
    """
    if step.seen is not None or isinstance(step, OWN):
        return step
    return msgspec.structs.replace(step, act=partial(act_within, step.act, namespace))


def act_within(act: Callable[[View], Changes[T]], namespace: str, view: View) -> Changes[T]:
    """Run an act on what a namespace may see of a view."""
    return act(visible(view, namespace))


def visible(view: View, namespace: str) -> View:
    """Return a view without rows of other namespaces; a job and the rows of its key share one namespace."""
    jobs: tuple[Any, ...] = (view.job, view.holder, view.successor, view.marked)
    if all(job is None or job.namespace == namespace for job in jobs):
        return view
    return View(view.now, depth=view.depth)
