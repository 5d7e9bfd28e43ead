"""Mistakes on the command line: a wrong folder, a wrong server, a wrong argument. Each gets one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ONEJOB = str(Path(sys.executable).with_name("onejob"))
SHOP = """
from onejob import App, Unique

app = App("sqlite:///jobs.db")


@app.task(unique=Unique(by="n"))
def count(n: int, note: str = "") -> int:
    return n
"""
GENERATOR = """
from onejob import App

app = App("memory://")


@app.task
def numbers():
    yield 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "generator.py").write_text(GENERATOR)
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "ONEJOB_APP"}
    return subprocess.run(
        [ONEJOB, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


READS = (
    ["stats"],
    ["jobs"],
    ["job", "01990c3e-5c1f-7000-8a55-3f1c6e0d9b42"],
    ["why", "count", "n=1"],
    ["holds"],
    ["queues"],
    ["dead"],
    ["chains"],
    ["prune", "--dry-run"],
)


@pytest.mark.parametrize("words", READS, ids=lambda words: words[0])
def test_a_command_that_reads_creates_no_file(folder: Path, words: list[str]) -> None:
    refused = run(folder, words[0], "shop:app", *words[1:])
    assert refused.returncode == 1
    path = folder / "jobs.db"
    assert refused.stderr == (
        f"Error: sqlite:///{path} has no tables of onejob: check the URL and the folder, "
        "or create them with onejob migrate.\n"
    )
    assert list(folder.glob("jobs.db*")) == []


def test_a_url_of_a_missing_file_names_its_absolute_path(folder: Path) -> None:
    refused = run(folder, "stats", "sqlite:///other.db")
    assert f"sqlite:///{folder / 'other.db'} has no tables" in refused.stderr
    assert list(folder.glob("other.db*")) == []


def test_the_first_line_of_a_worker_shows_the_absolute_path(folder: Path) -> None:
    for words in ((), ("--json",)):
        first = run(folder, "worker", "shop:app", "--drain", *words).stdout.splitlines()[0]
        assert f"sqlite:///{folder / 'jobs.db'}" in first


@pytest.mark.parametrize(
    ("pair", "kind"), [("n=[1]", "array"), ("n=seven", "str"), ('n={"a": 1}', "object"), ("n=null", "null")]
)
def test_an_argument_of_the_wrong_type_is_named_with_the_type_that_was_written(
    folder: Path, pair: str, kind: str
) -> None:
    refused = run(folder, "enqueue", "shop:app", "count", pair)
    assert refused.returncode == 2
    assert f"The arguments do not fit count: n: Expected `int`, got `{kind}`." in refused.stderr


def test_a_wrong_declaration_is_reported_with_its_file_and_line(folder: Path) -> None:
    refused = run(folder, "jobs", "generator:app")
    assert refused.returncode == 1
    place = f"({folder / 'generator.py'}, line 7)."
    assert refused.stderr.startswith("Error: numbers is a generator")
    assert refused.stderr.rstrip().endswith(place)


def test_a_job_is_shown_in_one_aligned_block(folder: Path) -> None:
    options = ("--expires-in", "1h", "--meta", "tenant=acme")
    run(folder, "enqueue", "shop:app", "count", "n=7", *options)
    assert run(folder, "worker", "shop:app", "--drain").returncode == 0
    listed = run(folder, "jobs", "shop:app").stdout.splitlines()[1]
    shown = run(folder, "job", "shop:app", listed.split()[0]).stdout.splitlines()
    column = shown[0].index(listed.split()[0])  # where the first value begins
    names = {line[:column].rstrip() for line in shown}
    assert {"job", "state", "expires", "meta", "took", "key", "hold"} <= names
    assert all(line[column - 2 : column] == "  " and line[column] != " " for line in shown)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_key_that_was_never_held_is_as_unknown_as_a_job(folder: Path, form: tuple[str, ...]) -> None:
    run(folder, "enqueue", "shop:app", "count", "n=7")
    for unknown in ("ab" * 32, "01990c3e-5c1f-7000-8a55-3f1c6e0d9b42"):
        refused = run(folder, "why", "shop:app", unknown, *form)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr.startswith("Error: No job ")


# ── servers ───────────────────────────────────────────────────────────────────────────────────────


def test_the_server_says_why_a_redis_database_cannot_be_used(folder: Path, redis_url: str) -> None:
    server = redis_url.rpartition("/")[0]
    for command in ("stats", "jobs", "doctor", "migrate"):
        refused = run(folder, command, f"{server}/99999")
        assert refused.returncode == 1
        assert "DB index is out of range" in refused.stdout + refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_single_redis_server_is_not_reached_as_a_cluster(folder: Path, redis_url: str) -> None:
    refused = run(folder, "stats", redis_url.replace("redis://", "redis+cluster://").rpartition("/")[0])
    assert refused.returncode == 1
    assert "answers, but is no cluster" in refused.stderr
    assert refused.stderr.rstrip().endswith("write redis://.")


def test_a_postgresql_server_that_refuses_is_named_with_its_port(folder: Path) -> None:
    refused = run(folder, "stats", "postgresql://shop@127.0.0.1:9/shop")
    assert refused.returncode == 1
    assert "postgresql://" in refused.stderr
    assert "127.0.0.1:9/shop" in refused.stderr
    assert "?." not in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_misspelled_command_is_answered_with_those_spelled_alike(folder: Path) -> None:
    done = run(folder, "wokrer", "shop:app")
    assert done.returncode == 2
    assert "There is no command 'wokrer': did you mean worker" in done.stderr


def test_a_file_name_in_the_place_of_a_module_is_answered(folder: Path) -> None:
    done = run(folder, "jobs", "shop.py:app")
    assert done.returncode == 2
    assert "write shop, without .py" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["beat", "shop:app"], "There is no command 'beat': every worker makes the ticks of schedules"),
        (["flower", "shop:app"], "There is no command 'flower': write onejob serve, or onejob top."),
        (["help", "worker"], "There is no command 'help': write onejob --help"),
        (["-A", "shop", "worker"], "There is no option -A: write onejob worker shop:app."),
        (["worker", "-A", "shop"], "There is no option -A: write onejob worker shop:app."),
        (["worker", "shop:app", "-c", "4"], "There is no option -c: write --concurrency."),
        (["worker", "shop:app", "--loglevel", "info"], "There is no option --loglevel: write --verbose"),
        (["worker", "shop:app", "--burst"], "There is no option --burst: write --drain."),
        (["--json", "stats", "shop:app"], "There is no option --json: write it after the command."),
    ],
)
def test_a_word_of_another_system_is_answered(folder: Path, words: list[str], says: str) -> None:
    done = run(folder, *words)
    assert done.returncode == 2
    assert says in done.stderr


def test_a_task_in_the_place_of_an_app_is_refused_and_does_not_run(folder: Path) -> None:
    (folder / "tasks.py").write_text(
        "from onejob import App\napp = App('memory://')\n@app.task\ndef wipe(): print('WIPED')\n"
    )
    done = run(folder, "worker", "tasks:wipe", "--drain")
    assert done.returncode == 2
    assert "tasks:wipe is a task, not an app: write tasks:app." in done.stderr
    assert "WIPED" not in done.stdout


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("shop:ap", "Module 'shop' has no attribute 'ap': write shop:app."),
        ("made:later", "made:later is an async function: write a plain one that returns the app."),
        ("made:nothing", "made:nothing() is of type NoneType, not an onejob App."),
        ("made:app", "Module 'made' has no attribute 'app', and no app in it."),
    ],
)
def test_a_place_without_an_app_is_answered(folder: Path, place: str, says: str) -> None:
    (folder / "made.py").write_text("async def later(): ...\ndef nothing(): ...\n")
    done = run(folder, "jobs", place)
    assert done.returncode == 2
    assert says in done.stderr
    assert "RuntimeWarning" not in done.stderr


def test_a_task_of_a_module_that_is_not_imported_is_answered(folder: Path) -> None:
    (folder / "empty.py").write_text("from onejob import App\napp = App('memory://')\n")
    done = run(folder, "enqueue", "empty:app", "count", "n=1")
    assert done.returncode == 1
    assert "No task is named 'count'; registered: none: import the module that declares it" in done.stderr
