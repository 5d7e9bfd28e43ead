"""What the kit needs of an app that users do not see: its engine, and the tasks that it has declared."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from onejob.app.app import App
from onejob.engine.engine import Engine
from onejob.tasks.registry import Registry

engine_of: Callable[[App], Engine] = attrgetter("_engine")
registry_of: Callable[[App], Registry] = attrgetter("_registry")
