"""A call: a task with bound arguments, not yet admitted."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from operator import attrgetter
from typing import Any, Generic, TypeVar

from onejob.tasks.admission import Admission
from onejob.tasks.enqueue import enqueue_call, enqueue_sync
from onejob.tasks.explain import Explanation, explain
from onejob.tasks.request import RequestBuilder
from onejob.tasks.unawaited import Unawaited

R = TypeVar("R")


class Call(Generic[R]):
    """A task with bound arguments, not yet admitted: `task.call(…)`.

    Examples:
        >>> await app.enqueue_many([send_invoice.call(i) for i in range(100)])
    """

    __slots__ = ("_args", "_builder", "_kwargs")

    def __init__(self, builder: RequestBuilder, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._builder = builder
        self._args = args
        self._kwargs = kwargs

    def __repr__(self) -> str:
        """Return the task's name, without arguments: they may be private."""
        return f"<Call {self._builder.declaration.name}>"

    def enqueue(self) -> Coroutine[Any, Any, Admission[R]]:
        """Enqueue the call: see `Task.enqueue`."""
        return enqueue_call(self._builder, self._args, self._kwargs, Unawaited("enqueue", [name_of(self)]))

    def enqueue_sync(self) -> Admission[R]:
        """Blocking variant of `enqueue`."""
        return enqueue_sync(self._builder, self._builder.request(self._args, self._kwargs))

    def check(self) -> None:
        """Raise the error that enqueuing would raise because of the arguments or the options; write nothing.

        Raises:
            InvalidCall: The call does not fit the function.
        """
        self._builder.request(self._args, self._kwargs)

    @property
    def key(self) -> str | None:
        """The key that a request would have, in hexadecimal digits; None if it would not be unique."""
        policy = self._builder.policy
        found = None if policy is None else self._builder.key_of(self._bound, policy)
        return None if found is None else found.hex()

    @property
    def dimensions(self) -> Mapping[str, Any]:
        """What makes calls the same work, in clear text; empty if the call is not unique."""
        policy = self._builder.policy
        return {} if policy is None else self._builder.dimensions(self._bound, policy) or {}

    @property
    def _bound(self) -> Mapping[str, Any]:
        return self._builder.declaration.signature.bind(self._args, self._kwargs)

    async def explain(self) -> Explanation:
        """Return what enqueuing the call would do, without doing it: see `Task.explain`."""
        return await explain(self._builder, self._args, self._kwargs)

    def explain_sync(self) -> Explanation:
        """Blocking variant of `explain`."""
        return self._builder.engine.run_sync(self.explain())


def name_of(call: Call[Any]) -> str:
    """Return the name of a call's task; of another value, how it is shown."""
    return parts_of(call)[0].declaration.name if isinstance(call, Call) else repr(call)


parts_of: Callable[[Call[Any]], tuple[RequestBuilder, tuple[Any, ...], Mapping[str, Any]]]
parts_of = attrgetter("_builder", "_args", "_kwargs")
"""Return what a call consists of; its attributes are not shown to users."""
