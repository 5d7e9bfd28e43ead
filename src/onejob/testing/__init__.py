"""Help for tests of code that uses onejob: run jobs at once, move the clock, and assert what was enqueued."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onejob.stores.memory import MemoryStore
    from onejob.testing.assertions import (
        assert_deduplicated,
        assert_deduplicated_sync,
        assert_enqueued,
        assert_enqueued_sync,
        assert_not_enqueued,
        assert_not_enqueued_sync,
    )
    from onejob.testing.clock import Clock, moving_clock
    from onejob.testing.draining import drain, drain_sync
    from onejob.testing.emptying import empty, empty_sync
    from onejob.testing.inline import inline
    from onejob.testing.race import assert_single_admission, assert_single_admission_sync

__all__ = [
    "Clock",
    "MemoryStore",
    "assert_deduplicated",
    "assert_deduplicated_sync",
    "assert_enqueued",
    "assert_enqueued_sync",
    "assert_not_enqueued",
    "assert_not_enqueued_sync",
    "assert_single_admission",
    "assert_single_admission_sync",
    "drain",
    "drain_sync",
    "empty",
    "empty_sync",
    "inline",
    "moving_clock",
]

_HOME = {
    "Clock": "testing.clock",
    "MemoryStore": "stores.memory",
    "assert_deduplicated": "testing.assertions",
    "assert_enqueued": "testing.assertions",
    "assert_not_enqueued": "testing.assertions",
    "assert_single_admission": "testing.race",
    "drain": "testing.draining",
    "empty": "testing.emptying",
    "inline": "testing.inline",
    "moving_clock": "testing.clock",
}


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: pytest imports this package in every run, for its plugin."""
    home = _HOME.get(name.removesuffix("_sync")) if name in __all__ else None
    if home is None:
        raise AttributeError(f"module 'onejob.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"onejob.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
