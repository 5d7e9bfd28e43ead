"""What the kit needs of an app that users do not see: its engine, and the tasks that it has declared."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from onejob.app.app import App
from onejob.engine.engine import Engine
from onejob.errors import InvalidCall
from onejob.tasks.registry import Registry


def engine_of(app: App) -> Engine:
    """Return the engine of an app; raise InvalidCall for another object."""
    if not isinstance(app, App):
        raise InvalidCall(f"{app!r} is no app: the app comes first, as in drain(app).")
    engine: Engine = vars(app)["_engine"]
    return engine


registry_of: Callable[[App], Registry] = attrgetter("_registry")
