"""Flows: logic that spans several statements, written once for blocking and async code.

A flow is a generator that yields batches of queries and receives the rows of each. A batch is one round trip
where the store can do that. Errors of the driver are raised inside the flow, at the `yield`, so that retry
loops are part of the flow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Row = Sequence[Any]


class Query(NamedTuple):
    """A statement by name, with its parameters; with `many`, it runs once per row of parameters."""

    name: str
    parameters: Sequence[Any] = ()
    many: bool = False


Batch = Sequence[Any]
"""What a store runs in one round trip: for SQL stores, queries."""

Flow = Generator[Batch, list[Any], T]
"""Yields batches, receives one answer per element of the batch."""


def drive(flow: Flow[T], run: Callable[[Batch], list[Any]]) -> T:
    """Run a flow to its end with a function that runs batches."""
    try:
        batch = next(flow)
        while True:
            try:
                answers = run(batch)
            except Exception as error:  # noqa: BLE001 - the flow handles it, or raises it again
                batch = flow.throw(error)
            else:
                batch = flow.send(answers)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def drive_async(flow: Flow[T], run: Callable[[Batch], Awaitable[list[Any]]]) -> T:
    """Run a flow to its end with an async function that runs batches."""
    try:
        batch = next(flow)
        while True:
            try:
                answers = await run(batch)
            except Exception as error:  # noqa: BLE001 - the flow handles it, or raises it again
                batch = flow.throw(error)
            else:
                batch = flow.send(answers)
    except StopIteration as stop:
        result: T = stop.value
        return result


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of which every wait blocks the thread, so that it ends without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("it waits for an event loop")


@contextmanager
def enter_blocking(manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enter an async context manager of which every wait blocks the thread."""
    value = run_blocking(manager.__aenter__())
    try:
        yield value
    except BaseException as error:
        run_blocking(manager.__aexit__(type(error), error, error.__traceback__))
        raise
    run_blocking(manager.__aexit__(None, None, None))
