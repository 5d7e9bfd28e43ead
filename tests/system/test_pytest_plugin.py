"""The pytest plugin, in real pytest runs of their own processes."""

from __future__ import annotations

import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

SHOP = """
    from onejob import App, Unique

    app = App({url!r})

    @app.task(unique=Unique(by="customer_id"))
    async def send_invoice(customer_id: int) -> str:
        if customer_id < 0:
            raise ValueError("no such customer")
        return f"invoice {{customer_id}}"
"""
SETTINGS = """
    [pytest]
    addopts = --strict-config --strict-markers
    filterwarnings = error
    onejob_app = shop:app
"""


class Project:
    """A folder with an application and its tests."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.write("shop.py", SHOP.format(url="memory://"))
        self.write("pytest.ini", SETTINGS)

    def write(self, name: str, text: str) -> None:
        (self.pytester.path / name).write_text(textwrap.dedent(text))

    def run(self, tests: str, *args: str) -> pytest.RunResult:
        self.write("test_shop.py", tests)
        scope = "asyncio_default_fixture_loop_scope=function"  # or pytest-asyncio warns in every run
        return self.pytester.runpytest_subprocess("-p", "no:cacheprovider", "-o", scope, *args)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return Project(pytester)


def test_the_plugin_is_declared() -> None:
    [found] = entry_points(group="pytest11", name="onejob")
    assert found.value == "onejob.testing.plugin", "run make .venv/.test: pyproject.toml has changed"


def test_fixtures_of_blocking_tests(project: Project) -> None:
    result = project.run(
        """
        import pytest
        from shop import app, send_invoice
        from onejob.testing import assert_enqueued_sync

        pytestmark = pytest.mark.usefixtures("onejob_empty")

        @pytest.mark.parametrize("again", [1, 2])
        def test_each_test_begins_empty(again):
            send_invoice.enqueue_sync(7)
            assert len(app.jobs_sync()) == 1

        def test_inline(onejob_inline):
            assert onejob_inline is app
            assert send_invoice.enqueue_sync(7).result_sync() == "invoice 7"
            with pytest.raises(ValueError):
                send_invoice.enqueue_sync(-1)

        def test_drain(onejob_drain_sync):
            send_invoice.enqueue_sync(-1)
            with pytest.raises(ValueError, match="no such customer"):
                onejob_drain_sync()

        def test_clock(onejob_clock, onejob_drain_sync):
            send_invoice.options(delay="1h").enqueue_sync(7)
            onejob_drain_sync()
            assert_enqueued_sync(app, send_invoice, state="scheduled")
            onejob_clock.advance("1h")
            onejob_drain_sync()
            assert_enqueued_sync(app, send_invoice, state="completed")
        """
    )
    result.assert_outcomes(passed=5)


def test_fixtures_of_async_tests(project: Project) -> None:
    result = project.run(
        """
        import pytest
        from shop import app, send_invoice

        pytestmark = [pytest.mark.usefixtures("onejob_empty"), pytest.mark.asyncio]

        async def test_inline(onejob_inline):
            assert await (await send_invoice.enqueue(7)).result() == "invoice 7"

        async def test_drain_and_clock(onejob_drain, onejob_clock):
            admission = await send_invoice.options(delay="1h").enqueue(7)
            onejob_clock.advance("1h")
            await onejob_drain()
            assert await admission.result(timeout=30) == "invoice 7"
            await send_invoice.enqueue(-1)
            with pytest.raises(ValueError):
                await onejob_drain()
        """
    )
    result.assert_outcomes(passed=2)


def test_the_app_may_come_from_a_fixture(project: Project, tmp_path: Path) -> None:
    project.write("pytest.ini", "[pytest]\nfilterwarnings = error\n")
    result = project.run(
        f"""
        import pytest
        from onejob import App

        @pytest.fixture
        def onejob_app():
            app = App("sqlite:///{tmp_path}/own.db")
            app.task(name="mail")(lambda: None)
            yield app
            app.close_sync()

        @pytest.fixture
        def onejob_database():
            return "own.db"

        @pytest.mark.parametrize("again", [1, 2])
        def test_each_test_begins_empty(again, onejob_empty):
            onejob_empty.tasks["mail"].enqueue_sync()
            assert len(onejob_empty.jobs_sync()) == 1
        """
    )
    result.assert_outcomes(passed=2)


def test_a_durable_store_is_not_emptied_by_accident(project: Project, tmp_path: Path) -> None:
    project.write("shop.py", SHOP.format(url=f"sqlite:///{tmp_path}/shop.db"))
    tests = """
        def test_it(onejob_empty):
            pass
    """
    result = project.run(tests)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(['*write empty(app, database="shop.db")*'])
    project.run(tests, "-o", "onejob_database=shop.db").assert_outcomes(passed=1)


def test_a_missing_app_gets_a_sentence(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\n")
    result = project.run("def test_it(onejob_inline): ...")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*set onejob_app = shop.jobs:app in the configuration*"])


def test_the_plugin_costs_nothing_until_it_is_used(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\nfilterwarnings = error\n")
    result = project.run(
        """
        import sys

        def test_it():
            loaded = {name for name in sys.modules if name.partition(".")[0] == "onejob"}
            assert loaded == {"onejob", "onejob.testing", "onejob.testing.plugin"}
            assert not {"msgspec", "hypothesis.stateful", "click"} & sys.modules.keys()
        """,
        *("-p", "no:hypothesispytest"),
    )
    result.assert_outcomes(passed=1)


def test_the_fixtures_are_listed_with_their_help(project: Project) -> None:
    result = project.run("", "--fixtures", "-q")
    for name in ("app", "database", "empty", "clock", "inline", "drain", "drain_sync"):
        result.stdout.fnmatch_lines([f"onejob_{name} -- *"])
