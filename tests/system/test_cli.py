"""The command line against a real SQLite file: every command, what it refuses, and how a worker stops."""

import json
import os
import pty
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner, Result

from onejob import App
from onejob.cli import COMMANDS, main
from onejob.cli.jobs import state_of
from onejob.cli.options import STATES
from onejob.core.job import State, alter
from onejob.tasks.why_job import JobExplainer
from onejob.testing.inside import engine_of, registry_of

ONEJOB = str(Path(sys.executable).with_name("onejob"))
NOBODY = "01990c3e-5c1f-7000-8a55-3f1c6e0d9b42"
URL = "sqlite:///jobs.db"
SHOP = """
import asyncio
import time
from datetime import datetime
from pathlib import Path

from onejob import App, Replay, Retry, Unique, current

app = App("sqlite:///jobs.db")
app.queue("embeddings", concurrency=1)
plain = object()


@app.task(unique=Unique(by="user_id", within="10m"))
async def sync_user(user_id: int, note: str = "") -> str:
    return f"synced {user_id} {note}".strip()


@app.task(retry=Retry(attempts=1))
def explode(n: int, text: str = "boom") -> None:
    raise RuntimeError(text)


@app.task(unique=Unique.once(by="n"), retry=Retry(attempts=1))
def fragile(n: int) -> None:
    raise RuntimeError("boom")


@app.task(retry=Retry(attempts=1), replay=Replay(times=2, after="1h"), retention={"completed": "0s"})
def stubborn(n: int) -> None:
    if n:
        raise RuntimeError("boom")


@app.task(unique=Unique(on_conflict="reject"))
def strict(n: int) -> int:
    return n


@app.task(unique=Unique.coalesce(by="n"))
def coalesced(n: int, text: str = "") -> str:
    current().progress(0.5, "half way")
    return text


@app.task(unique=Unique(on_conflict="replace", by="n"))
def replaced(n: int, text: str = "") -> None: ...


@app.task
def remind(at: datetime, note: str = "") -> str:
    return at.isoformat()


def meet() -> None:
    Path("started").write_text("x")  # blocks until the test reads it


@app.task
async def wait_for_go() -> None:
    meet()
    await asyncio.to_thread(Path("go").read_text)


@app.task
async def sleep() -> None:
    meet()
    await asyncio.sleep(60)


@app.task
def block() -> None:
    meet()
    time.sleep(60)
"""

Onejob = Callable[..., Result]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder with an app."""
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    monkeypatch.delenv("ONEJOB_APP", raising=False)
    return tmp_path


@pytest.fixture
def onejob(shop: Path) -> Iterator[Onejob]:
    """Run a command in this process, as fast as can be."""
    assert shop.exists()

    def run(*args: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, args, catch_exceptions=False, prog_name="onejob")
        assert result.exit_code == code, result.output
        return result

    yield run
    sys.modules.pop("shop", None)


def answer(result: Result) -> Any:
    return json.loads(result.stdout)


def enqueue(onejob: Onejob, *args: str) -> str:
    """Enqueue and return the job's id."""
    job_id: str = answer(onejob("enqueue", "shop:app", *args, "--json"))["job"]
    return job_id


def drain(onejob: Onejob, *options: str) -> Any:
    """Run all that is due and return how the runs ended."""
    lines = onejob("worker", "shop:app", "--drain", "--json", *options).stdout.splitlines()
    return json.loads(lines[-1])["runs"]


def activate(job_id: str) -> None:
    """Pretend that a worker runs a job."""
    with closing(sqlite3.connect("jobs.db")) as database, database:
        until = 2**62 // 10**6  # far away
        database.execute(
            "UPDATE onejob_jobs SET state = 'active', attempt = 1, token = 1, worker = 'w', "
            "started_at = run_at, lease_until = ? WHERE id = ?",
            (until, job_id),
        )


# ── the real command ──────────────────────────────────────────────────────────────────────────────


def call(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command in a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if name != "ONEJOB_APP"}
    return subprocess.run(
        [ONEJOB, *args], capture_output=True, text=True, check=False, env=inherited | environment
    )


@pytest.mark.usefixtures("shop")
def test_a_request_goes_in_and_comes_out() -> None:
    created = call("enqueue", "shop:app", "sync_user", "user_id=42")
    kept = call("enqueue", "shop:app", "sync_user", "user_id=42")
    worked = call("worker", "shop:app", "--drain")
    listed = call("jobs", "shop:app")

    assert created.returncode == 0
    assert created.stdout.startswith("created  job ")
    assert kept.returncode == 0
    assert kept.stdout.startswith("kept  job ")
    assert "The same work is already available; the policy keeps it." in kept.stdout
    assert worked.returncode == 0, worked.stderr
    assert re.search(
        r"Worker \S+ runs 11 tasks from sqlite:////\S+/jobs.db, queues default:8, embeddings:1.",
        worked.stdout,
    )
    assert re.search(r"Worker \S+ stopped after \S+ and 1 run: 1 completed.", worked.stdout)
    assert "completed" in listed.stdout


@pytest.mark.usefixtures("shop")
def test_errors_are_one_sentence_on_stderr() -> None:
    call("migrate", "shop:app")
    refused = call("job", "shop:app", NOBODY)
    misused = call("jobs", "shop:app", "--state", "asleep")

    assert (refused.returncode, refused.stdout) == (1, "")
    assert (
        refused.stderr == f"Error: No job has the id '{NOBODY}': it never existed, or it has been pruned.\n"
    )
    assert (misused.returncode, misused.stdout) == (2, "")
    assert "'asleep' is not one of 'scheduled'" in misused.stderr


@pytest.mark.usefixtures("shop")
def test_the_environment_may_name_the_app() -> None:
    first = call("enqueue", "sync_user", "user_id=1", "--key", "user:abc", ONEJOB_APP="shop:app")
    listed = call("jobs", "--json", ONEJOB_APP="shop:app")
    other = call("jobs", "nothing:here", ONEJOB_APP="shop:app")
    without = call("jobs")

    assert first.returncode == 0, first.stderr
    [job] = json.loads(listed.stdout)
    assert call("job", job["id"], ONEJOB_APP="shop:app").returncode == 0
    assert "There is no module 'nothing'" in other.stderr
    assert without.returncode == 2
    assert "Missing argument 'APP'" in without.stderr


def on_terminal(*args: str, **environment: str) -> str:
    """Run the command on a terminal of its own and return what it shows."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([ONEJOB, *args], stdout=theirs, env=os.environ | environment)
    os.close(theirs)
    shown = b""
    with os.fdopen(ours, "rb", buffering=0) as screen:
        while chunk := read_some(screen):
            shown += chunk
    assert process.wait() == 0
    return shown.decode().replace("\r\n", "\n")


def read_some(screen: Any) -> bytes:
    try:
        some: bytes = screen.read(65536)
    except OSError:  # Linux says so when the other side has closed
        return b""
    return some


def test_a_terminal_gets_colours_and_a_table_that_fits(onejob: Onejob) -> None:
    enqueue(onejob, "sync_user", "user_id=1", f"note={'x' * 300}")

    coloured = on_terminal("jobs", "shop:app", COLUMNS="120", NO_COLOR="")
    colourless = on_terminal("jobs", "shop:app", COLUMNS="120", NO_COLOR="1")
    piped = onejob("jobs", "shop:app").stdout

    assert "\x1b[34mavailable" in coloured
    assert "\x1b" not in colourless + piped
    assert max(map(len, colourless.splitlines())) == 120
    assert "…" in colourless
    assert "x" * 300 in piped


# ── enqueue ───────────────────────────────────────────────────────────────────────────────────────


def test_enqueue_takes_every_option(onejob: Onejob) -> None:
    options = [
        "--delay",
        "1h",
        "--priority",
        "5",
        "--queue",
        "embeddings",
        "--meta",
        "tenant=7",
        "--meta",
        "who=me",
    ]
    job_id = enqueue(onejob, "sync_user", "user_id=1", "note=42", *options)

    job = answer(onejob("job", "shop:app", job_id, "--json"))

    assert job["args"] == {"user_id": 1, "note": "42"}  # text where the task wants text
    assert job["meta"] == {"tenant": 7, "who": "me"}
    assert (job["state"], job["priority"], job["queue"]) == ("scheduled", 5, "embeddings")


def test_arguments_may_be_one_object(onejob: Onejob) -> None:
    first = enqueue(onejob, "sync_user", "--args", '{"user_id": 42}')

    assert enqueue(onejob, "sync_user", "user_id=42") == first


def test_arguments_get_the_types_that_the_task_declares(onejob: Onejob) -> None:
    enqueue(onejob, "remind", "at=2026-01-01T00:00:00+00:00")

    assert drain(onejob) == {"completed": 1}


def test_force_and_key_are_passed_on(onejob: Onejob) -> None:
    first = answer(onejob("enqueue", "shop:app", "sync_user", "user_id=1", "--key", "mine", "--json"))
    again = answer(onejob("enqueue", "shop:app", "sync_user", "user_id=2", "--key", "mine", "--json"))
    forced = answer(
        onejob("enqueue", "shop:app", "sync_user", "user_id=2", "--key", "mine", "--force", "--json")
    )

    assert (again["outcome"], again["job"], again["deduplicated"]) == ("kept", first["job"], True)
    assert again["payload_differs"] is True
    assert (forced["outcome"], forced["holder"]) == ("forced", first["job"])
    assert forced["job"] != first["job"]


def test_a_rejected_duplicate_is_an_answer_and_a_failure(onejob: Onejob) -> None:
    first = enqueue(onejob, "strict", "n=1")

    refused = onejob("enqueue", "shop:app", "strict", "n=1", "--json", code=1)

    assert (answer(refused)["outcome"], answer(refused)["job"]) == ("rejected", first)


@pytest.mark.usefixtures("shop")
def test_wait_prints_the_result() -> None:
    with subprocess.Popen([ONEJOB, "worker", "shop:app"], stdout=subprocess.PIPE) as worker:
        waited = call("enqueue", "shop:app", "sync_user", "user_id=42", "note=now", "--wait")
        as_json = call("enqueue", "shop:app", "sync_user", "user_id=43", "--wait", "--json")
        failed = call("enqueue", "shop:app", "explode", "n=1", "--wait")
        worker.terminate()

    assert waited.stdout.splitlines()[-1] == 'result  "synced 42 now"'
    assert json.loads(as_json.stdout)["result"] == "synced 43"
    assert failed.returncode == 1
    assert "failed for good: RuntimeError: boom" in failed.stderr
    assert "Traceback" not in failed.stderr


# ── looking ───────────────────────────────────────────────────────────────────────────────────────


def test_jobs_are_filtered(onejob: Onejob) -> None:
    user = enqueue(onejob, "sync_user", "user_id=1")
    later = enqueue(onejob, "explode", "n=1", "--delay", "1h", "--queue", "embeddings")
    key = answer(onejob("job", "shop:app", user, "--json"))["key"]

    def ids(*options: str) -> list[str]:
        return [job["id"] for job in answer(onejob("jobs", "shop:app", *options, "--json"))]

    assert ids() == [later, user]
    assert ids("--limit", "1") == [later]
    assert ids("--state", "available") == ids("--task", "sync_user") == ids("--key", key) == [user]
    assert ids("--state", "scheduled") == ids("--queue", "embeddings") == [later]
    assert ids("--state", "scheduled", "--state", "available") == [later, user]
    assert "No task is named 'none'" in onejob("jobs", "shop:app", "--task", "none", code=1).output


def test_a_job_is_shown_whole(onejob: Onejob) -> None:
    job_id = enqueue(onejob, "explode", "n=7", "--meta", "tenant=acme")
    drain(onejob)

    shown = onejob("job", "shop:app", job_id).stdout
    document = answer(onejob("job", "shop:app", job_id, "--json"))

    for part in ("discarded", '{"n": 7, "text": "boom"}', '{"tenant": "acme"}', "1 of 1", "none: not unique"):
        assert part in shown
    assert re.search(
        r"^attempt 1, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(.+ ago\): RuntimeError$", shown, re.MULTILINE
    )
    assert re.search(r"last worker +\S+:\d+:", shown)
    assert "raise RuntimeError(text)\nRuntimeError: boom" in shown
    assert document["errors"][0]["type"] == "RuntimeError"
    assert (document["holding"], document["absorbed"]) == (False, 0)


def test_a_job_shows_its_hold_and_what_it_absorbed(onejob: Onejob) -> None:
    job_id = enqueue(onejob, "sync_user", "user_id=1")
    enqueue(onejob, "sync_user", "user_id=1")

    shown = onejob("job", "shop:app", job_id).stdout

    assert re.search(r"hold +since .*, until .* \(in 9m", shown)
    assert re.search(r"absorbed +1 request\n", shown)


def test_what_a_job_carries_cannot_steer_the_terminal(onejob: Onejob) -> None:
    job_id = enqueue(onejob, "explode", "n=1", "text=\x1b]0;owned\x07\x9b31m")
    drain(onejob)

    for command in (["jobs"], ["job", job_id], ["dead"], ["why", job_id]):
        shown = onejob(command[0], "shop:app", *command[1:]).stdout
        assert not {"\x1b", "\x07", "\x9b"} & set(shown)


def test_stats_count(onejob: Onejob) -> None:
    enqueue(onejob, "sync_user", "user_id=1")
    enqueue(onejob, "sync_user", "user_id=1")
    enqueue(onejob, "explode", "n=1")

    document = answer(onejob("stats", "shop:app", "--json"))
    shown = onejob("stats", "shop:app").stdout

    assert (document["waiting"], document["running"], document["dead"]) == (2, 0, 0)
    assert document["by_state"]["available"] == 2
    assert document["by_queue"]["default"]["available"] == 2
    assert document["absorbed"] == {"sync_user": {"kept": 1}}
    assert re.search(r"sync_user +kept +1\n", shown)


def test_stats_show_how_long_jobs_wait_and_run(onejob: Onejob) -> None:
    enqueue(onejob, "sync_user", "user_id=1")
    before = answer(onejob("stats", "shop:app", "--json"))
    assert before["oldest_due"]["default"] > 0
    assert before["timings"] == {window: {"by_task": {}, "by_queue": {}} for window in ("5m", "1h")}
    assert "No run has ended within the last hour." in onejob("stats", "shop:app").stdout

    onejob("worker", "shop:app", "--drain")
    after = answer(onejob("stats", "shop:app", "--json"))
    assert (after["oldest_due"], after["lost"]) == ({}, 0)
    assert after["timings"]["5m"]["by_queue"]["default"]["wait"]["count"] == 1
    assert after["timings"]["1h"]["by_task"]["sync_user"]["run"].keys() == {"count", "p50", "p95", "p99"}
    assert re.search(r"task sync_user +5m +1 +\S+ +\S+", onejob("stats", "shop:app").stdout)


# ── why ───────────────────────────────────────────────────────────────────────────────────────────


def test_why_says_that_a_request_would_be_admitted(onejob: Onejob) -> None:
    onejob("migrate", "shop:app")
    free = answer(onejob("why", "shop:app", "sync_user", "user_id=1", "--json"))
    common = answer(onejob("why", "shop:app", "explode", "n=1", "--json"))

    assert (free["outcome"], free["holder"], free["to_run_now"]) == ("created", None, [])
    assert free["dimensions"]["args"] == {"user_id": 1}
    assert (common["policy"], common["key"]) == ("not unique", None)
    assert answer(onejob("jobs", "shop:app", "--json")) == []  # asking made nothing


def test_why_says_who_holds_the_key_and_how_to_run_now(onejob: Onejob) -> None:
    holder = enqueue(onejob, "sync_user", "user_id=42")
    enqueue(onejob, "sync_user", "user_id=42")

    shown = onejob("why", "shop:app", "sync_user", "--args", '{"user_id": 42}').stdout
    document = answer(onejob("why", "shop:app", "sync_user", "user_id=42", "--json"))

    assert re.search(r"verdict +kept\n", shown)
    assert re.search(r"rule +unique by task \+ user_id, held for 10m at most, until the job ", shown)
    assert 'task = "sync_user"' in shown
    assert 'args = {"user_id": 42}' in shown
    assert re.search(rf"holder +{holder}, available, created ", shown)
    assert re.search(r"frees +.* \(in 9m.*\) at the latest\n", shown)
    assert re.search(r"absorbed +1 request\n", shown)
    assert document["holder"]["id"] == holder
    assert document["absorbed"] == 1
    assert document["frees_at"] is not None
    for way in reversed(document["to_run_now"]):  # each works: first release, then force
        assert onejob(*way.split()[1:])


def test_why_leaves_out_values_if_asked(onejob: Onejob) -> None:
    holder = enqueue(onejob, "sync_user", "user_id=4242")
    enqueue(onejob, "sync_user", "user_id=4242")
    other = enqueue(onejob, "sync_user", "user_id=5353")
    key = answer(onejob("job", "shop:app", holder, "--json"))["key"]
    ended = enqueue(onejob, "sync_user", "user_id=7474")
    onejob("cancel", "shop:app", ended)
    questions = (
        ["sync_user", "user_id=4242"],
        ["sync_user", "--args", '{"user_id": 4242}'],
        [holder],
        [key],
        [ended],
        [holder, "--compare", other],
    )

    for question in questions:
        for form in ([], ["--json"]):
            told = onejob("why", "shop:app", *question, *form).stdout
            assert re.search("4242|7474", told), question
            told = onejob("why", "shop:app", *question, "--redact", *form).stdout
            assert not re.search("4242|5353|7474", told), question
    told = onejob("why", "shop:app", "sync_user", "user_id=4242", "--redact").stdout
    assert 'task = "sync_user"' in told
    assert 'args = {"user_id": "…"}' in told


def test_why_says_of_a_job_what_it_says_of_its_call(onejob: Onejob) -> None:
    holder = enqueue(onejob, "sync_user", "user_id=42")
    key = answer(onejob("job", "shop:app", holder, "--json"))["key"]
    of_call = answer(onejob("why", "shop:app", "sync_user", "user_id=42", "--json"))

    for what in (holder, key):
        told = onejob("why", "shop:app", what).stdout
        assert re.search(r"^rule +unique by task \+ user_id, ", told, re.MULTILINE)
        assert re.search(r'^canonical +{"args":{"user_id":42},', told, re.MULTILINE)
        assert re.search(rf"^key +{key}$", told, re.MULTILINE)
        assert re.search(r"^frees +.* at the latest$", told, re.MULTILINE)
        document = answer(onejob("why", "shop:app", what, "--json"))
        for fact in ("policy", "dimensions", "canonical", "key", "frees_at", "absorbed"):
            assert document["request"][fact] == of_call[fact]


def test_why_says_how_to_run_a_job_now(onejob: Onejob) -> None:
    scheduled = enqueue(onejob, "explode", "n=1", "--delay", "1h")
    done = enqueue(onejob, "sync_user", "user_id=8")
    onejob("cancel", "shop:app", done)

    for job_id in (scheduled, done):
        [way] = answer(onejob("why", "shop:app", job_id, "--json"))["to_run_now"]
        assert re.search(r"^to run now +onejob ", why(onejob, job_id), re.MULTILINE)
        assert onejob(*shlex.split(way)[1:])


def test_the_caller_of_a_request_from_the_command_line_is_the_command(onejob: Onejob) -> None:
    enqueue(onejob, "sync_user", "user_id=42")
    enqueue(onejob, "sync_user", "user_id=42")

    [entry] = answer(onejob("why", "shop:app", "sync_user", "user_id=42", "--json"))["log"]
    assert "click" not in entry["line"]


def test_two_jobs_are_compared_side_by_side(onejob: Onejob) -> None:
    one, other = enqueue(onejob, "sync_user", "user_id=1"), enqueue(onejob, "sync_user", "user_id=2")

    told = onejob("why", "shop:app", one, "--compare", other).stdout
    assert "Their keys differ first in args.user_id." in told
    assert re.search(rf"^ARGUMENT +{one} +{other}$", told, re.MULTILINE)
    assert re.search(r"^user_id +1 +2$", told, re.MULTILINE)


def test_why_says_how_a_hold_without_a_window_ends(onejob: Onejob) -> None:
    enqueue(onejob, "strict", "n=1")
    enqueue(onejob, "fragile", "n=1")

    assert re.search(r"frees +at its end\n", onejob("why", "shop:app", "strict", "n=1").stdout)
    assert re.search(r"frees +if it fails\n", onejob("why", "shop:app", "fragile", "n=1").stdout)


def why(onejob: Onejob, job_id: str, app: str = "shop:app") -> str:
    return onejob("why", app, job_id).stdout


def test_why_says_what_a_waiting_job_waits_for(onejob: Onejob) -> None:
    scheduled = enqueue(onejob, "explode", "n=1", "--delay", "1h")
    available = enqueue(onejob, "explode", "n=2", "--queue", "embeddings")
    running = enqueue(onejob, "coalesced", "n=1")
    activate(running)
    successor = enqueue(onejob, "coalesced", "n=1", "text=newer")

    assert "It is scheduled for " in why(onejob, scheduled)
    assert "It is due, but no worker is alive: onejob worker shop:app" in why(onejob, available)
    assert "Worker w has run it since" in why(onejob, running)
    assert f"It waits behind job {running}, which is active" in why(onejob, successor)
    document = answer(onejob("why", "shop:app", successor, "--json"))
    assert document["job"]["id"] == successor
    assert document["why"][0].startswith("It waits behind")


def test_why_says_that_a_queue_is_full(onejob: Onejob) -> None:
    activate(enqueue(onejob, "explode", "n=1", "--queue", "embeddings"))
    waiting = enqueue(onejob, "explode", "n=2", "--queue", "embeddings")

    assert "queue 'embeddings' already runs 1 job, which is its limit" in why(onejob, waiting)


def test_why_says_that_a_task_is_gone(onejob: Onejob, shop: Path) -> None:
    job_id = enqueue(onejob, "explode", "n=1")
    (shop / "other.py").write_text(
        "from onejob import App\napp = App('sqlite:///jobs.db')\n@app.task\ndef f(): ..."
    )

    assert "no task is named 'explode' in this app" in why(onejob, job_id, "other:app")
    (shop / "empty.py").write_text(f"from onejob import App\n\napp = App({URL!r})\n")
    assert "No tasks are declared here" in why(onejob, job_id, "empty:app")
    assert "name the app, or its modules with --import" in why(onejob, job_id, URL)


def test_why_says_how_a_job_ended(onejob: Onejob) -> None:
    done = enqueue(onejob, "sync_user", "user_id=1")
    dead = enqueue(onejob, "explode", "n=1")
    drain(onejob)
    cancelled = enqueue(onejob, "explode", "n=2")
    onejob("cancel", "shop:app", cancelled)
    old = enqueue(onejob, "replaced", "n=1")
    new = enqueue(onejob, "replaced", "n=1", "text=newer")

    assert "It completed " in why(onejob, done)
    assert "It failed for good " in why(onejob, dead)
    assert "Attempt 1 of 1 ended with RuntimeError: boom" in why(onejob, dead, URL)
    assert f"onejob replay shop:app {dead}" in why(onejob, dead)
    assert "It was cancelled " in why(onejob, cancelled)
    assert f"That is job {new}, which is available." in why(onejob, old)


def test_why_says_that_a_job_came_too_late(onejob: Onejob) -> None:
    late = enqueue(onejob, "explode", "n=1", "--expires-in", "0s")
    drain(onejob)

    assert "It had to start by " in why(onejob, late)
    assert f"onejob replay shop:app {late}" in why(onejob, late)


# ── queues ────────────────────────────────────────────────────────────────────────────────────────


def test_queues_are_listed_paused_and_resumed(onejob: Onejob) -> None:
    waiting = enqueue(onejob, "explode", "n=1", "--queue", "embeddings")
    activate(enqueue(onejob, "explode", "n=2"))

    assert answer(onejob("pause", "shop:app", "embeddings", "--json")) == {
        "queue": "embeddings",
        "paused": True,
    }
    default, embeddings = answer(onejob("queues", "shop:app", "--json"))
    assert (default["queue"], default["depth"], default["active"], default["paused"]) == (
        "default",
        0,
        1,
        False,
    )
    assert embeddings == {
        "queue": "embeddings",
        "depth": 1,
        "active": 0,
        "paused": True,
        "concurrency": 1,
        "partition_concurrency": None,
        "rate": None,
        "max_depth": None,
    }
    shown = onejob("queues", "shop:app").stdout
    assert shown.startswith("QUEUE       WAITING  RUNNING  ")
    assert re.search(r"embeddings +1 +0 +1 +paused", shown)
    assert "is paused: onejob resume shop:app embeddings" in why(onejob, waiting)

    drain(onejob)
    assert answer(onejob("job", "shop:app", waiting, "--json"))["state"] == "available"
    assert "is resumed" in onejob("resume", URL, "embeddings").stdout
    drain(onejob)
    assert answer(onejob("job", "shop:app", waiting, "--json"))["state"] == "discarded"


def test_a_queue_is_paused_by_its_right_name_only(onejob: Onejob) -> None:
    refused = onejob("pause", "shop:app", "embedings", code=1)

    assert "No queue is named 'embedings'" in refused.stderr


# ── holds ─────────────────────────────────────────────────────────────────────────────────────────


def test_holds_are_listed_and_released_by_key(onejob: Onejob) -> None:
    job_id = enqueue(onejob, "sync_user", "user_id=1")
    enqueue(onejob, "sync_user", "user_id=1")

    [hold] = answer(onejob("holds", "shop:app", "--json"))
    shown = onejob("holds", "shop:app").stdout
    freed = answer(onejob("release", "shop:app", hold["key"], "--json"))

    assert (hold["id"], hold["role"], hold["absorbed"]) == (job_id, "holder", 1)
    assert hold["key"] in shown
    assert freed == {"key": hold["key"], "job": job_id, "state": "available"}
    assert onejob("holds", "shop:app").stdout == "No key is held.\n"
    assert f"No job holds the key {hold['key']}." in onejob("release", "shop:app", hold["key"], code=1).stderr
    assert f"Job {job_id} holds no key." in onejob("release", "shop:app", job_id, code=1).stderr


def test_a_running_holder_is_released_by_force_only(onejob: Onejob) -> None:
    running = enqueue(onejob, "coalesced", "n=1")
    activate(running)
    successor = enqueue(onejob, "coalesced", "n=1", "text=newer")

    roles = {hold["id"]: hold["role"] for hold in answer(onejob("holds", "shop:app", "--json"))}
    refused = onejob("release", "shop:app", running, code=1)
    onejob("release", "shop:app", running, "--force")

    assert roles == {running: "holder", successor: "successor"}
    assert "release it with force" in refused.stderr
    assert answer(onejob("job", "shop:app", successor, "--json"))["state"] == "available"


# ── dead letters and cancelling ───────────────────────────────────────────────────────────────────


def test_a_list_and_an_explanation_show_how_far_a_run_is() -> None:
    app = App("memory://")
    waiting = app.task(name="crunch")(lambda: None).enqueue_sync().job
    running = alter(waiting, state=State.ACTIVE, progress=b'{"fraction":0.62,"message":"step 62"}')

    assert (state_of(waiting), state_of(running)) == ("available", "active 62%")
    assert "It reports that 62% are done." in JobExplainer(engine_of(app), registry_of(app)).active(running)


def test_a_dead_letter_is_listed_and_replayed(onejob: Onejob) -> None:
    job_id = enqueue(onejob, "explode", "n=1")
    drain(onejob)

    [letter] = answer(onejob("dead", "shop:app", "--json"))
    shown = onejob("dead", "shop:app", "--task", "explode").stdout
    replayed = answer(onejob("replay", "shop:app", job_id, "--json"))

    assert letter["id"] == job_id
    assert "RuntimeError: boom" in shown
    assert onejob("dead", "shop:app", "--task", "sync_user").stdout == "No dead letters.\n"
    assert (replayed["outcome"], replayed["job"], replayed["state"]) == ("created", job_id, "available")
    assert onejob("dead", "shop:app").stdout == "No dead letters.\n"
    assert "so it cannot be replayed" in onejob("replay", "shop:app", job_id, code=1).stderr


def test_a_dead_letter_whose_key_is_held_stays(onejob: Onejob) -> None:
    letter = enqueue(onejob, "fragile", "n=1")
    drain(onejob)
    holder = enqueue(onejob, "fragile", "n=1")

    kept = answer(onejob("replay", "shop:app", letter, "--json", code=1))

    assert (kept["outcome"], kept["job"]) == ("kept", holder)
    told = onejob("replay", "shop:app", letter, code=1).stdout.splitlines()[-1]
    assert told == (
        f"Replay it when that job has ended, or run both: onejob release shop:app {holder} "
        f"&& onejob replay shop:app {letter}"
    )
    onejob("release", "shop:app", holder)
    assert answer(onejob("replay", "shop:app", letter, "--json"))["outcome"] == "created"


def test_all_dead_letters_are_replayed_and_counted(onejob: Onejob) -> None:
    for n in range(5):
        enqueue(onejob, "explode", f"n={n}")
    enqueue(onejob, "fragile", "n=1")
    drain(onejob)
    enqueue(onejob, "fragile", "n=1")

    some = answer(onejob("replay", "shop:app", "--all", "--task", "fragile", "--json"))
    rest = onejob("replay", "shop:app", "--all").stdout

    assert some == {"total": 1, "created": 0, "kept": 1, "stale": 0, "refused": 0, "gone": 0}
    assert rest.splitlines() == [
        "5 dead letters: available again.",
        "1 dead letter: left where they are, because the same work is already waiting or running.",
    ]
    assert len(answer(onejob("jobs", "shop:app", "--state", "available", "--json"))) == 6


def test_dead_letters_that_died_of_the_same_are_grouped(onejob: Onejob) -> None:
    for n, text in enumerate(["user 1 is gone", "user 22 is gone", "disk full"]):
        enqueue(onejob, "explode", f"n={n}", f"text={text}")
    drain(onejob)

    groups = answer(onejob("dead", "shop:app", "--group", "--json"))
    shown = onejob("dead", "shop:app", "--group").stdout
    one = answer(onejob("dead", "shop:app", "--group", "--message", "disk", "--json"))

    found = [(one["count"], one["task"], one["error"], one["message"]) for one in groups]
    assert found == [
        (2, "explode", "RuntimeError", "user # is gone"),
        (1, "explode", "RuntimeError", "disk full"),
    ]
    assert re.search(r"^2 +explode +RuntimeError: user # is gone ", shown, re.MULTILINE)
    assert [group["count"] for group in one] == [1]
    assert onejob("dead", "shop:app", "--group", "--task", "x").stdout == "No dead letters.\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--message", "disk"], 1),
        (["--error", "RuntimeError", "--newer-than", "1h"], 3),
        (["--queue", "embeddings"], 0),
        (["--older-than", "1h"], 0),
        (["--error", "TimeoutError"], 0),
    ],
)
def test_dead_letters_are_replayed_by_what_they_are(
    onejob: Onejob, options: list[str], expected: int
) -> None:
    for n, text in enumerate(["user 1 is gone", "user 22 is gone", "disk full"]):
        enqueue(onejob, "explode", f"n={n}", f"text={text}")
    drain(onejob)

    listed = answer(onejob("dead", "shop:app", *options, "--json"))
    replayed = answer(onejob("replay", "shop:app", "--all", *options, "--json"))

    assert (len(listed), replayed["total"], replayed["created"]) == (expected, expected, expected)
    assert len(answer(onejob("dead", URL, "--json"))) == 3 - expected


def test_a_dead_letter_is_replayed_with_other_arguments(onejob: Onejob) -> None:
    job_id = enqueue(onejob, "explode", "n=1", "text=wrong")
    drain(onejob)

    onejob("replay", "shop:app", job_id, "--set", "text=42", "--args", '{"n": 2}')

    shown = answer(onejob("job", "shop:app", job_id, "--json"))
    assert (shown["args"], shown["replays"], shown["state"]) == ({"n": 2, "text": "42"}, 1, "available")


def test_an_edit_that_makes_other_work_is_refused(onejob: Onejob) -> None:
    job_id = enqueue(onejob, "fragile", "n=1")
    drain(onejob)

    refused = onejob("replay", "shop:app", job_id, "--set", "n=2", code=1).stderr
    many = answer(onejob("replay", "shop:app", "--all", "--task", "fragile", "--set", "n=2", "--json"))
    needy = onejob("replay", "shop:app", "--all", "--set", "n=2", code=2).stderr

    assert "enqueue it anew with fragile.enqueue(…)" in refused
    assert (many["refused"], many["created"]) == (1, 0)
    assert "--set with --all needs --task" in needy


def test_a_letter_that_comes_back_by_itself_says_when(onejob: Onejob) -> None:
    job_id = enqueue(onejob, "stubborn", "n=1")
    drain(onejob)

    shown = onejob("job", "shop:app", job_id).stdout
    assert re.search(r"^comes back +\d{4}-.* UTC \(in (59m|1h)", shown, re.MULTILINE)
    assert "It is replayed automatically " in why(onejob, job_id)
    assert answer(onejob("job", "shop:app", job_id, "--json"))["returns_at"] is not None


def test_ended_jobs_are_pruned(onejob: Onejob) -> None:
    enqueue(onejob, "stubborn", "n=0")
    enqueue(onejob, "sync_user", "user_id=1")
    assert onejob("prune", "shop:app").stdout.startswith("No ended job")
    drain(onejob)

    would = answer(onejob("prune", "shop:app", "--dry-run", "--json"))
    told = onejob("prune", "shop:app", "--dry-run").stdout
    done = onejob("prune", "shop:app").stdout
    age_by_days(8)
    rest = answer(onejob("prune", "shop:app", "--json"))

    assert would == {"dry_run": True, "looked_at": 1, "deleted": 1, "emptied": 0}
    assert (told, done) == ("1 job would be deleted.\n", "1 job deleted.\n")
    assert rest == {"dry_run": False, "looked_at": 1, "deleted": 1, "emptied": 0}
    assert onejob("jobs", "shop:app").stdout == "No such jobs.\n"


def test_a_store_alone_is_not_pruned_for_it_knows_no_retention(onejob: Onejob) -> None:
    assert "has no tasks" in onejob("prune", URL, code=2).stderr


def age_by_days(days: int) -> None:
    """Pretend that everything happened earlier."""
    with closing(sqlite3.connect("jobs.db")) as database, database:
        micros = days * 86_400_000_000
        earlier = "UPDATE onejob_jobs SET finished_at = finished_at - ?1, kept_until = kept_until - ?1"
        database.execute(earlier, (micros,))


def test_replaying_nothing_says_so(onejob: Onejob) -> None:
    onejob("migrate", "shop:app")
    assert onejob("replay", "shop:app", "--all").stdout == "No dead letters.\n"


def test_cancelling(onejob: Onejob) -> None:
    waiting = enqueue(onejob, "explode", "n=1")
    running = enqueue(onejob, "explode", "n=2")
    activate(running)
    done = enqueue(onejob, "sync_user", "user_id=1")

    assert onejob("cancel", "shop:app", waiting).stdout == f"Job {waiting} is cancelled.\n"
    assert onejob("cancel", "shop:app", waiting).stdout == f"Job {waiting} is cancelled.\n"
    assert "has been asked to stop" in onejob("cancel", "shop:app", running).stdout
    drain(onejob)
    assert (
        f"Job {done} has already ended: it is completed." in onejob("cancel", "shop:app", done, code=1).stderr
    )


@pytest.mark.parametrize("place", ["shop:app", URL])
def test_the_beginning_of_an_id_names_its_job(onejob: Onejob, place: str) -> None:
    whole = enqueue(onejob, "sync_user", "user_id=1", "--delay", "1h")
    short = whole[:8]

    def ask(command: str) -> Any:
        return answer(onejob(command, place, short, "--json"))

    assert ask("job")["id"] == whole
    assert ask("why")["job"]["id"] == whole
    assert ask("chain")["chain"] == whole
    assert ask("release")["job"] == whole
    assert [job["id"] for job in ask("run-now")] == [whole]
    assert onejob("cancel", place, short).stdout == f"Job {whole} is cancelled.\n"
    assert "is too short for an id" in onejob("job", place, "01", code=1).stderr
    enqueue(onejob, "sync_user", "user_id=2")
    refusal = onejob("cancel", place, whole[:6], code=1).stderr
    assert f"'{whole[:6]}' is the beginning of several ids: " in refusal
    assert whole in refusal


def test_the_form_that_the_dashboard_shows_names_a_dead_letter(onejob: Onejob) -> None:
    whole = enqueue(onejob, "explode", "n=1")
    drain(onejob)
    short = f"{whole[:4]}…{whole[-8:-4]}"
    assert answer(onejob("replay", "shop:app", short, "--json"))["job"] == whole


def test_cancelling_takes_the_successor_along(onejob: Onejob) -> None:
    running = enqueue(onejob, "coalesced", "n=1")
    activate(running)
    successor = enqueue(onejob, "coalesced", "n=1", "text=newer")

    cancelled = answer(onejob("cancel", "shop:app", running, "--successors", "--json"))

    assert cancelled["cancel_requested"] is True
    assert answer(onejob("job", "shop:app", successor, "--json"))["state"] == "cancelled"


# ── the store ─────────────────────────────────────────────────────────────────────────────────────


def findings(onejob: Onejob, app: str = "shop:app", code: int = 0) -> dict[str, Any]:
    document = answer(onejob("doctor", app, "--json", code=code))
    assert document["ok"] is (code == 0)
    return {finding["check"]: finding for finding in document["findings"]}


def test_the_doctor_finds_a_new_store_sound(onejob: Onejob) -> None:
    enqueue(onejob, "sync_user", "user_id=1")

    found = findings(onejob)
    shown = onejob("doctor", "shop:app").stdout

    sound = {"guarantees", "synchronous", "privacy", "schema", "integrity", "successors", "holds", "tasks"}
    assert {check for check in sound if found[check]["level"] != "ok"} == set()
    assert f"SQLite {sqlite3.sqlite_version}" in found["library"]["message"]
    assert "ok    The tables have version" in shown


def test_the_doctor_makes_nothing(onejob: Onejob, shop: Path) -> None:
    assert findings(onejob)["file"]["level"] == "warn"
    assert not (shop / "jobs.db").exists()


def test_the_doctor_warns_of_what_others_may_read(onejob: Onejob, shop: Path) -> None:
    enqueue(onejob, "sync_user", "user_id=1")
    (shop / "jobs.db").chmod(0o644)

    assert findings(onejob)["privacy"]["advice"] == "Run: chmod 600 jobs.db"


def test_the_doctor_counts_holds_that_no_task_makes_any_more(onejob: Onejob, shop: Path) -> None:
    enqueue(onejob, "sync_user", "user_id=1")
    (shop / "other.py").write_text(
        "from onejob import App\napp = App('sqlite:///jobs.db')\n@app.task\ndef f(): ..."
    )

    found = findings(onejob, "other:app")

    assert found["tasks"]["level"] == "warn"
    assert found["tasks"]["message"].startswith("1 hold of tasks that are not registered")
    assert "tasks" not in findings(onejob, URL)  # a store alone knows no tasks


def test_the_doctor_fails_on_a_stranded_successor(onejob: Onejob) -> None:
    running = enqueue(onejob, "coalesced", "n=1")
    activate(running)
    enqueue(onejob, "coalesced", "n=1", "text=newer")
    with closing(sqlite3.connect("jobs.db")) as database, database:
        database.execute("DELETE FROM onejob_jobs WHERE id = ?", (running,))

    assert findings(onejob, code=1)["successors"]["level"] == "fail"


def test_the_doctor_fails_on_an_orphaned_hold(onejob: Onejob) -> None:
    enqueue(onejob, "strict", "n=1")
    with closing(sqlite3.connect("jobs.db")) as database, database:
        database.execute("UPDATE onejob_jobs SET state = 'completed', finished_at = run_at")

    assert findings(onejob, code=1)["holds"]["level"] == "fail"


def test_the_doctor_fails_on_a_file_that_is_no_database(onejob: Onejob, shop: Path) -> None:
    (shop / "jobs.db").write_text("not a database, whatever its name says" * 100)

    assert findings(onejob, code=1)["file"]["level"] == "fail"


def test_the_doctor_fails_on_a_newer_schema(onejob: Onejob) -> None:
    onejob("migrate", "shop:app")
    with closing(sqlite3.connect("jobs.db")) as database, database:
        database.execute("INSERT INTO onejob_schema VALUES (9999, 0)")

    assert findings(onejob, code=1)["schema"]["advice"] == "Upgrade onejob."


def test_migrate_makes_the_tables(onejob: Onejob, shop: Path) -> None:
    before = answer(onejob("migrate", URL, "--status", "--json"))
    assert not (shop / "jobs.db").exists()
    made = onejob("migrate", URL).stdout
    after = answer(onejob("migrate", URL, "--status", "--json"))

    assert (before["found"], before["current"]) == (0, False)
    assert made == f"{URL} was set up with schema {after['known']}.\n"
    assert (after["found"], after["current"]) == (after["known"], True)
    assert onejob("migrate", URL, "--print-sql").stdout == "-- Nothing to do.\n"


def test_the_printed_script_is_the_migration(onejob: Onejob, shop: Path) -> None:
    script = onejob("migrate", URL, "--print-sql").stdout
    with closing(sqlite3.connect(shop / "jobs.db")) as database:
        database.executescript(script)

    assert answer(onejob("migrate", URL, "--status", "--json"))["current"] is True
    assert enqueue(onejob, "sync_user", "user_id=1")


def test_a_url_will_do_where_no_task_is_needed(onejob: Onejob) -> None:
    job_id = enqueue(onejob, "sync_user", "user_id=1")

    for command in (
        ["jobs"],
        ["job", job_id],
        ["holds"],
        ["dead"],
        ["replay", "--all"],
        ["stats"],
        ["doctor"],
    ):
        assert onejob(command[0], URL, *command[1:])
    assert onejob("release", URL, job_id)
    assert onejob("cancel", URL, job_id)


def test_jobs_are_moved_to_another_time(onejob: Onejob) -> None:
    one = enqueue(onejob, "sync_user", "user_id=1")
    two = enqueue(onejob, "sync_user", "user_id=2")

    assert f"Job {one} is scheduled, due " in onejob("reschedule", URL, one, two, "--delay", "2h").stdout
    [moved] = answer(onejob("reschedule", "shop:app", one, "--at", "2999-01-31T09:00:00+01:00", "--json"))
    assert moved["run_at"] == "2999-01-31T08:00:00+00:00"
    assert f"Job {two} is available, due " in onejob("run-now", "shop:app", two).stdout


def test_jobs_that_do_not_wait_are_not_moved(onejob: Onejob) -> None:
    job_id = enqueue(onejob, "sync_user", "user_id=1")
    onejob("cancel", URL, job_id)

    assert "is cancelled, so it cannot be moved" in onejob("run-now", URL, job_id, code=1).stdout
    assert "Say when: --delay 30m" in onejob("reschedule", URL, job_id, code=2).output
    assert "has no time zone" in onejob("reschedule", URL, job_id, "--at", "2999-01-31", code=2).output


def test_a_url_shows_one_tenant_at_a_time(onejob: Onejob) -> None:
    enqueue(onejob, "sync_user", "user_id=1")

    assert answer(onejob("stats", URL, "--json"))["waiting"] == 1
    assert answer(onejob("stats", URL, "--namespace", "acme", "--json"))["waiting"] == 0
    assert "goes with a URL" in onejob("stats", "shop:app", "--namespace", "acme", code=2).output


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def new_home(request: pytest.FixtureRequest) -> str:
    """Name a store that is still empty."""
    if request.param == "sqlite":
        return "sqlite:///new.db"
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def test_jobs_move_house(onejob: Onejob, new_home: str) -> None:
    job_id = enqueue(onejob, "sync_user", "user_id=1")
    enqueue(onejob, "sync_user", "user_id=2")

    moved = onejob("move", "shop:app", new_home)

    assert "2 jobs are in" in moved.stdout
    assert answer(onejob("stats", URL, "--json"))["waiting"] == 0
    assert answer(onejob("job", new_home, job_id, "--json"))["state"] == "available"
    assert answer(onejob("move", URL, new_home, "--json")) == {"moved": 0, "taken": 0, "left": 0}
    assert job_id in onejob("jobs", new_home, "--json").stdout


@pytest.mark.parametrize("spelling", ["shop:app", URL, URL.replace("///", "///./"), "postgres", "redis"])
def test_a_move_onto_the_same_store_is_refused_however_its_url_is_spelled(
    onejob: Onejob, request: pytest.FixtureRequest, spelling: str
) -> None:
    old, new = "shop:app", spelling
    enqueue(onejob, "sync_user", "user_id=1")
    if spelling in {"postgres", "redis"}:
        old = request.getfixturevalue(f"{spelling}_url")
        new = f"{old}&connect_timeout=5" if spelling == "postgres" else old.replace("127.0.0.1", "localhost")
        assert new != old
        onejob("move", URL, old)

    told = onejob("move", old, new, code=1)

    assert "the same store" in told.output
    assert answer(onejob("stats", old, "--json"))["waiting"] == 1


def test_a_job_whose_key_the_new_home_has_given_away_stays(onejob: Onejob, new_home: str) -> None:
    enqueue(onejob, "sync_user", "user_id=1")
    onejob("move", URL, new_home)
    stays = enqueue(onejob, "sync_user", "user_id=1")

    told = onejob("move", URL, new_home, code=1)

    assert "1 could not be moved" in told.stdout
    assert answer(onejob("job", URL, stays, "--json"))["state"] == "available"


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (["jobs", "shop"], 2, "'shop' is not an app: write module:attribute, as in shop:app"),
        (["jobs", "nowhere:app"], 2, "There is no module 'nowhere'"),
        (["jobs", "nowhere.shop:app"], 2, "There is no module 'nowhere.shop'"),
        (["jobs", "shop:nothing"], 2, "Module 'shop' has no attribute 'nothing': write shop:app."),
        (["jobs", "shop:plain"], 2, "shop:plain is of type object, not an onejob App."),
        (["jobs", "broken:app"], 1, "broken could not be imported: ZeroDivisionError: division by zero ("),
        (
            ["jobs", "needy:app"],
            1,
            "needy could not be imported: ModuleNotFoundError: No module named 'lacking'",
        ),
        (["jobs", "unwise:app"], 1, "unwise_task: by='colour' is not an argument"),
        (["jobs", "sqlite:///none.db"], 1, "/none.db has no tables of onejob"),
        (["jobs", "oracle://db"], 1, "begins with 'oracle' names no store"),
        (["jobs", "shop:app", "--key", "xyz"], 1, "'xyz' is not a key"),
        (["jobs", "shop:app", "--limit", "0"], 2, "0 is not in the range x>=1"),
        (["job", "shop:app", NOBODY], 1, "No job has the id"),
        (["cancel", "shop:app", NOBODY], 1, "No job has the id"),
        (["replay", "shop:app", NOBODY], 1, "No job has the id"),
        (["replay", "shop:app"], 2, "Name one dead letter by its ID, or write --all"),
        (["replay", "shop:app", NOBODY, "--all"], 2, "Name one dead letter by its ID, or write --all"),
        (["replay", "shop:app", NOBODY, "--task", "x"], 2, "Name one dead letter by its ID, or write --all"),
        (["release", "shop:app", "xyz"], 1, "'xyz' is not a key"),
        (["release", "shop:app", "ab" * 32], 1, "No job holds the key"),
        (["worker", URL], 2, "names a store, which has no tasks"),
        (["worker", "shop:app", "--queues", "none"], 1, "No queue is named 'none'"),
        (["worker", "shop:app", "--queues", "a:b"], 2, "'a:b' is not a queue: write a, or a:3"),
        (["worker", "shop:app", "--lease", "soon"], 2, "'soon' is not a duration"),
        (["worker", "shop:app", "--concurrency", "0"], 2, "0 is not in the range x>=1"),
        (["enqueue", URL, "sync_user"], 2, "names a store, which has no tasks"),
        (["enqueue", "shop:app", "nothing"], 1, "No task is named 'nothing'; registered: "),
        (["enqueue", "shop:app", "sync_user"], 1, "missing a required argument: 'user_id'"),
        (["enqueue", "shop:app", "sync_user", "user_id=me"], 2, "Expected `int`, got `str`"),
        (["enqueue", "shop:app", "sync_user", "colour=red"], 1, "The call does not fit the task"),
        (["enqueue", "shop:app", "sync_user", "42"], 2, "'42' is not a pair: write name=value."),
        (["enqueue", "shop:app", "sync_user", "--args", "[1]"], 2, "is not an object"),
        (["enqueue", "shop:app", "sync_user", "--args", "{"], 2, "is not JSON"),
        (["enqueue", "shop:app", "sync_user", "user_id=1", "--queue", "none"], 1, "No queue is named 'none'"),
        (["enqueue", "shop:app", "sync_user", "user_id=1", "--delay", "-1s"], 2, "is not a duration"),
        (["enqueue", "shop:app", "sync_user", "user_id=1", "--key", ""], 1, "key= must be text"),
        (["why", URL, "sync_user"], 2, "names a store, which has no tasks"),
        (["why", "shop:app", "nothing"], 1, "No task is named 'nothing'"),
        (["why", "shop:app", NOBODY], 1, "No job has the id"),
        (["migrate", "shop:app", "--status", "--print-sql"], 2, "write one of them"),
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["cron", "shop:app"], 2, "The command comes before the app: write onejob cron list shop:app."),
    ],
)
def test_a_refusal_is_one_sentence(
    onejob: Onejob, shop: Path, args: list[str], code: int, sentence: str
) -> None:
    (shop / "broken.py").write_text("1 / 0")
    (shop / "needy.py").write_text("import lacking")
    (shop / "unwise.py").write_text(
        "from onejob import App, Unique\napp = App('memory://')\n"
        "@app.task(unique=Unique(by='colour'))\ndef unwise_task(size): ...\n"
    )
    onejob("migrate", URL)

    refused = onejob(*args, code=code)

    assert refused.stdout == ""
    last = refused.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    assert sentence in last
    assert "Traceback" not in refused.stderr


# ── schedules ─────────────────────────────────────────────────────────────────────────────────────


def test_a_cron_line_is_read_without_an_app(onejob: Onejob) -> None:
    said = onejob("cron", "describe", "*/15 9-17 * * MON-FRI", "--timezone", "Europe/Berlin").stdout
    ahead = answer(
        onejob("cron", "next", "0 9 * * 1-5", "--timezone", "Asia/Tokyo", "--count", "3", "--json")
    )
    shown = onejob("cron", "next", "@daily", "--count", "2").stdout.splitlines()

    assert said == "every 15 minutes from 09:00 to 17:59 on Monday to Friday, Europe/Berlin time\n"
    assert [moment[10:] for moment in ahead] == ["T09:00:00+09:00"] * 3
    assert [re.sub(r"^\w{3} \S+ ", "", line).split("  ")[0] for line in shown] == ["00:00:00 +0000"] * 2
    assert answer(onejob("cron", "describe", "@every 30s", "--json"))["description"] == "every 30 seconds"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("cron", "next", "61 * * * *"), "The minute '61' cannot be read"),
        (("cron", "next", "@daily", "--timezone", "Mars"), "timezone='Mars' is not known here"),
        (("cron", "describe", "0 9 * *"), "has 4 fields, not five"),
        (("cron", "add", "shop:app", "n", "nobody", "@daily"), "No task is named 'nobody'"),
        (("cron", "add", "shop:app", "n", "strict", "@daily", "--overlap", "pile"), "'pile' is not one of"),
        (("cron", "add", "shop:app", "n", "strict", "@dayly", "n=1"), "has 1 field, not five"),
        (("cron", "pause", "shop:app", "n"), "No schedule is named 'n'; there are: none."),
        (("cron", "list", "sqlite:///jobs.db"), "names a store, which has no tasks"),
    ],
)
@pytest.mark.usefixtures("shop")
def test_what_a_schedule_cannot_be_is_said_in_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    refused = call(*words)

    assert refused.returncode in {1, 2}
    assert sentence in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr


def test_schedules_are_listed_added_paused_resumed_and_removed(onejob: Onejob) -> None:
    onejob("migrate", "shop:app")
    assert onejob("cron", "list", "shop:app").stdout == "There are no schedules.\n"
    added = onejob(
        "cron", "add", "shop:app", "nightly", "sync_user", "0 2 * * *", "user_id=7", "--missed", "all"
    )
    assert added.stdout == "nightly runs: sync_user, at 02:00 every day, UTC time.\n"
    onejob("cron", "add", "shop:app", "often", "strict", "@every 30s", "n=1", "--overlap", "allow")
    paused = answer(onejob("cron", "pause", "shop:app", "often", "--json"))
    [nightly, often] = answer(onejob("cron", "list", "shop:app", "--json"))

    assert (paused["paused"], often["paused"], often["next"], often["overlap"]) == (True, True, [], None)
    assert (nightly["task"], nightly["args"], nightly["missed"]) == (
        "sync_user",
        {"note": "", "user_id": 7},
        "all",
    )
    assert nightly["overlap"] == {"until": "finish", "on_conflict": "keep", "on_active": "keep"}
    assert [moment[10:] for moment in nightly["next"]] == ["T02:00:00+00:00"] * 5

    table = onejob("cron", "list", "shop:app").stdout.splitlines()
    assert re.fullmatch(
        r"nightly +sync_user +0 2 \* \* \* +in \S+ +0 +at 02:00 every day, UTC time", table[1]
    )
    assert re.fullmatch(r"often +strict +@every 30s +paused +0 +every 30 seconds", table[2])

    assert "often runs" in onejob("cron", "resume", "shop:app", "often").stdout
    onejob("cron", "remove", "shop:app", "nightly")
    assert [one["name"] for one in answer(onejob("cron", "list", "shop:app", "--json"))] == ["often"]


@pytest.mark.parametrize("command", ["list", "add", "pause", "resume", "remove", "next", "describe"])
def test_every_command_of_cron_has_help_with_an_example(onejob: Onejob, command: str) -> None:
    shown = onejob("cron", command, "--help").stdout

    assert f"Example: onejob cron {command}" in shown
    assert "--json" in shown


def test_advice_shows_no_password(postgres_url: str) -> None:
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}password=s3cr3t"
    app = App(url)

    @app.task(unique=True)
    def work(n: int) -> None: ...

    delayed = work.options(delay="1h").enqueue_sync(1).job
    app.close_sync()
    for words in (["why", url, delayed.id], ["why", url, delayed.id, "--json"], ["pause", url, "default"]):
        shown = CliRunner().invoke(main, words, catch_exceptions=False).output
        assert "onejob " in shown
        assert "s3cr3t" not in shown


# ── help ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(onejob: Onejob, command: str) -> None:
    shown = onejob(command, "--help").stdout

    assert f"Example: onejob {command}" in shown
    assert "--json" in shown or command in {"completion", "mcp"}  # a script, a protocol
    assert not re.search("READ_[A-Z]+", shown)  # the name of a function in the place of a value's


def test_the_list_of_commands_is_whole(onejob: Onejob) -> None:
    shown = onejob("--help").stdout

    assert re.findall(r"^  ([a-z][a-z-]+)  +[A-Z]", shown, re.MULTILINE) == list(COMMANDS)
    assert onejob("--version").stdout.startswith("onejob, version ")


def test_the_states_on_the_command_line_are_the_states() -> None:
    assert list(STATES) == list(State)


def test_the_demo_is_played_and_its_exit_code_passed_on(
    onejob: Onejob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(*, json: bool, show: object) -> int:
        assert show is None
        return int(json)

    monkeypatch.setattr("onejob.demo.main", play)

    onejob("demo", code=0)
    onejob("demo", "--json", code=1)


# ── how a worker stops ────────────────────────────────────────────────────────────────────────────


class Working:
    """A worker in a process of its own, which has one job of this task under way."""

    def __init__(self, task: str, *options: str) -> None:
        os.mkfifo("started")
        os.mkfifo("go")
        self.job_id = json.loads(call("enqueue", "shop:app", task, "--json").stdout)["job"]
        command = [ONEJOB, "worker", "shop:app", "--json", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert Path("started").read_text() == "x"

    def signal(self, number: int) -> str:
        """Send a signal and wait until the worker says that it has heard."""
        self.process.send_signal(number)
        log: IO[str] | None = self.process.stderr
        assert log is not None
        return next(line for line in log if " stops: " in line)

    def runs(self) -> dict[str, int]:
        """Wait for the worker's end and read its summary."""
        printed, logged = self.process.communicate()
        assert self.process.returncode == 0, logged
        assert "Traceback" not in logged
        started, stopped = map(json.loads, printed.splitlines())
        assert (started["event"], stopped["event"]) == ("started", "stopped")
        runs: dict[str, int] = stopped["runs"]
        return runs

    def job(self) -> tuple[str, int]:
        """Return the job's state and how many attempts it has spent."""
        job = json.loads(call("job", "shop:app", self.job_id, "--json").stdout)
        return job["state"], job["attempt"]


@pytest.fixture
def working(shop: Path) -> Iterator[Callable[..., Working]]:
    assert shop.exists()
    started: list[Working] = []

    def start(task: str, *options: str) -> Working:
        started.append(Working(task, *options))
        return started[-1]

    yield start
    for worker in started:
        worker.process.kill()
        worker.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_a_run_end(working: Callable[..., Working], number: int) -> None:
    worker = working("wait_for_go")

    assert "1 running job" in worker.signal(number)
    Path("go").write_text("x")

    assert worker.runs() == {"completed": 1}
    assert worker.job() == ("completed", 1)


@pytest.mark.parametrize("task", ["sleep", "block"])
def test_after_the_grace_time_a_run_is_handed_back(working: Callable[..., Working], task: str) -> None:
    worker = working(task, "--grace", "50ms")

    worker.signal(signal.SIGTERM)

    assert worker.runs() == {"handed back": 1}
    assert worker.job() == ("available", 0)


@pytest.mark.parametrize("task", ["sleep", "block"])
def test_the_second_signal_hands_back_at_once(working: Callable[..., Working], task: str) -> None:
    worker = working(task, "--grace", "10m")

    worker.signal(signal.SIGTERM)
    assert "at once" in worker.signal(signal.SIGTERM)

    assert worker.runs() == {"handed back": 1}
    assert worker.job() == ("available", 0)


def test_a_worker_serves_the_queues_that_it_is_given(onejob: Onejob) -> None:
    enqueue(onejob, "sync_user", "user_id=1")
    mine = enqueue(onejob, "sync_user", "user_id=2", "--queue", "embeddings")

    assert drain(onejob, "--queues", "embeddings:3") == {"completed": 1}
    assert answer(onejob("job", "shop:app", mine, "--json"))["state"] == "completed"


@pytest.mark.usefixtures("shop")
def test_a_verbose_worker_logs_every_run() -> None:
    call("enqueue", "shop:app", "sync_user", "user_id=1")

    worked = call("worker", "shop:app", "--drain", "--verbose")

    assert "DEBUG onejob: job " in worked.stderr
    assert "user_id" not in worked.stderr


def test_the_app_is_looked_for_in_the_present_folder(shop: Path) -> None:
    elsewhere = shop / "elsewhere"
    elsewhere.mkdir()
    (shop / "shop.py").rename(elsewhere / "corner.py")
    command = [ONEJOB, "worker", "corner:app", "--drain"]

    found = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, check=False)

    assert f"from sqlite:///{elsewhere / 'jobs.db'}, queues" in found.stdout
