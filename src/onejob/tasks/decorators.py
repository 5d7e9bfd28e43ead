"""The types of `app.task(…)` and `app.cron(…)` as decorators, by which editors know what they return."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, overload

from onejob.tasks.task import Task

P = ParamSpec("P")
R = TypeVar("R")


class RegisterTask:
    """The type of `app.task(…)` as a decorator."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Task[..., Any]:
        """Never called: `app.task` returns a decorator of this shape."""
        raise NotImplementedError


class RegisterSchedule:
    """The type of `app.cron(…)` as a decorator."""

    @overload
    def __call__(self, task: Task[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, task: Any, /) -> Task[..., Any]:
        """Never called: `app.cron` returns a decorator of this shape."""
        raise NotImplementedError
