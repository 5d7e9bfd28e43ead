"""`onejob chains` and `onejob chain`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from onejob.cli import main

SHOP = """
from onejob import App, current

app = App("sqlite:///jobs.db")


@app.task
def count(left: int) -> int:
    if left:
        current().continue_with(count.call(left - 1))
    return left


@app.task
def total() -> int:
    return sum(one.result for one in current().blockers)


def begin() -> list[str]:
    short, long = count.enqueue_sync(0), count.enqueue_sync(2)
    waiting = total.options(after=[short, long]).enqueue_sync()
    app.close_sync()
    return [one.job.id for one in (short, long, waiting)]
"""

Onejob = Callable[..., Result]


@pytest.fixture
def onejob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Onejob]:
    (tmp_path / "chained.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(*args: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, args, catch_exceptions=False, prog_name="onejob")
        assert result.exit_code == code, result.output
        return result

    yield run
    sys.modules.pop("chained", None)


@pytest.fixture
def begun(onejob: Onejob) -> list[str]:
    assert onejob is not None
    import chained  # type: ignore[import-not-found]

    ids: list[str] = chained.begin()
    return ids


def test_chains_are_listed_and_shown(onejob: Onejob, begun: list[str]) -> None:
    short, long, waiting = begun
    shown = onejob("chain", "chained:app", waiting).stdout
    assert f"waits for  {short}, {long}" in shown
    assert "awaited by  1 job" in onejob("chain", "chained:app", long).stdout
    onejob("worker", "chained:app", "--drain")

    listed = json.loads(onejob("chains", "chained:app", "--json").stdout)
    assert [job["chain_id"] for job in listed] == [waiting, long, short]
    assert [job["state"] for job in listed] == ["completed"] * 3
    assert onejob("chains", "chained:app", "--state", "active").stdout == "No such chains.\n"
    document = json.loads(onejob("chain", "chained:app", long, "--json").stdout)
    assert (document["status"], len(document["jobs"]), document["awaited_by"]) == ("completed", 3, [])
    assert onejob("chain", "chained:app", long).stdout.count("count") == 3


def test_a_chain_is_cancelled(onejob: Onejob, begun: list[str]) -> None:
    _, long, _ = begun
    assert "cancelled" in onejob("chain", "chained:app", long, "--cancel").stdout
    onejob("worker", "chained:app", "--drain")
    assert json.loads(onejob("chain", "chained:app", long, "--json").stdout)["status"] == "cancelled"


def test_a_chain_that_is_not_there_is_a_sentence(onejob: Onejob, begun: list[str]) -> None:
    assert begun
    said = onejob("chain", "chained:app", "nowhere", code=1).output
    assert "No job has the id 'nowhere', or one that begins so" in said
