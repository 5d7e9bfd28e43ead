"""The pytest plugin: fixtures for tests of an application. It loads no more before they are used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from onejob import App
    from onejob.testing import Clock


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the settings by which the fixtures find the app."""
    parser.addini("onejob_app", "onejob: the app under test, as module:attribute")
    parser.addini("onejob_database", "onejob: the name of the durable store that tests may empty")


@pytest.fixture
def onejob_app(pytestconfig: pytest.Config) -> App:
    """Return the app that the setting `onejob_app` names; or write a fixture of this name yourself."""
    place = pytestconfig.getini("onejob_app")
    module, _, path = place.partition(":")
    if not module or not path:
        raise pytest.UsageError(
            "onejob does not know the app under test: set onejob_app = shop.jobs:app in the configuration of "
            "pytest, or write a fixture onejob_app that returns it."
        )
    app: App = attrgetter(path)(import_module(module))
    return app


@pytest.fixture
def onejob_database(pytestconfig: pytest.Config) -> str | None:
    """Return the name of the durable store that may be emptied: the setting `onejob_database`."""
    return pytestconfig.getini("onejob_database") or None


@pytest.fixture
def onejob_empty(onejob_app: App, onejob_database: str | None) -> App:
    """Remove all that the app has stored before the test, and return the app."""
    from onejob.testing import empty_sync

    empty_sync(onejob_app, database=onejob_database)
    return onejob_app


@pytest.fixture
def onejob_clock(onejob_app: App) -> Iterator[Clock]:
    """Return the clock of the app's store, which moves only by `advance` during the test."""
    from onejob.testing import moving_clock

    with moving_clock(onejob_app) as clock:
        yield clock


@pytest.fixture
def onejob_inline(onejob_app: App) -> Iterator[App]:
    """Run the app's jobs as soon as they are enqueued during the test, and return the app."""
    from onejob.testing import inline

    with inline(onejob_app):
        yield onejob_app


@pytest.fixture
def onejob_drain(onejob_app: App) -> Callable[[], Awaitable[None]]:
    """Return a coroutine function that runs the app's due jobs and raises what a task raises."""
    from onejob.testing import drain

    return partial(drain, onejob_app, raises=True)


@pytest.fixture
def onejob_drain_sync(onejob_app: App) -> Callable[[], None]:
    """Return a function that does the same as `onejob_drain` from blocking code."""
    from onejob.testing import drain_sync

    return partial(drain_sync, onejob_app, raises=True)
