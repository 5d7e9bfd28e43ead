"""`certify`: make a test of a function that opens a store."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, overload

import pytest

from onejob.errors import InvalidCall
from onejob.stores.contract import FullStore
from onejob.testing.clock import Clock
from onejob.testing.contract import admission, races, records, runs, transactions
from onejob.testing.contract.suite import CASES, Case, OpenStore
from onejob.testing.emptying import remove_jobs, unmark

MODULES = (admission, runs, records, transactions, races)  # which have added their cases to CASES
EXAMPLES, STEPS = 25, 30  # of the random agreement
Opener = Callable[..., FullStore]
Certified = Callable[..., None]


@overload
def certify(open_store: Opener, /) -> Certified: ...
@overload
def certify(*, examples: int = EXAMPLES) -> Callable[[Opener], Certified]: ...
def certify(open_store: Opener | None = None, /, *, examples: int = EXAMPLES) -> Any:
    """Make a test of a function that opens a store: one case per promise of the contract; a decorator.

    Args:
        open_store: Returns the store. It takes a `clock`, which the store must follow, and fixtures of
            pytest. The store must be empty for each test. If it is called again in the same test, it must
            open the same store again, unless the store declares no durability.
        examples: How many random sequences of acts are compared with the memory store, which needs
            Hypothesis; 0 leaves that case out.

    Raises:
        InvalidCall: The function has no parameter `clock`.
    """
    if open_store is None:
        return partial(_certified, examples=examples)
    return _certified(open_store, examples=examples)


def _certified(open_store: Opener, *, examples: int) -> Certified:
    parameters = inspect.signature(open_store).parameters
    if "clock" not in parameters:
        name = getattr(open_store, "__name__", "the function")
        raise InvalidCall(f"{name} has no parameter clock: write def {name}(clock, …), and use that clock.")

    def test(case: Case, **fixtures: Any) -> None:
        case.check(partial(open_store, **fixtures))

    wanted = inspect.Parameter("case", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    others = [one for name, one in parameters.items() if name != "clock"]
    test.__signature__ = inspect.Signature([wanted, *others])  # type: ignore[attr-defined]
    test.__name__ = getattr(open_store, "__name__", "test")
    test.__module__, test.__doc__ = open_store.__module__, open_store.__doc__
    parametrized: Certified = pytest.mark.parametrize("case", _cases(examples), ids=str)(test)
    return parametrized


def _cases(examples: int) -> list[Case]:
    name = "agreement: random acts have the same effect as on the memory store"
    return [*CASES, *([Case(name, partial(_check_agreement, examples=examples))] if examples else [])]


def _check_agreement(open_store: OpenStore, *, examples: int) -> None:
    try:
        from onejob.testing.contract.agreement import check_agreement
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        raise InvalidCall(
            "The comparison with the memory store needs Hypothesis: run pip install hypothesis, or write "
            "@certify(examples=0)."
        ) from None
    check_agreement(Compared(open_store), examples=examples, steps=STEPS)


class Compared:
    """A store that is compared with the memory store, emptied before each example."""

    def __init__(self, open_store: OpenStore) -> None:
        self._open_store = open_store

    async def begin(self, clock: Clock) -> FullStore:
        """Open the store, and empty it."""
        from onejob.testing.contract.wishes import KEYS, SCHEDULED, TENANTS

        self._clock = clock
        self._store = self._open_store(clock=clock)
        for namespace in set(TENANTS.values()):
            await remove_jobs(self._store, namespace)
            await self._store.clear(namespace)
        await unmark(self._store, [*KEYS, SCHEDULED])
        return self._store

    async def reopen(self, *, crash: bool) -> FullStore:  # noqa: ARG002 - only its own tests can crash a store
        """Close the store and open it again, if it outlives that."""
        if self._store.guarantees.durability != "none":
            await self._store.close()
            self._store = self._open_store(clock=self._clock)
        return self._store

    async def end(self) -> None:
        """Close the store."""
        await self._store.close()
