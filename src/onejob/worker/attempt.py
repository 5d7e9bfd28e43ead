"""One attempt: run a handler once, and map its outcome to a Result.

A worker and a child process both use this module. Nothing here raises for what a handler does: a failure is a
result.
"""

from __future__ import annotations

import asyncio
import logging
import random
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import msgspec

from onejob.core.job import Job, State, alter
from onejob.core.runs import Completed, Failed, HandedBack, Result, Settled, Snoozed, Stopped, settle
from onejob.core.step import Changes, Step, View, answering
from onejob.core.suggestions import NO_EXCEPTION, RAISE
from onejob.core.text import storable
from onejob.engine.engine import Engine
from onejob.engine.events import RunStep
from onejob.engine.hooks import Tracing
from onejob.engine.log_lines import about
from onejob.engine.sealing import Sealer, hide, open_args, place_in, unseal
from onejob.errors import CompletionError, NotCommitted, OnejobError, Superseded, Unsealable
from onejob.tasks.continuation import complete_run
from onejob.tasks.current import Context, Finished, read_finished
from onejob.tasks.declaration import Declaration
from onejob.tasks.edit import edit_job
from onejob.tasks.options import Options
from onejob.tasks.registry import Registry
from onejob.tasks.request import RequestBuilder
from onejob.tasks.running import set_running
from onejob.tasks.signature import encode, misfit
from onejob.worker.signals import Cancel, Discard, RetryLater, Snooze
from onejob.worker.threads import HandlerThreads
from onejob.worker.transaction import Transaction

log = logging.getLogger("onejob")
T = TypeVar("T")

Phase = Literal["none", "open", "in doubt", "committed"]
"""How a transaction of the run stands; in doubt: it has completed the job if it was committed."""

StopReason = Literal["cancelled", "lost", "stopping"]

RunHandler = Callable[["Attempt"], Awaitable[Result]]

NO_STATE: Mapping[str, Any] = MappingProxyType({})
LONGEST_TEXT = 10_000  # characters of a message or a traceback that are stored
UNREADABLE_MESSAGE = "<its message cannot be read>"


class WrongArgument(ValueError):
    """A stored argument does not have the type that the task declares; a retry would not change that."""


class Attempt:
    """The state of one run, which handlers reach through `context`."""

    __slots__ = (
        *("blockers", "completion", "context", "continuation", "deadline", "engine", "exception"),
        *("is_stopping", "job", "on_commit", "phase", "progress", "registry", "returned", "settled", "state"),
    )

    def __init__(
        self,
        engine: Engine,
        registry: Registry,
        job: Job,
        deadline: datetime | None = None,
        *,
        on_commit: Callable[[Completed], None] | None = None,
        state: Mapping[str, Any] = NO_STATE,
    ) -> None:
        """Begin an attempt.

        Args:
            engine: The way to the store.
            registry: The tasks.
            job: The job as leased.
            deadline: When its timeout ends it.
            on_commit: Called before a transaction of the run commits the completion that it is given.
            state: What the app's lifespan has opened.
        """
        self.engine = engine
        self.registry = registry
        self.job = job
        self.deadline = deadline
        self.on_commit = on_commit
        self.state = state
        self.exception: BaseException | None = None  # what the handler raised
        self.is_stopping = False  # set on the event loop, read in the handler's thread
        self.progress: bytes | None = None
        self.blockers: tuple[Finished, ...] = ()
        self.continuation: Job | None = None
        self.phase: Phase = "none"
        self.returned: object = None
        self.completion: Completed | None = None  # as the run's own transaction has written it
        self.settled: Job | None = None  # as that transaction has left it
        self.context = Context(engine, self)

    @property
    def task(self) -> Declaration:
        """The task of the job."""
        return self.registry.task(self.job.task)

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the handler's arguments; raise if they cannot be read or do not fit."""
        stored, task = open_args(self.engine.sealer, self.job).arguments, self.task
        try:
            return task.signature.restore(stored)
        except (msgspec.ValidationError, NotImplementedError) as error:
            why = misfit(task.signature, stored, error)
            raise WrongArgument(f"The arguments do not fit {self.job.task}: {why}.") from None

    def show_blockers(self, tails: list[Job]) -> None:
        """Show the handler the chains that the job has waited for, by their last jobs."""
        self.blockers = read_finished(self.engine, self.registry, tails)

    # ── outcomes ──────────────────────────────────────────────────────────────────────────────────

    def complete(self, value: object) -> Completed:
        """Return the result of a handler that returned; raise NotCommitted if its transaction is in doubt."""
        if self.phase == "in doubt":
            raise NotCommitted
        if self.settled is None or self.completion is None:
            return complete_run(self.engine, self.job, value, self.continuation)
        self._warn_of_dropped(value, self.completion)
        return self.completion

    def _warn_of_dropped(self, value: object, completion: Completed) -> None:
        place = place_in(self.job, "result")
        stored = unseal(self.engine.sealer, completion.value or b"null", "The result", place)
        if value is not None and encode(value, "The result", self.engine.max_args) != stored:
            log.warning(
                "job %s (%s) returned a value that is dropped, because its transaction had completed it: "
                "set it inside, with current().returns(value)",
                self.job.id,
                self.job.task,
                extra=about(self.job),
            )

    def fail(self, error: BaseException) -> Result:
        """Return the result of a handler that raised, also if its error cannot be examined."""
        self.exception = error
        try:
            return self._result_of(error)
        except Exception as fault:
            log.exception("the error of job %s cannot be examined", self.job.id, extra=about(self.job))
            return Failed(describe_sealed(fault, self.job, self.engine.sealer))

    def _result_of(self, error: BaseException) -> Result:
        result = result_of_error(error, self.job, self.task.give_up_on, self.engine.sealer)
        if not isinstance(error, RetryLater) or error.changes is None or not isinstance(result, Failed):
            return result
        try:
            edited = self._edit(error.changes)
        except OnejobError as refusal:
            return result_of_error(refusal, self.job, self.task.give_up_on, self.engine.sealer)
        return msgspec.structs.replace(result, payload=(edited.args, edited.payload_digest))

    def _edit(self, changes: Mapping[str, Any]) -> Job:
        """Return the job with other arguments; its key stays, so they must make the same one."""
        builder = RequestBuilder(self.engine, self.registry, self.task, Options())
        if self.job.chain_index:  # the key is that of the chain's first call
            return edit_job(builder, alter(self.job, key=None), changes)
        return edit_job(builder, self.job, changes, keeps_key=True)

    # ── transactions of the run ───────────────────────────────────────────────────────────────────

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction of the run is open."""
        return self.phase == "open"

    @property
    def may_be_completed(self) -> bool:
        """Whether a transaction of the run has completed the job, or may have."""
        return self.phase in {"in doubt", "committed"}

    def transaction(self, connection: Any) -> Transaction:
        """Return a block that completes the job in one transaction with the handler's writes."""
        return Transaction(self, connection)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Allow one transaction at a time, and none after the completion; a rollback restores the state."""
        if self.phase == "open":
            raise CompletionError("transaction() is open already: write on the connection that it gave.")
        if self.phase == "committed":
            raise CompletionError("The job is completed already: do all in one transaction().")
        before = self.phase, self.completion, self.continuation
        self.phase, self.returned = "open", None
        try:
            yield
        except BaseException:
            if self.phase == "open":
                self.phase, self.completion, self.continuation = before
            raise

    def completion_step(self) -> Step[Settled | None]:
        """Return the step that completes the job inside a transaction of the run."""
        self.completion = complete_run(self.engine, self.job, self.returned, self.continuation)
        return self.settlement(settle_once, self.completion, self.progress)

    def await_commit(self) -> None:
        """Note that from here on the job is completed if the transaction is committed."""
        assert self.completion is not None  # completion_step() has made it
        if self.on_commit is not None:
            self.on_commit(self.completion)
        self.phase = "in doubt"

    def commit(self, settled: Job) -> None:
        """Note that the transaction was committed."""
        self.phase, self.settled = "committed", settled

    def own_completion(self) -> Settled:
        """Return what a transaction of the run has committed."""
        assert self.settled is not None  # the caller has looked
        return Settled(self.settled, None if self.completion is None else self.completion.continuation)

    # ── settling ──────────────────────────────────────────────────────────────────────────────────

    def settle_step(self, result: Result, progress: bytes | None, seconds: float) -> Step[Settled | None]:
        """Return the step by which the worker writes the result of a run, which took `seconds`."""
        act: Callable[..., Changes[Settled | None]] = settle
        if self.completion is not None and self.may_be_completed:
            act = partial(settle_in_doubt, completion=self.completion)
        return self.settlement(act, result, progress, seconds)

    def settlement(
        self,
        act: Callable[..., Changes[Settled | None]],
        result: Result,
        progress: bytes | None,
        seconds: float = 0.0,
    ) -> Step[Settled | None]:
        """Return the step by which `act` writes a result, with the job as it was last seen."""
        job = self.job
        write = partial(act, token=job.token, result=result, merge=self.registry.merge, progress=progress)
        return RunStep(write, job.id, seen=job, seconds=seconds, exception=self.exception)

    def keep(self, job: Job) -> None:
        """Remember the job as a later write has left it, so that settling needs no reading."""
        if job.token == self.job.token and job.revision > self.job.revision:
            self.job = job


# ── running ───────────────────────────────────────────────────────────────────────────────────────


def run_attempt(attempt: Attempt, run_handler: RunHandler) -> Awaitable[Result]:
    """Run a handler once and return its result; only CancelledError is raised.

    Args:
        attempt: The attempt.
        run_handler: Runs the handler on the event loop, in a thread or in a process.
    """
    tracing = attempt.engine.hooks.tracing
    return run_entered(attempt, run_handler) if tracing is None else run_traced(attempt, run_handler, tracing)


async def run_traced(attempt: Attempt, run_handler: RunHandler, tracing: Tracing) -> Result:
    """Run a handler inside a span."""
    with tracing.run(attempt):
        return await run_entered(attempt, run_handler)


async def run_entered(attempt: Attempt, run_handler: RunHandler) -> Result:
    """Run a handler inside its context."""
    set_running(attempt.context)
    try:
        if attempt.job.blockers is not None:
            tails = await attempt.engine.tails(attempt.job.awaits)
            attempt.show_blockers([tail for tail in tails if tail is not None])
        result = await run_handler(attempt)
        if isinstance(result, Completed) and result.continuation is not None:
            await refuse_cycle(attempt, result.continuation)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - anything that a handler raises is a result
        return attempt.fail(error)
    return result


async def refuse_cycle(attempt: Attempt, continuation: Job) -> None:
    """Raise BlockerCycle if a run's continuation would wait for its own chain."""
    if continuation.blockers is not None and attempt.settled is None:
        await attempt.engine.refuse_cycle(attempt.job, continuation)


async def call_handler(attempt: Attempt, threads: HandlerThreads) -> Result:
    """Call a handler on the event loop, or in a thread if it is a plain function."""
    (args, kwargs), task, timeout = attempt.arguments(), attempt.task, attempt.job.timeout
    if task.is_async:
        work = task.function(*args, **kwargs)
    else:
        work = threads.run(partial(task.function, *args, **kwargs))
    return attempt.complete(await (work if timeout is None else within_timeout(attempt, work, timeout)))


async def within_timeout(attempt: Attempt, work: Awaitable[T], seconds: float) -> T:
    """Await a run for a limited time; then ask it to stop and raise TimeoutError."""
    timer = asyncio.timeout(seconds)
    try:
        async with timer:
            return await work
    except TimeoutError:
        if not timer.expired():  # the handler's own
            raise
        attempt.is_stopping = True
        raise TimeoutError(f"the run took longer than {seconds:g} s") from None


# ── acts ──────────────────────────────────────────────────────────────────────────────────────────


def settle_once(view: View, **settlement: Any) -> Changes[Settled | None]:
    """Settle a run, but answer None if this run has written its result already.

    A transaction must not be committed twice, also if the answer to its first commit was lost.
    """
    changes = settle(view, **settlement)
    return answering(changes, None) if changes.is_empty else changes


def settle_in_doubt(view: View, *, completion: Completed, **settlement: Any) -> Changes[Settled | None]:
    """Settle a run whose transaction may have completed the job; if it has, answer that completion."""
    changes = settle(view, **settlement)
    answer = changes.answer
    if answer is None or not changes.is_empty or answer.job.state is not State.COMPLETED:
        return changes
    return answering(changes, Settled(answer.job, completion.continuation))


# ── from an exception to a result ─────────────────────────────────────────────────────────────────


def result_of_error(
    error: BaseException, job: Job, give_up_on: tuple[type[BaseException], ...], sealer: Sealer | None
) -> Result:
    """Map a handler's exception to a Result."""
    match error:
        case RetryLater():
            return Failed(describe_sealed(error, job, sealer), after=error.after)
        case Snooze():
            return Snoozed(error.after)
        case Cancel():
            return Stopped(storable(str(error)) or "cancelled by its handler")
        case Discard():
            return Failed(describe_sealed(error, job, sealer), final=True)
        case Superseded():  # the next lease ends the job, unless the newer request is withdrawn before
            return HandedBack()
        case _:
            final = isinstance(error, (WrongArgument, *give_up_on))
            return Failed(describe_sealed(error, job, sealer), final=final, chance=random.random())  # noqa: S311 - jitter


def result_of_cancellation(error: BaseException, stopped_for: StopReason | None) -> Result:
    """Map the CancelledError of a run to a Result, by the reason for which the worker stopped it."""
    match stopped_for:
        case "cancelled":
            return Stopped("cancelled")
        case "lost" | "stopping":
            return HandedBack()
        case None:  # the handler cancelled itself
            return Failed(describe(error))


def describe(error: BaseException) -> dict[str, Any]:
    """Return an error as it is stored, without the values of variables."""
    if type(error) is TypeError and error.args == (NO_EXCEPTION,):
        error.args = (RAISE,)
    text = storable("".join(traceback.format_exception(error)))
    message = message_of(error)[:LONGEST_TEXT]
    return {"type": type(error).__name__, "message": message, "traceback": text[-LONGEST_TEXT:]}


def describe_sealed(error: BaseException, job: Job, sealer: Sealer | None) -> dict[str, Any]:
    """Return an error as it is stored; its texts may quote arguments, so they are sealed like those."""
    described = describe(error)
    if sealer is None or isinstance(error, Unsealable):
        return described
    return hide(sealer, described, place_in(job, "error"), "message", "traceback")


def message_of(error: BaseException) -> str:
    """Return an error's message, or a substitute if it raises."""
    try:
        return storable(str(error))
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        return UNREADABLE_MESSAGE


def failure(kind: str, message: str) -> Failed:
    """Return the failure of an attempt for a reason outside of its handler."""
    error = {"type": kind, "message": message, "traceback": ""}
    return Failed(error, chance=random.random())  # noqa: S311 - jitter
