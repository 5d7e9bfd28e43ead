"""Tasks that are declared without an app, and taken in by one: `tasks = Tasks()`, `app.include(tasks)`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

from onejob.core.durations import Duration
from onejob.core.fluent import Fluent
from onejob.core.job import Replay, Retry, State
from onejob.core.policy import Unique
from onejob.core.ticks import Missed
from onejob.errors import InvalidCall, InvalidPolicy
from onejob.tasks.decorators import RegisterSchedule, RegisterTask
from onejob.tasks.request import RequestBuilder
from onejob.tasks.schedules import line_of
from onejob.tasks.task import Task

P = ParamSpec("P")
R = TypeVar("R")


class TaskOptions(TypedDict, total=False):
    """What `@tasks.task(…)` accepts: the same as `@app.task(…)`."""

    name: str | None
    queue: str
    unique: Unique | Fluent | bool | None
    retry: Retry | None
    timeout: Duration | None
    priority: int
    give_up_on: type[Exception] | tuple[type[Exception], ...]
    process: bool
    expires_in: Duration | None
    delay: Duration | None
    partition: str | Callable[..., object] | None
    replay: Replay | None
    retention: Mapping[State | str, Duration] | None
    check: bool


class ScheduleOptions(TypedDict, total=False):
    """What `@tasks.cron(…)` accepts besides the line: the same as `@app.cron(…)`."""

    every: Duration | None
    timezone: str
    overlap: Unique | Fluent | bool | None
    missed: Missed
    name: str | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Declared:
    """A task that waits for an app.

    Attributes:
        task: The task, which gets its builder from the app.
        options: What the decorator was given.
        schedules: The line and the options of each schedule.
    """

    task: Task[..., Any]
    options: TaskOptions
    schedules: list[tuple[str | None, ScheduleOptions]] = field(default_factory=list)


class Tasks:
    """Tasks and schedules that are declared without an app; `app.include(tasks)` adds them to one.

    Examples:
        >>> tasks = Tasks()
        >>> @tasks.task(queue="mail")
        ... async def send(to: str) -> None: ...
        >>> app.include(tasks)
        >>> await send.enqueue("ada")
    """

    def __init__(self) -> None:
        self._declared: dict[str, Declared] = {}

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> RegisterTask: ...
    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a task; a decorator, with or without options.

        Args:
            function: The handler.
            **options: Those of `@app.task`; `app.include` checks them.
        """
        if function is not None and not callable(function):
            raise InvalidPolicy(f"tasks.task({function!r}) is given no function: write name={function!r}.")

        def declare(function: Callable[..., Any]) -> Task[..., Any]:
            return self._declare(function, cast("TaskOptions", options)).task

        return declare if function is None else declare(function)

    def cron(self, line: str | None = None, /, **options: Unpack[ScheduleOptions]) -> RegisterSchedule:
        """Run a task on a schedule; a decorator above `@tasks.task` or a function, as `@app.cron` is.

        Args:
            line: A cron line such as "0 9 * * MON-FRI".
            **options: Those of `@app.cron`.

        Raises:
            InvalidSchedule: Neither a line nor `every=` is given, or both are.
        """
        line_of(line, options.get("every"))

        def decorate(task: Task[..., Any] | Callable[..., Any]) -> Task[..., Any]:
            declared = self._declared.get(task.name) if isinstance(task, Task) else self._declare(task, {})
            if declared is None or (isinstance(task, Task) and declared.task is not task):
                raise InvalidPolicy(f"{task!r} is declared elsewhere: write @tasks.cron above @tasks.task.")
            declared.schedules.append((line, options))
            return declared.task

        return cast("RegisterSchedule", decorate)

    def _declare(self, function: Callable[..., Any], options: TaskOptions) -> Declared:
        name = options.get("name") or str(getattr(function, "__name__", ""))
        if isinstance(function, Task):
            raise InvalidPolicy(f"{function.name} is a task already: leave out @tasks.task above it.")
        if name in self._declared:
            raise InvalidPolicy(f"Two tasks are named {name!r}: give one of them another name=.")
        waiting = cast("RequestBuilder", Waiting(Named(name, function)))
        declared = self._declared[name] = Declared(Task(waiting), options)
        return declared


def declared_in(tasks: Tasks) -> list[Declared]:
    """Return what was declared, in order; raise InvalidCall for another object."""
    if not isinstance(tasks, Tasks):
        raise InvalidCall(f"{tasks!r} holds no tasks: write app.include(tasks), where tasks = Tasks().")
    return list(vars(tasks)["_declared"].values())


@dataclass(frozen=True, slots=True)
class Named:
    """The name and the function of a task that no app has included."""

    name: str
    function: Callable[..., Any]


class Waiting:
    """Stands in for the builder of a task until an app includes it."""

    def __init__(self, declaration: Named) -> None:
        self.declaration = declaration

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse every use that needs an app."""
        raise InvalidCall(
            f"{self.declaration.name} belongs to no app yet: call app.include(…) before it is enqueued."
        )
