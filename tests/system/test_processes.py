"""Tasks with process=True: they run elsewhere, end as others do, and can be killed alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from onejob import App, Job, Retry, State
from onejob.errors import InvalidPolicy, JobCancelled
from onejob.worker import chores, process_pool
from tests.system.live import PATIENCE, Disturbed, eventually, reached

ROOT = Path(__file__).parents[2]
CRUNCH = "tests.system.crunch"


@pytest.fixture
async def crunch(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    """Import the app anew, on a store of its own."""
    in_memory = getattr(request, "param", "sqlite") == "memory"
    url = "memory://" if in_memory else f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL"
    monkeypatch.setenv("CRUNCH_URL", url)
    monkeypatch.setenv("CRUNCH_FOLDER", str(tmp_path))
    monkeypatch.delitem(sys.modules, CRUNCH, raising=False)
    module = import_module(CRUNCH)
    async with module.app:
        yield module


in_memory = pytest.mark.parametrize("crunch", ["memory"], indirect=True)
on_both = pytest.mark.parametrize("crunch", ["memory", "sqlite"], indirect=True)


def is_there(pid: int) -> bool:
    """Return whether a process lives; one that has ended with all its threads does not, seen off or not."""
    try:
        ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not ended or len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


async def noted(folder: Path, name: str) -> list[int]:
    """Wait for the process ids that a run writes down."""

    async def written() -> bool:
        return (folder / name).exists()

    await eventually(written)
    return [int(pid) for pid in (folder / name).read_text().split()]


async def gone(*pids: int) -> None:
    """Wait until processes have ended."""

    async def none_there() -> bool:
        return not any(is_there(pid) for pid in pids)

    await eventually(none_there)


async def failed(app: App, job: Job) -> dict[str, Any]:
    """Wait for a dead letter, and return its last error."""
    return (await reached(app, job, State.DISCARDED)).failures[-1]


# ── running ───────────────────────────────────────────────────────────────────────────────────────


@on_both
async def test_it_runs_in_a_process_that_is_used_again(crunch: Any) -> None:
    async with crunch.app.worker(concurrency=1):
        pids = [await (await crunch.where.enqueue()).result(PATIENCE) for _ in range(3)]
        assert is_there(pids[0])
    assert len(set(pids)) == 1
    assert pids[0] != os.getpid()
    assert not is_there(pids[0]), "the worker leaves none behind"


async def test_its_wait_and_run_are_measured(crunch: Any) -> None:
    async with crunch.app.worker():
        await (await crunch.where.enqueue()).result(PATIENCE)
    times = (await crunch.app.stats()).timings["5m"].by_task["where"]
    assert times.wait.count == times.run.count == 1


async def test_arguments_and_results_keep_their_types(crunch: Any) -> None:
    async with crunch.app.worker():
        asked = await crunch.born.enqueue(date(1990, 7, 1), in_years=5)
        assert await asked.result(PATIENCE) == date(1995, 7, 1)


async def test_arguments_and_results_may_be_large(crunch: Any) -> None:
    text = "x" * 500_000
    async with crunch.app.worker():
        asked = [await crunch.double.enqueue(text) for _ in range(3)]
        assert [await one.result(PATIENCE) for one in asked] == [text * 2] * 3


@on_both
async def test_a_run_knows_itself(crunch: Any) -> None:
    asked = await crunch.look.options(meta={"tenant": "acme"}).enqueue()
    before = datetime.now(UTC)
    async with crunch.app.worker():
        seen = await asked.result(PATIENCE)
    job = await crunch.app.job(asked.job.id)
    assert timedelta(0) <= datetime.fromtimestamp(seen.pop("deadline"), UTC) - before - timedelta(hours=1)
    assert seen == {
        "job": job.id,
        "attempt": 1,
        "cancelled": False,
        "meta": {"tenant": "acme"},
        "latest": True,
    }
    assert job.progress == b'{"fraction":0.5,"message":"half way"}'


async def test_progress_is_stored_while_it_runs(crunch: Any, tmp_path: Path) -> None:
    async with crunch.app.worker():
        asked = await crunch.tell_and_wait.enqueue("go")

        async def told() -> bool:
            job: Job = await crunch.app.job(asked.job.id)
            nearly = job.progress == b'{"fraction":0.75,"message":"nearly there"}'
            return nearly and job.state is State.ACTIVE

        await eventually(told)
        (tmp_path / "go").touch()
        await asked.result(PATIENCE)


@on_both
async def test_a_run_goes_on_with_its_chain(crunch: Any) -> None:
    asked = await crunch.count_down.enqueue(3)
    async with crunch.app.worker():
        assert await asked.chain.result(PATIENCE) == 0
    jobs = await asked.chain.jobs()
    assert [(job.chain_index, job.arguments["n"]) for job in jobs] == [(0, 3), (1, 2), (2, 1), (3, 0)]
    for before, after in pairwise(jobs):
        assert before.created_at < after.created_at < after.run_at


async def test_a_run_that_fails_after_choosing_how_to_go_on_does_not(crunch: Any) -> None:
    asked = await crunch.count_down.enqueue(9)
    async with crunch.app.worker():
        error = await failed(crunch.app, asked.job)
    assert error["message"] == "continue_with can only be called once"
    assert len(await asked.chain.jobs()) == 1


@on_both
async def test_a_run_sees_the_results_that_it_has_waited_for(crunch: Any) -> None:
    born = [await crunch.born.enqueue(date(2000, month, 1)) for month in (3, 1, 2)]
    asked = await crunch.collect.options(after=born).enqueue()
    async with crunch.app.worker():
        assert await asked.result(PATIENCE) == [date(2000, month, 1) for month in (3, 1, 2)]


async def test_a_run_may_go_on_after_its_transaction_has_completed_the_job(
    crunch: Any, tmp_path: Path
) -> None:
    async with crunch.app.worker(lease="1s") as crew:
        asked = await crunch.book.enqueue(1, "go on")
        await noted(tmp_path, "go on 1")
        since = crunch.app._engine.store.now()

        async def the_worker_has_looked_at_it_often() -> bool:
            return bool(crunch.app._engine.store.now() > since + timedelta(seconds=2))

        await eventually(the_worker_has_looked_at_it_often)
        assert crew.running == 1
        (tmp_path / "go").touch()
        assert await asked.result(PATIENCE) == 1
        await noted(tmp_path, "end")
    assert crew.ended == {"completed": 1}


async def test_a_process_that_dies_after_its_transaction_has_completed_the_job(
    crunch: Any, tmp_path: Path
) -> None:
    async with crunch.app.worker() as crew:
        asked = await crunch.book.enqueue(1, "die")
        assert await asked.result(PATIENCE) == 1
        await gone(*await noted(tmp_path, "die 1"))
    job = await crunch.app.job(asked.job.id)
    assert (job.state, job.attempt, job.failures) == (State.COMPLETED, 1, [])
    assert crew.ended == {"completed": 1}


async def test_an_enqueue_inside_knows_its_run(crunch: Any) -> None:
    asked = await crunch.enqueue.enqueue(1)
    async with crunch.app.worker():
        answer = await asked.result(PATIENCE)
        assert answer == ["created", asked.job.id, "rerun", asked.job.id]
        [successor] = await crunch.app.jobs(task="enqueue", limit=1)
        assert (await reached(crunch.app, successor, State.COMPLETED)).id != asked.job.id


@in_memory
async def test_a_store_in_memory_is_out_of_reach_and_says_so(crunch: Any) -> None:
    asked = await crunch.enqueue.options(retry=Retry.never()).enqueue(1)
    async with crunch.app.worker():
        error = await failed(crunch.app, asked.job)
    assert error["type"] == "StoreUnavailable"
    assert "write sqlite:///jobs.db" in error["message"]


# ── ending ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("how", "state", "attempts", "error"),
    [
        ("done", "completed", 1, None),
        ("retry later", "completed", 2, "RetryLater: not now"),
        ("snooze", "completed", 1, None),
        ("cancel", "cancelled", 1, None),
        ("discard", "discarded", 1, "Discard: never again"),
        ("error", "discarded", 2, "ValueError: wrong \\ud800"),
        ("lookup", "discarded", 1, "KeyError: 'nowhere'"),
        ("exit", "completed", 2, "SystemExit: 3"),
        (
            "unencodable",
            "completed",
            2,
            "UnencodableArgument: The result of end_as cannot be written as JSON",
        ),
    ],
)
async def test_it_ends_as_any_task_does(
    crunch: Any, how: str, state: str, attempts: int, error: str | None
) -> None:
    asked = await crunch.end_as.enqueue(how)
    async with crunch.app.worker():
        job = await reached(crunch.app, asked.job, State(state))
    assert job.attempt == attempts
    assert job.reason == {"cancelled": "not needed", "discarded": "failed"}.get(state)
    last = job.failures[-1] if job.failures else None
    assert (last is None) == (error is None)
    if last is not None and error is not None:
        assert f"{last['type']}: {last['message']}".startswith(error)
        assert how == "unencodable" or "crunch.py" in last["traceback"]


@pytest.mark.parametrize(
    ("by", "how"), [(3, "exit code 3"), (0, "exit code 0"), (-9, "signal 9 (Killed)"), (-11, "signal 11")]
)
async def test_a_process_that_dies_fails_its_job_alone(
    crunch: Any, tmp_path: Path, by: int, how: str
) -> None:
    async with crunch.app.worker(concurrency=2):
        bystander = await crunch.tell_and_wait.enqueue("go")
        await reached(crunch.app, bystander.job, State.ACTIVE)
        error = await failed(crunch.app, (await crunch.die.enqueue(by)).job)
        assert await (await crunch.where.enqueue()).result(PATIENCE) != os.getpid()
        (tmp_path / "go").touch()
        await bystander.result(PATIENCE)
    assert error["type"] == "ProcessDied"
    assert error["message"].startswith(f"the process that ran it ended with {how}")


async def test_a_process_that_leaves_another_behind_is_not_waited_for(crunch: Any, tmp_path: Path) -> None:
    async with crunch.app.worker():
        error = await failed(crunch.app, (await crunch.die_before_its_child.enqueue()).job)
    assert "exit code 4" in error["message"]
    [left] = await noted(tmp_path, "left")
    os.kill(left, signal.SIGKILL)


async def test_an_idle_process_that_was_killed_is_replaced(crunch: Any) -> None:
    async with crunch.app.worker(concurrency=1):
        first = await (await crunch.where.enqueue()).result(PATIENCE)
        os.kill(first, signal.SIGKILL)
        await gone(first)
        asked = await crunch.where.enqueue()
        assert await asked.result(PATIENCE) != first
    assert (await crunch.app.job(asked.job.id)).attempt == 1


async def test_the_signals_of_a_terminal_are_the_workers_to_obey(crunch: Any) -> None:
    async with crunch.app.worker():
        assert await (await crunch.signalled.enqueue()).result(PATIENCE) == "still here"


# ── being killed ──────────────────────────────────────────────────────────────────────────────────


@on_both
async def test_a_timeout_kills_the_process(crunch: Any, tmp_path: Path) -> None:
    async with crunch.app.worker(concurrency=1):
        error = await failed(crunch.app, (await crunch.too_long.enqueue("late", 60)).job)
        [pid] = await noted(tmp_path, "late")
        await gone(pid)
        assert await (await crunch.too_long.enqueue("quick", 0)).result(PATIENCE) == "quick"
    assert (error["type"], error["message"]) == ("TimeoutError", "the run took longer than 1 s")


async def test_the_time_of_a_run_begins_when_its_process_is_ready(
    crunch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRUNCH_SLOWLY", "1.5")
    async with crunch.app.worker():
        assert await (await crunch.too_long.enqueue("quick", 0)).result(PATIENCE) == "quick"


async def test_a_cancelled_run_that_listens_ends_by_itself(crunch: Any, tmp_path: Path) -> None:
    async with crunch.app.worker():
        asked = await crunch.hang.enqueue("run", deaf=False)
        pid, _ = await noted(tmp_path, "run")
        await crunch.app.cancel(asked.job.id)
        assert await asked.result(PATIENCE) == "stopped in time"
        assert is_there(pid)


async def test_a_cancelled_run_that_is_deaf_is_killed(
    crunch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "PATIENCE", 0.1)
    async with crunch.app.worker():
        asked = await crunch.hang.enqueue("run")
        pids = await noted(tmp_path, "run")
        await crunch.app.cancel(asked.job.id)
        with pytest.raises(JobCancelled):
            await asked.result(PATIENCE)
        await gone(*pids)
    job = await crunch.app.job(asked.job.id)
    assert (job.state, job.reason, job.failures) == (State.CANCELLED, "cancelled", [])


async def test_what_outlasts_the_grace_time_is_killed_and_handed_back(crunch: Any, tmp_path: Path) -> None:
    async with crunch.app.worker(grace="20ms"):
        asked = await crunch.hang.enqueue("run")
        pids = await noted(tmp_path, "run")
    assert not is_there(pids[0])
    await gone(*pids)
    job = await crunch.app.job(asked.job.id)
    assert (job.state, job.attempt, job.failures) == (State.AVAILABLE, 0, [])


@pytest.mark.usefixtures("quick_sweep")
async def test_a_process_whose_job_was_lost_is_killed(
    crunch: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = crunch.app._engine.store = Disturbed(crunch.app._engine.store)
    async with crunch.app.worker(lease="1s") as crew:
        asked = await crunch.hang.enqueue("run")
        pids = await noted(tmp_path, "run")
        store.down = True
        await gone(*pids)
        store.down = False
        error = await failed(crunch.app, asked.job)
    assert error["type"] == "LeaseExpired"
    assert crew.running == 0
    assert "outlived its lease" in caplog.text


# ── the lease of a handler that holds the GIL ─────────────────────────────────────────────────────


@pytest.fixture
def quick_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chores, "SWEEP_EVERY", 0.1)


@pytest.mark.usefixtures("quick_sweep")
async def test_a_process_that_holds_the_gil_for_longer_than_the_lease_keeps_it(
    crunch: Any, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "still.pipe")
    async with crunch.app.worker(lease="2s"), crunch.app.worker(lease="2s"):
        asked = await crunch.hold_the_gil.enqueue("still")
        await noted(tmp_path, "still")
        first = (await crunch.app.job(asked.job.id)).lease_until

        async def two_leases_later() -> bool:
            assert await crunch.app.maintenance.sweep() == (0, 0)
            return bool(crunch.app._engine.store.now() > first + timedelta(seconds=2))

        await eventually(two_leases_later)
        os.close(os.open(tmp_path / "still.pipe", os.O_WRONLY))
        assert await asked.result(PATIENCE) == "still"
    job = await crunch.app.job(asked.job.id)
    assert (job.state, job.attempt, job.token, job.failures) == (State.COMPLETED, 1, 1, [])


# ── how many ──────────────────────────────────────────────────────────────────────────────────────


async def test_there_are_as_many_processes_as_jobs_that_need_one(crunch: Any) -> None:
    async with crunch.app.worker(concurrency=2):
        asked = [await crunch.meet.enqueue(f"meet {n}", 2) for n in range(2)]
        for one in asked:
            await one.result(PATIENCE)


async def test_a_limit_of_processes_leaves_the_other_places_free(crunch: Any, tmp_path: Path) -> None:
    async with crunch.app.worker(concurrency=3, processes=1):
        asked = [await crunch.tell_and_wait.enqueue(f"go {n}") for n in range(3)]
        for n, one in enumerate(asked):
            await reached(crunch.app, one.job, State.ACTIVE)
            assert await (await crunch.beside.enqueue()).result(PATIENCE) == "beside"
            states = [(await crunch.app.job(each.job.id)).state for each in asked]
            assert states == [State.COMPLETED] * n + [State.ACTIVE] + [State.AVAILABLE] * (2 - n)
            (tmp_path / f"go {n}").touch()
            await one.result(PATIENCE)


@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_a_wrong_number_of_processes_is_refused(number: Any) -> None:
    with pytest.raises(InvalidPolicy, match="allow at least one"):
        App("memory://").worker(processes=number)


# ── what a process can import ─────────────────────────────────────────────────────────────────────


def test_a_coroutine_function_is_refused() -> None:
    app = App("memory://")

    async def work() -> None: ...

    with pytest.raises(InvalidPolicy, match="process=True is for plain functions: write def"):
        app.task(process=True)(work)
    with pytest.raises(InvalidPolicy, match="write True or False"):
        app.task(process=cast("Any", 2))(lambda: None)


def test_a_local_function_is_refused_by_the_worker() -> None:
    app = App("memory://")

    @app.task(process=True)
    def work() -> None: ...

    with pytest.raises(InvalidPolicy, match=r"declare it at the top level of tests\.system\.test_processes"):
        app.worker()


async def test_an_app_that_cannot_be_imported_again_says_why(
    crunch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRUNCH_NOT", "no such luck")
    asked = await crunch.die.enqueue(0)
    async with crunch.app.worker():
        error = await failed(crunch.app, asked.job)
    assert (error["type"], error["message"]) == ("ImportError", "no such luck")


async def test_an_app_with_another_url_in_the_process_is_refused(
    crunch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRUNCH_URL", "sqlite:///elsewhere.db")
    asked = await crunch.die.enqueue(0)
    async with crunch.app.worker():
        error = await failed(crunch.app, asked.job)
    assert error["type"] == "InvalidPolicy"
    assert "another URL or namespace" in error["message"]


PROGRAM = """
import asyncio, os
from onejob import App, Retry

app = App("memory://")

@app.task(process=True, retry=Retry.never())
def where() -> int:
    return os.getpid()

async def main():
    async with app.worker():
        print(await (await where.enqueue()).result(30) != os.getpid())
"""
GUARDED = f'{PROGRAM}\nif __name__ == "__main__":\n    asyncio.run(main())\n'
ENQUEUES = """
from onejob import App, Retry

app = App("sqlite:///jobs.db")

@app.task(process=True, retry=Retry(attempts=2, base=0))
def double(number: int) -> int:
    return 2 * number

double.enqueue_sync(4)
app.run_worker(drain=True)
print(len(app.jobs_sync()))
"""
UNGUARDED = f"{PROGRAM}\nasyncio.run(main())\n"


def run(*command: str, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **options,
    )


def test_a_program_may_declare_its_tasks_itself(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(GUARDED)

    for command in (["program.py"], ["-m", "program"]):
        done = run(*command, folder=tmp_path)
        assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


def test_a_program_without_a_main_guard_is_refused_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(UNGUARDED)

    done = run("program.py", folder=tmp_path)

    assert 'write if __name__ == "__main__"' in done.stderr.splitlines()[-1], done.stderr


def test_a_program_that_enqueues_when_it_is_imported_adds_no_job_in_a_process(tmp_path: Path) -> None:
    """Each process would add a job, for which the worker would start a process."""
    (tmp_path / "program.py").write_text(ENQUEUES)

    done = run("program.py", folder=tmp_path)

    words = "its module, which enqueues a job, or waits for one: write if __name__ == "
    assert words in done.stderr.splitlines()[-1], done.stderr
    assert done.stdout == "1\n"


@pytest.mark.parametrize("way", ["typed", "piped", "package"])
def test_a_program_that_is_no_module_is_refused(tmp_path: Path, way: str) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(GUARDED)
    match way:
        case "typed":
            done = run("-c", UNGUARDED, folder=tmp_path)
        case "piped":
            done = run(folder=tmp_path, input=UNGUARDED)
        case _:
            done = run("-m", "package", folder=tmp_path)

    assert "write it into a file, and import it from there" in done.stderr.splitlines()[-1], done.stderr
