"""`onejob advise` prints what recorded requests say, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from onejob import App
from onejob.cli import main


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Make a store in which a task without a policy was requested sixty times, for twenty documents."""
    found = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = App(found)

    @app.task
    def reindex(document: int, reason: str) -> None: ...

    @app.task
    def rare(number: int) -> None: ...

    app.enqueue_many_sync([reindex.call(number % 20, "changed") for number in range(60)])
    rare.enqueue_sync(1)
    app.close_sync()
    return found


def advise(*args: str) -> str:
    result = CliRunner().invoke(main, ["advise", *args])
    assert result.exit_code == 0, result.output
    return result.output


def test_advice_is_printed_with_its_figures(url: str) -> None:
    shown = advise(url)
    assert shown.startswith("reindex  Unique.coalesce()\n  67 % of 60 requests of reindex in the last ")
    assert "Unique.coalesce() would have absorbed 40 of 60." in shown
    assert "    Unique.until_executed()  40 absorbed\n" in shown
    assert shown.index("\n\nrare\n  Looked at 1 request of rare") > 0


def test_advice_for_one_task_as_json(url: str) -> None:
    [found] = json.loads(advise(url, "--task", "reindex", "--since", "5m", "--json"))
    figures = {name: found[name] for name in ("kind", "task", "policy", "requests", "absorbed", "sampled")}
    assert figures == {
        "kind": "repeats",
        "task": "reindex",
        "policy": "Unique.coalesce()",
        "requests": 60,
        "absorbed": 40,
        "sampled": 1.0,
    }


def test_a_store_without_recorded_requests_says_so(url: str) -> None:
    assert advise(url, "--task", "none").startswith("No request of none was recorded in this time")
    assert json.loads(advise(url, "--task", "none", "--json")) == []
