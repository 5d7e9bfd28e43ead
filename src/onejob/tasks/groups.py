"""Work of more than one job: `chain(…)` runs calls in order, `group(…)` and `batch(…)` side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from onejob.core.decide import Request
from onejob.core.durations import Duration
from onejob.core.job import Trait, alter
from onejob.errors import InvalidCall
from onejob.tasks.admission import Admission, engine_of, registry_of
from onejob.tasks.bulk import enqueue_many, enqueue_many_sync
from onejob.tasks.call import Call, name_of, parts_of
from onejob.tasks.continuation import store_call
from onejob.tasks.enqueue import enqueue, enqueue_sync
from onejob.tasks.options import chains_of
from onejob.tasks.request import RequestBuilder
from onejob.tasks.results import within
from onejob.tasks.unawaited import Unawaited

R = TypeVar("R")

CALLBACKS = {
    "on_success": Trait.NONE,
    "on_failure": Trait.AFTER_ALL | Trait.AFTER_FAILURE,
    "on_complete": Trait.AFTER_ALL,
}


def refuse_no_call(call: object, maker: str, cure: str) -> None:
    """Raise InvalidCall for what is no call."""
    if isinstance(call, (list, tuple)):
        raise InvalidCall(f"Calls come one by one, not as a {type(call).__name__}: write {maker}(*calls).")
    if not isinstance(call, Call):
        raise InvalidCall(f"{call!r} is no call: write {cure}.")


# ── one after the other ───────────────────────────────────────────────────────────────────────────


class CallChain(Generic[R]):
    """Calls that run one after the other: the answer of `chain(…)`."""

    __slots__ = ("_calls",)

    def __init__(self, calls: Sequence[Call[Any]]) -> None:
        if not calls:
            raise InvalidCall("chain() has no calls: write chain(first.call(1), second.call()).")
        for call in calls:
            refuse_no_call(call, "chain", "task.call(…), or task.step() after the first")
        self._calls = list(calls)

    def enqueue(self, *, connection: Any = None) -> Coroutine[Any, Any, Admission[Any]]:
        """Enqueue the first call; each of the others follows when the one before it has completed.

        Args:
            connection: Your connection, to enqueue it inside your transaction.
        """
        return self._enqueue(Unawaited("enqueue", [name_of(call) for call in self._calls]), connection)

    async def _enqueue(self, unawaited: Unawaited, connection: Any) -> Admission[Any]:
        unawaited.begin()
        return await enqueue(*self._request(connection))

    def enqueue_sync(self, *, connection: Any = None) -> Admission[Any]:
        """Blocking variant of `enqueue`."""
        return enqueue_sync(*self._request(connection))

    def _request(self, connection: Any) -> tuple[RequestBuilder, Request]:
        builder, args, kwargs = parts_of(self._calls[0])
        builder = builder if connection is None else builder.with_options(connection=connection)
        request = builder.request(args, kwargs)
        later = [store_call(call, request.job.id) for call in self._calls[1:]]
        following = msgspec.json.encode(later) if later else None
        job = alter(request.job, following=following)
        return builder, msgspec.structs.replace(request, job=job)


def chain(*calls: Call[Any]) -> CallChain[Any]:
    """Return a chain of calls to be enqueued; each takes the result of the one before it.

    Args:
        *calls: The calls. All but the first may leave one argument open, which gets the previous result.

    Examples:
        >>> await chain(fetch.call(url), parse.step(), store.step()).enqueue()
    """
    return CallChain(calls)


# ── side by side ──────────────────────────────────────────────────────────────────────────────────


class Members(Generic[R]):
    """Jobs that were enqueued together: await them all, or name them in `after=`.

    Attributes:
        admissions: One admission per call, in order.
        callbacks: The admissions of a batch's callbacks by name: on_success, on_failure, on_complete.
    """

    __slots__ = ("admissions", "callbacks")

    def __init__(self, admissions: Sequence[Admission[R]], callbacks: dict[str, Admission[Any]]) -> None:
        self.admissions = list(admissions)
        self.callbacks = callbacks

    @property
    def chain_ids(self) -> list[str]:
        """The chains that a job waits for if `after=` names these."""
        return [admission.job.chain_id for admission in self.admissions]

    async def results(self, timeout: Duration | None = None) -> list[R]:
        """Wait for all of them, and return what each chain returned, in order.

        Args:
            timeout: How long to wait at most, for all of them together.

        Raises:
            JobFailed: One of them failed for good.
            TimeoutError: They did not all end in time.
        """
        first = self.admissions[0]
        async with within(timeout, engine_of(first), registry_of(first), self.chain_ids):
            return list(await asyncio.gather(*(one.chain.result() for one in self.admissions)))

    def results_sync(self, timeout: Duration | None = None) -> list[R]:
        """Blocking variant of `results`."""
        return engine_of(self.admissions[0]).run_sync(self.results(timeout))


class Group(Generic[R]):
    """Calls that run side by side: the answer of `group(…)` and `batch(…)`."""

    __slots__ = ("_callbacks", "_calls")

    def __init__(self, calls: Iterable[Call[R]], callbacks: dict[str, Call[Any]] | None = None) -> None:
        for call in calls:
            refuse_no_call(call, "group", "task.call(…)")
        self._calls = list(calls)
        self._callbacks = callbacks or {}
        if not self._calls:
            raise InvalidCall("A group has at least one call: write group(send.call(1), send.call(2)).")

    def enqueue(self, *, connection: Any = None) -> Coroutine[Any, Any, Members[R]]:
        """Enqueue all calls, then the callbacks.

        Args:
            connection: Your connection, to enqueue them inside your transaction.
        """
        return self._enqueue(Unawaited("enqueue", [name_of(call) for call in self._calls]), connection)

    async def _enqueue(self, unawaited: Unawaited, connection: Any) -> Members[R]:
        unawaited.begin()
        engine, awaited = parts_of(self._calls[0])[0].engine, bool(self._callbacks)
        admissions = await enqueue_many(engine, self._calls, connection=connection, awaited=awaited)
        calls = self._followers(admissions)
        followers = await enqueue_many(engine, calls, connection=connection) if calls else []
        return Members(admissions, dict(zip(self._callbacks, followers, strict=True)))

    def enqueue_sync(self, *, connection: Any = None) -> Members[R]:
        """Blocking variant of `enqueue`."""
        engine, awaited = parts_of(self._calls[0])[0].engine, bool(self._callbacks)
        admissions = enqueue_many_sync(engine, self._calls, connection=connection, awaited=awaited)
        calls = self._followers(admissions)
        followers = enqueue_many_sync(engine, calls, connection=connection) if calls else []
        return Members(admissions, dict(zip(self._callbacks, followers, strict=True)))

    def _followers(self, admissions: Sequence[Admission[R]]) -> list[Call[Any]]:
        return [following(call, admissions, CALLBACKS[name]) for name, call in self._callbacks.items()]


def following(call: Call[Any], admissions: Sequence[Admission[Any]], traits: int) -> Call[Any]:
    """Return a call that waits for admissions besides its own blockers."""
    builder, args, kwargs = parts_of(call)
    after = [*chains_of(builder.options.after, "after"), *admissions]
    return Call(builder.with_options(after=after, traits=traits), args, kwargs)


def group(*calls: Call[R]) -> Group[R]:
    """Return calls that run side by side.

    Args:
        *calls: The calls.

    Examples:
        >>> members = await group(*(resize.call(name) for name in names)).enqueue()
        >>> await members.results()
    """
    return Group(calls)


def batch(
    *calls: Call[R],
    on_success: Call[Any] | None = None,
    on_failure: Call[Any] | None = None,
    on_complete: Call[Any] | None = None,
) -> Group[R]:
    """Return calls that run side by side, with callbacks.

    Args:
        *calls: The calls.
        on_success: Runs when all have completed.
        on_failure: Runs when all have ended and some did not complete.
        on_complete: Runs when all have ended.

    Examples:
        >>> await batch(*(resize.call(name) for name in names), on_success=publish.call()).enqueue()
    """
    given = {"on_success": on_success, "on_failure": on_failure, "on_complete": on_complete}
    return Group(calls, {name: call for name, call in given.items() if call is not None})
