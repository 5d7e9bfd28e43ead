"""Assertions about what was enqueued and what was absorbed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from onejob.app.app import App
from onejob.app.values import read_state
from onejob.core.decide import Outcome
from onejob.core.job import Job, State
from onejob.engine.absorbed_log import AbsorbedRequest
from onejob.errors import InvalidCall
from onejob.tasks.call import Call, parts_of
from onejob.tasks.request import RequestBuilder
from onejob.tasks.signature import encode
from onejob.tasks.task import Task, builder_of
from onejob.testing.inside import engine_of

MOST = 100_000  # jobs or entries that are read
SHOWN = 20  # of them that a failed assertion lists

Wanted = Task[..., Any] | Call[Any]


async def assert_enqueued(
    app: App,
    task: Wanted,
    /,
    *args: Any,
    times: int | None = None,
    queue: str | None = None,
    state: State | str | None = None,
    **kwargs: Any,
) -> list[Job]:
    """Assert that a task was enqueued; a failure lists what was enqueued instead.

    Every job in the store counts, also one that has run. An absorbed request made no job.

    Args:
        app: The app.
        task: The task; or a call, `task.call(7)`, whose arguments must be equal, defaults included. Write a
            call for a task with an argument of the name of an option below.
        *args: Positional arguments of the task.
        times: How many jobs there must be; at least one if left out.
        queue: Only jobs of this queue.
        state: Only jobs in this state.
        **kwargs: Keyword arguments of the task. Arguments that you leave out are not compared.

    Returns:
        The jobs, newest first.

    Raises:
        AssertionError: There are none, or not as many.
    """
    builder, wanted = _read(task, args, kwargs)
    check_state(app, state)
    jobs = await app.jobs(limit=MOST)
    found = [
        job
        for job in jobs
        if job.task == builder.declaration.name
        and queue in {None, job.queue}
        and state in {None, str(job.state)}
        and _fits(app, job, wanted)
    ]
    if len(found) != times if times is not None else not found:
        options = {"queue": queue, "state": state}
        said = _say(builder.declaration.name, wanted, options)
        raise AssertionError(f"{said} {_said_times(len(found), times)}.\n{_list_jobs(app, jobs)}")
    return found


async def assert_not_enqueued(
    app: App,
    task: Wanted,
    /,
    *args: Any,
    queue: str | None = None,
    state: State | str | None = None,
    **kwargs: Any,
) -> None:
    """Assert that a task was not enqueued, or not with these arguments: see `assert_enqueued`."""
    await assert_enqueued(app, task, *args, times=0, queue=queue, state=state, **kwargs)


async def assert_deduplicated(
    app: App,
    task: Wanted,
    /,
    *args: Any,
    times: int | None = None,
    outcome: Outcome | str | None = None,
    **kwargs: Any,
) -> list[AbsorbedRequest]:
    """Assert that requests of a task were absorbed; a failure lists those that were.

    Args:
        app: The app.
        task: The task, or a call.
        *args: Positional arguments of the task.
        times: How many requests must have been absorbed; at least one if left out.
        outcome: Only requests with this outcome, such as "kept" or "updated".
        **kwargs: Keyword arguments of the task. With arguments, requests of the same key count: the call must
            have all that the key is made of. Without any, every request of the task counts.

    Returns:
        The entries of the log of absorbed requests, newest first; an entry may stand for several `times`.

    Raises:
        AssertionError: None was absorbed, or not as many.
    """
    builder, given, named = _parts(task, args, kwargs)
    name = builder.declaration.name
    if outcome is not None and outcome not in set(Outcome):
        raise InvalidCall(f"{outcome!r} is no outcome: write one of {', '.join(Outcome)}.")
    engine_of(app)
    key = None
    if given or named or isinstance(task, Call):
        hashed = builder.request(given, named).job.key
        if hashed is None:
            raise InvalidCall(
                f"{name} is not unique for this call, so that none of its requests is absorbed."
            )
        key = hashed.hex()
    entries = await app.activity.absorbed(limit=MOST)
    found = [
        one
        for one in entries
        if one.task == name and key in {None, one.key} and outcome in {None, one.outcome}
    ]
    number = sum(one.times for one in found)
    if number != times if times is not None else not number:
        wanted = None if key is None else _given(builder, given, named)
        said = _say(name, wanted, {"outcome": outcome})
        raise AssertionError(f"{said} {_said_times(number, times, 'absorbed')}.\n{_list_absorbed(entries)}")
    return found


def assert_enqueued_sync(
    app: App,
    task: Wanted,
    /,
    *args: Any,
    times: int | None = None,
    queue: str | None = None,
    state: State | str | None = None,
    **kwargs: Any,
) -> list[Job]:
    """Blocking variant of `assert_enqueued`."""
    engine = engine_of(app)
    found = assert_enqueued(app, task, *args, times=times, queue=queue, state=state, **kwargs)
    return engine.run_sync(found)


def assert_not_enqueued_sync(
    app: App,
    task: Wanted,
    /,
    *args: Any,
    queue: str | None = None,
    state: State | str | None = None,
    **kwargs: Any,
) -> None:
    """Blocking variant of `assert_not_enqueued`."""
    engine_of(app).run_sync(assert_not_enqueued(app, task, *args, queue=queue, state=state, **kwargs))


def assert_deduplicated_sync(
    app: App,
    task: Wanted,
    /,
    *args: Any,
    times: int | None = None,
    outcome: Outcome | str | None = None,
    **kwargs: Any,
) -> list[AbsorbedRequest]:
    """Blocking variant of `assert_deduplicated`."""
    engine = engine_of(app)
    found = assert_deduplicated(app, task, *args, times=times, outcome=outcome, **kwargs)
    return engine.run_sync(found)


# ── what is compared ──────────────────────────────────────────────────────────────────────────────


def _parts(
    task: Wanted, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[RequestBuilder, tuple[Any, ...], Mapping[str, Any]]:
    """Return what builds the requests of a task or a call, and its arguments."""
    if not isinstance(task, Task | Call):
        raise InvalidCall(f"{task!r} is no task: write the task, or task.call(…).")
    if isinstance(task, Task):
        return builder_of(task), args, kwargs
    if args or kwargs:
        raise InvalidCall(
            "A call has its arguments: write task.call(…) alone, or the task and its arguments."
        )
    return parts_of(task)


def check_state(app: App, state: State | str | None) -> None:
    """Raise InvalidCall for what is no app, or for a state that no job has."""
    engine_of(app)
    if state is not None:
        read_state(state)


def _read(
    task: Wanted, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[RequestBuilder, dict[str, Any] | None]:
    """Return what builds the requests of a task, and the arguments to compare as JSON; None for any."""
    builder, given, named = _parts(task, args, kwargs)
    if isinstance(task, Call):
        bound = builder.declaration.signature.bind(given, named)
        return builder, cast("dict[str, Any]", msgspec.json.decode(builder.pack(bound)[0]))
    return builder, _given(builder, args, kwargs) if args or kwargs else None


def _given(builder: RequestBuilder, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that were given, without defaults, as JSON values."""
    bound = builder.declaration.signature.bind_given(args, kwargs)
    text = encode(bound, "The arguments", builder.engine.max_args, aware=True)
    return cast("dict[str, Any]", msgspec.json.decode(text))


def _fits(app: App, job: Job, wanted: Mapping[str, Any] | None) -> bool:
    """Return whether a job has the wanted arguments."""
    if wanted is None:
        return True
    stored = app.reveal(job).arguments
    return all(name in stored and stored[name] == value for name, value in wanted.items())


# ── what a failure says ───────────────────────────────────────────────────────────────────────────


def _say(name: str, wanted: Mapping[str, Any] | None, options: Mapping[str, Any]) -> str:
    """Return what was looked for."""
    arguments = "…" if wanted is None else ", ".join(f"{key}={value!r}" for key, value in wanted.items())
    chosen = "".join(f", {key}={str(value)!r}" for key, value in options.items() if value is not None)
    return f"{name}({arguments}){chosen}"


def _said_times(found: int, times: int | None, what: str = "enqueued") -> str:
    """Return how often something happened, and how often it should have."""
    if times is None:
        return f"was not {what}"
    return f"was {what} {_times(found)}, not {_times(times)}" if times else f"was {what} {_times(found)}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _list_jobs(app: App, jobs: Sequence[Job]) -> str:
    return _list(
        "Enqueued",
        jobs,
        lambda job: (
            f"{_say(job.task, app.reveal(job).arguments, {})}, {job.state}, queue {job.queue}, {job.id}"
        ),
    )


def _list_absorbed(entries: Sequence[AbsorbedRequest]) -> str:
    return _list(
        "Absorbed",
        entries,
        lambda one: f"{one.task}: {one.outcome} {_times(one.times)} by job {one.job}, from {one.line or '?'}",
    )


def _list(what: str, things: Sequence[Any], describe: Callable[[Any], str]) -> str:
    """Return things as lines, newest first."""
    if not things:
        return f"{what}: nothing."
    more = [f"  and {len(things) - SHOWN} more"] if len(things) > SHOWN else []
    return "\n".join([f"{what}, newest first:", *(f"  {describe(one)}" for one in things[:SHOWN]), *more])
