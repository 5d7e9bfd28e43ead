"""Blocking variants of async methods: `jobs_sync = blocking(jobs)`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from onejob.engine.engine import Engine


class HasEngine(Protocol):
    """An object whose methods use an engine."""

    @property
    def _engine(self) -> Engine: ...


S = TypeVar("S", bound=HasEngine)
P = ParamSpec("P")
R = TypeVar("R")


def blocking(method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[S, P], R]:
    """Return the blocking variant of an async method; editors and type checkers see the same parameters."""

    @wraps(method)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._engine.run_sync(method(self, *args, **kwargs))

    run.__name__ += "_sync"
    run.__qualname__ += "_sync"
    run.__doc__ = f"Blocking variant of `{method.__name__}`."
    return run
