"""Our own stores pass the contract suite that the package has for other stores; broken stores do not."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from onejob.core.decide import Verdict
from onejob.core.job import alter
from onejob.core.leasing import Lease
from onejob.core.step import Step
from onejob.errors import InvalidCall
from onejob.stores.contract import FullStore, Leased
from onejob.stores.memory import MemoryStore
from onejob.stores.postgres.store import PostgresStore
from onejob.stores.redis.store import RedisStore
from onejob.stores.sqlite.store import SQLiteStore
from onejob.testing import Clock
from onejob.testing.contract import certify
from onejob.testing.contract.suite import CASES, Case

FEW = certify(examples=2)  # test_state_machine.py compares the stores for longer


@FEW
def test_memory(clock: Clock) -> FullStore:
    return MemoryStore(clock=clock)


@FEW
def test_sqlite(clock: Clock, tmp_path: Path) -> FullStore:
    return SQLiteStore(tmp_path / "jobs.db", clock=clock, synchronous="NORMAL")


@FEW
def test_postgres(clock: Clock, postgres_url: str) -> FullStore:
    return PostgresStore(postgres_url, clock=clock)


@FEW
def test_redis(clock: Clock, redis_url: str) -> FullStore:
    return RedisStore(redis_url, clock=clock)


@certify(examples=0)
def test_redis_in_buckets(clock: Clock, redis_url: str) -> FullStore:
    return RedisStore(f"{redis_url}?buckets=16", clock=clock)


# ── broken stores ─────────────────────────────────────────────────────────────────────────────────


class ForgetsHolds(MemoryStore):
    """Forgets after every batch of steps which job holds which key."""

    def apply_sync(self, steps: Sequence[Step[Any]]) -> list[Any]:
        answers = super().apply_sync(steps)
        for answer in answers:
            if isinstance(answer, Verdict) and answer.job.id in self._rows.jobs:
                self._rows.put(alter(self._rows.jobs[answer.job.id], stand=None))
        return answers


class LeasesTwice(MemoryStore):
    """Gives a job that it has started to the next worker, too."""

    def __init__(self, *, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._given: list[Any] = []

    async def lease(self, wanted: Lease, after: Sequence[Step[Any]] = ()) -> Leased:
        leased = await super().lease(wanted, after)
        again, self._given = self._given, leased.jobs
        return leased._replace(jobs=[*leased.jobs, *again])


class LosesUpdates(MemoryStore):
    """Answers a second request of a batch without having run it."""

    def apply_sync(self, steps: Sequence[Step[Any]]) -> list[Any]:
        answers = super().apply_sync(steps[:1])
        return answers * len(steps)


class ForgetsSettings(MemoryStore):
    """Keeps no setting."""

    async def put_setting(self, namespace: str, kind: str, name: str, value: bytes | None) -> None:
        """Do nothing."""


class SharesNamespaces(MemoryStore):
    """Clears the records of all namespaces."""

    async def clear(self, namespace: str) -> None:
        await super().clear(namespace)
        await super().clear("other")


def failures(store: type[MemoryStore]) -> dict[str, str]:
    """Return the kinds of cases that a store fails, with one name of each."""
    found: dict[str, str] = {}
    for case in CASES:
        if not passes(case, store):
            found.setdefault(case.name.partition(":")[0], case.name)
    return found


def passes(case: Case, store: type[MemoryStore]) -> bool:
    try:
        case.check(store)
    except Exception:  # noqa: BLE001 - a broken store may raise anything
        return False
    return True


@pytest.mark.parametrize(
    ("store", "kinds"),
    [
        (MemoryStore, set()),
        (ForgetsHolds, {"admission", "races", "runs"}),
        (LeasesTwice, {"runs", "races"}),
        (LosesUpdates, {"admission"}),
        (ForgetsSettings, {"runs", "records"}),
        (SharesNamespaces, {"records"}),
    ],
)
def test_a_broken_store_is_caught(store: type[MemoryStore], kinds: set[str]) -> None:
    found = failures(store).keys()
    assert found == kinds if not kinds else found >= kinds


@pytest.mark.parametrize("store", [ForgetsHolds, LeasesTwice])
def test_the_random_agreement_catches_a_broken_store(store: type[MemoryStore]) -> None:
    from onejob.testing.contract.agreement import check_agreement
    from onejob.testing.contract.certifying import Compared

    # 30 examples do not catch LeasesTwice with one seed in 24. The first example that fails ends the search.
    with pytest.raises(AssertionError):
        check_agreement(Compared(store), examples=200, steps=20, shrinks=False)


# ── the decorator ─────────────────────────────────────────────────────────────────────────────────


def test_a_function_without_a_clock_is_refused() -> None:
    with pytest.raises(InvalidCall, match=r"write def open_mine\(clock, …\)"):

        @certify
        def open_mine() -> FullStore:
            return MemoryStore()


def test_each_promise_has_one_name() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) > 60


ONE_FILE = """
    from onejob.stores.memory import MemoryStore
    from onejob.testing.contract import certify


    @certify(examples=2)
    def test_my_store(clock, tmp_path):
        assert tmp_path.exists()
        return MemoryStore(clock=clock)
"""


def run_pytest(folder: Path, *args: str) -> str:
    scope = "asyncio_default_fixture_loop_scope=function"  # or pytest-asyncio warns in every run
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        scope,
        str(folder),
        *args,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder).stdout


def test_one_file_certifies_a_store(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(textwrap.dedent(ONE_FILE))
    mine = "test_mine.py::test_my_store"
    output = run_pytest(tmp_path, "-k", "holds or tick", "-vv", "-W", "error")
    assert f"{mine}[admission: a request creates a job that holds its key] PASSED" in output
    assert f"{mine}[runs: a tick of a schedule is made once] PASSED" in output
    assert " failed" not in output


def test_a_missing_hypothesis_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(textwrap.dedent(ONE_FILE))
    (tmp_path / "conftest.py").write_text("import sys\n\nsys.modules['hypothesis'] = None\n")
    output = run_pytest(tmp_path, "-k", "agreement", "-p", "no:hypothesispytest")
    assert "needs Hypothesis: run pip install hypothesis, or write @certify(examples=0)." in output
