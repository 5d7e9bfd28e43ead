"""Hooks: functions that are called with events after the commit, and cannot break what they report.

A caller of the engine awaits the hooks of its own requests. The events of runs are reported beside the
worker's loop, in order, so that a slow hook delays no job.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar, get_args
from weakref import WeakKeyDictionary

from onejob.core.decide import Request, Verdict
from onejob.core.job import Job
from onejob.engine.events import Event, Kind, WorkerEvent, WorkerKind
from onejob.engine.log_lines import about
from onejob.engine.portal import Portal
from onejob.errors import InvalidCall, OnejobError

log = logging.getLogger("onejob")

KINDS: tuple[str, ...] = (*get_args(Kind), *get_args(WorkerKind))
HOOK_LIMIT = 10.0  # seconds for one call of an async hook
LAST_STEPS = 0.5  # seconds for a hook that is cancelled to end
MOST_WAITING = 10_000  # calls of async hooks that wait; a worker then starts no more jobs until they are done

Reporter = Callable[[Any, Callable[[], None]], bool]
"""Take a caller's connection and a function to be called when its transaction has been committed; return
whether it will be. An adapter of a framework supplies one."""


H = TypeVar("H", bound=Callable[..., Any])


class RegisterHook(Protocol):
    """A decorator that returns the function that it registers."""

    def __call__(self, call: H, /) -> H:
        """Register a function."""


class Hook(NamedTuple):
    """A function that was registered for a kind of event."""

    call: Callable[[Any], Any]
    name: str
    is_async: bool


class Hooks:
    """The hooks of an engine by kind of event."""

    def __init__(self, portal: Portal) -> None:
        self.registered: dict[str, list[Hook]] = {}  # empty if no hook is: one check, and no cost
        self.reporters: list[Reporter] = []
        self.tracing: Tracing | None = None
        self._portal = portal
        self._last: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()
        self._waiting = 0

    def add(self, kind: str, call: Callable[[Any], Any]) -> None:
        """Register a function for a kind of event; raise InvalidCall for an unknown kind."""
        check_kind(kind)
        if not callable(call):
            raise InvalidCall(f"on({kind!r}) is given {call!r}, which cannot be called: write a function.")
        is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
            getattr(call, "__call__", None)  # noqa: B004 - an object may have an async one
        )
        name = getattr(call, "__qualname__", None) or type(call).__qualname__
        self.registered.setdefault(kind, []).append(Hook(call, name, is_async))

    def decorator(self, kind: str) -> RegisterHook:
        """Return a decorator that registers a function; raise InvalidCall for an unknown kind."""
        check_kind(kind)

        def register(call: H) -> H:
            self.add(kind, call)
            return call

        return register

    # ── calling ───────────────────────────────────────────────────────────────────────────────────

    async def fire(self, events: Sequence[Event | WorkerEvent], connection: Any = None) -> None:
        """Call the hooks of events, and await those that are async; `connection`: when it is committed."""
        if connection is not None:
            return self._fire_at_commit(events, connection)
        for event in events:
            for hook in self.registered.get(event.kind, ()):
                if hook.is_async:
                    await _await(hook, event)
                else:
                    _call(hook, event)
        return None

    def fire_sync(self, events: Sequence[Event | WorkerEvent], connection: Any = None) -> None:
        """Blocking variant of `fire`; async hooks run on the portal's event loop."""
        if connection is not None:
            return self._fire_at_commit(events, connection)
        for event in events:
            for hook in self.registered.get(event.kind, ()):
                if hook.is_async:
                    self._portal.run(_await(hook, event))
                else:
                    _call(hook, event)
        return None

    def _fire_at_commit(self, events: Sequence[Event | WorkerEvent], connection: Any) -> None:
        """Hand events to the adapter that reports this connection's commit; without one they are dropped."""
        if not any(event.kind in self.registered for event in events):
            return
        for reporter in self.reporters:
            if reporter(connection, lambda: self.fire_sync(events)):
                return

    async def fire_later(self, events: Sequence[Event]) -> None:
        """Call plain hooks, and let a task call the async ones in order; wait only if too many wait."""
        calls: list[tuple[Hook, Event]] = []
        for event in events:
            for hook in self.registered.get(event.kind, ()):
                if hook.is_async:
                    calls.append((hook, event))
                else:
                    _call(hook, event)
        if not calls:
            return
        loop = asyncio.get_running_loop()
        self._waiting += len(calls)
        self._last[loop] = loop.create_task(self._call_after(self._last.get(loop), calls))
        if self._waiting > MOST_WAITING:
            await asyncio.wait([self._last[loop]])

    async def _call_after(self, before: asyncio.Task[None] | None, calls: list[tuple[Hook, Event]]) -> None:
        try:
            if before is not None and not before.done():
                await asyncio.wait([before])
            for hook, event in calls:
                await _await(hook, event)
        finally:
            self._waiting -= len(calls)

    async def finish(self, seconds: float) -> None:
        """Wait for hooks that `fire_later` has begun; give up after a limit, and log how many are left."""
        last = self._last.pop(asyncio.get_running_loop(), None)
        if last is None or last.done():
            return
        _, left = await asyncio.wait([last], timeout=seconds)
        if left:
            log.warning("hooks were not called in time; calls that are dropped: %d", self._waiting)
            last.cancel()
            await asyncio.wait([last], timeout=LAST_STEPS)


def check_kind(kind: object) -> None:
    """Raise InvalidCall for a kind of event that does not exist."""
    if kind not in KINDS:
        raise InvalidCall(f"on({kind!r}) names no event: write one of {', '.join(KINDS)}.")


async def _await(hook: Hook, event: Event | WorkerEvent) -> None:
    """Await an async hook; log what it raises, or that it takes too long."""
    try:
        async with asyncio.timeout(HOOK_LIMIT):
            await hook.call(event)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a hook reports what happened and cannot change it
        _log_failure(hook, event, error)


def _call(hook: Hook, event: Event | WorkerEvent) -> None:
    """Call a plain hook; log what it raises."""
    try:
        hook.call(event)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
        _log_failure(hook, event, error)


def _log_failure(hook: Hook, event: Event | WorkerEvent, error: BaseException) -> None:
    extra = about(event.job) if isinstance(event, Event) else {"worker": event.worker}
    whose = f"job {event.job.id}" if isinstance(event, Event) else f"worker {event.worker}"
    log.error(
        "hook %s failed at %s of %s: %s",
        hook.name,
        event.kind,
        whose,
        type(error).__name__,
        exc_info=error,
        extra=extra,
    )


# ── tracing ───────────────────────────────────────────────────────────────────────────────────────


class Traced(Protocol):
    """A run, as tracing needs it."""

    @property
    def job(self) -> Job:
        """The job."""

    @property
    def exception(self) -> BaseException | None:
        """What the handler raised, once it has ended."""


class Sending(Protocol):
    """Requests that are being admitted."""

    @property
    def requests(self) -> Sequence[Request]:
        """The requests, with the context by which their runs are linked to them."""

    def decided(self, verdicts: Sequence[Verdict | OnejobError]) -> None:
        """Take the verdicts on the requests."""


class Tracing(Protocol):
    """What encloses an admission and a run; hooks are called after them."""

    def send(self, requests: Sequence[Request]) -> AbstractContextManager[Sending]:
        """Enclose an admission."""

    def run(self, attempt: Traced) -> AbstractContextManager[Any]:
        """Enclose a run."""
