"""`onejob health` on the command line, and the liveness files of workers."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onejob.cli.worker import commands_of, worker
from onejob.worker import liveness
from onejob.worker.liveness import LivenessFile
from tests.chaos.children import eventually

ONEJOB = str(Path(sys.executable).with_name("onejob"))
SHOP = """
from onejob import App

app = App("sqlite:///jobs.db")


@app.task
async def work() -> None: ...
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def onejob(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ONEJOB, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def test_health_exits_with_0_if_all_is_well(shop: Path) -> None:
    onejob(shop, "migrate", "shop:app")
    for app in ("shop:app", "sqlite:///jobs.db"):
        found = onejob(shop, "health", app)
        assert found.returncode == 0, found.stderr
        assert found.stdout.splitlines()[0] == "ok    The store answers."
        assert all(line.startswith("ok ") for line in found.stdout.splitlines())


def test_health_exits_with_1_and_a_sentence_for_each_finding(shop: Path) -> None:
    onejob(shop, "enqueue", "shop:app", "work")
    found = onejob(shop, "health", "shop:app", "--max-age", "0.001s", "--json")
    document = json.loads(found.stdout)
    assert (found.returncode, document["ok"]) == (1, False)
    failed = [one for one in document["findings"] if one["level"] == "fail"]
    assert [one["check"] for one in failed] == ["lateness"]
    assert failed[0]["message"].startswith("The oldest due job of queue default has waited for ")
    assert "fail  The oldest due job" in onejob(shop, "health", "shop:app", "--max-age", "0.001s").stdout


def test_advice_is_a_command_that_can_be_copied(shop: Path) -> None:
    onejob(shop, "enqueue", "shop:app", "work")
    onejob(shop, "pause", "shop:app", "default")
    found = onejob(shop, "health", "shop:app", "--max-age", "0.001s")
    assert "Resume it: onejob resume shop:app default." in found.stdout
    [command] = re.findall(r"onejob resume [\w: ]+", found.stdout)
    assert onejob(shop, *command.split()[1:]).returncode == 0
    late = onejob(shop, "health", "shop:app", "--max-age", "0.001s").stdout
    assert re.search(r"; onejob why shop:app 01\S+ says what the job waits for", late)


def test_health_does_not_create_a_store(shop: Path) -> None:
    assert onejob(shop, "health", "sqlite:///jobs.db").returncode == 1
    assert not (shop / "jobs.db").exists()


def test_health_needs_an_app_or_a_file(shop: Path) -> None:
    found = onejob(shop, "health")
    assert found.returncode == 2
    assert "Name the app, as in onejob health shop:app, or give --liveness-file." in found.stderr


def test_the_row_of_a_worker_has_the_limits_of_its_queues(shop: Path) -> None:
    limited = SHOP.replace("@app.task", 'app.queue("slow", concurrency=1)\n\n\n@app.task(queue="slow")')
    (shop / "shop.py").write_text(limited)
    onejob(shop, "migrate", "shop:app")
    with subprocess.Popen([ONEJOB, "worker", "shop:app"], cwd=shop) as running:
        eventually(lambda: "alive" in onejob(shop, "workers", "shop:app").stdout, "the worker has reported")
        [one] = json.loads(onejob(shop, "workers", "shop:app", "--json").stdout)
        running.send_signal(signal.SIGTERM)
    assert one["queues"] == {"default": 8, "slow": 1}
    assert one["alive"] is True


def test_the_age_of_a_liveness_file_decides(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    probe = ("health", "--liveness-file", str(path))
    missing = onejob(tmp_path, *probe)
    assert missing.returncode == 1
    assert f"There is no file {path}" in missing.stdout
    path.touch()
    assert onejob(tmp_path, *probe).returncode == 0
    assert onejob(tmp_path, *probe, "--max-age", "0").returncode == 1
    os.utime(path, (time.time() - 40,) * 2)
    stale = onejob(tmp_path, *probe)
    assert stale.returncode == 1
    assert re.search(r"has made no progress for 4\ds, more than 30s", stale.stdout)
    assert onejob(tmp_path, *probe, "--max-age", "2m").returncode == 0


def test_the_files_of_all_worker_processes_must_be_fresh(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"alive.{number}").touch()
    (tmp_path / "alive.note").touch()
    os.utime(tmp_path / "alive.note", (0, 0))  # not of a worker
    probe = ("health", "--liveness-file", str(tmp_path / "alive"))
    assert onejob(tmp_path, *probe).returncode == 0
    os.utime(tmp_path / "alive.2", (time.time() - 60,) * 2)
    assert onejob(tmp_path, *probe).returncode == 1


def test_each_worker_process_has_a_file_of_its_own() -> None:
    arguments = ["a:app", "b:app", "--processes", "2", "--liveness-file", "alive"]
    with worker.make_context("worker", arguments):
        commands = commands_of(["a:app", "b:app"], 2, "alive")
    assert [command[4] for command in commands] == ["a:app", "a:app", "b:app", "b:app"]
    assert [command[-2:] for command in commands] == [["--liveness-file", f"alive.{n}"] for n in range(1, 5)]
    assert all(command.count("--liveness-file") == 1 for command in commands)


def test_a_supervised_worker_touches_its_file_and_removes_it(shop: Path) -> None:
    options = ("--processes", "2", "--liveness-file", "alive")
    command = [ONEJOB, "worker", "shop:app", *options]
    with subprocess.Popen(command, cwd=shop, stderr=subprocess.DEVNULL) as run:
        for number in (1, 2):
            eventually((shop / f"alive.{number}").exists, "a worker process touches its file")
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 0
    assert list(shop.glob("alive*")) == []


# ── when a worker touches its file ────────────────────────────────────────────────────────────────


def test_a_file_is_not_touched_while_the_loop_waits_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "alive"
    file = LivenessFile(path)
    file.ask()
    file.touch()
    assert path.exists()  # an answer may take a moment
    path.unlink()
    monkeypatch.setattr(liveness, "STALLED_AFTER", 0.0)
    file.ask()  # again, after an error
    file.touch()
    assert not path.exists()
    file.answered()
    file.touch()
    assert path.exists()
    file.remove()
    file.remove()
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = LivenessFile(tmp_path / "missing" / "alive")
    file.touch()
    file.touch()
    [record] = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert "cannot be written: No such file or directory" in record.getMessage()


def test_without_a_path_nothing_is_written() -> None:
    file = LivenessFile(None)
    file.touch()
    file.remove()
