"""The examples run as they are, alone in an empty folder, and show what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PUBLIC = (
    "from onejob import ",
    "from onejob.http import ",
    "from onejob.integrations.",
    "from onejob.testing import ",
)

SHOWS = {
    "fastapi_shop": [
        "result: invoice for 7",
        "stats: {'completed': 1}",
        "dashboard without its token: 401",
        "dashboard: 200 True",
    ],
    "flask_shop": [
        "the same job: True True",
        "state: completed",
        "dashboard without its token: 401",
        "dashboard: 200 True",
    ],
    "notes_archive": [
        "the 10th edit was updated: The available job takes this request's payload.",
        "the waiting maintenance was updated: ['snapshot', 'edges']",
        (
            "side by side: [\"embed_note(a, 'draft 10')\", \"embed_note(b, 'hello')\", "
            "'graph_maintenance(snapshot, edges)']"
        ),
        "an edit during the run was updated: it waits as pending",
        "force=True: forced; now two of them run",
        "  embed_note(a, 'draft 13')",
        "absorbed: {'rerun': 1, 'updated': 11}",
    ],
    "unique_modes": [
        "until executing, while it waits: kept",
        "until executed, while it waits: kept",
        "throttle, after it ran: kept",
        "throttle, after the window: created",
        "input hash, spelled differently: kept",
        "input hash, other input: created",
        "partial key: kept - payload differs: True",
        "custom key: kept",
        (
            "absorbed: {'charge': {'kept': 1}, 'invoice': {'kept': 1}, 'rebuild': {'kept': 1}, "
            "'send_email': {'kept': 1}, 'sync_feed': {'kept': 1}, 'welcome': {'kept': 1}}"
        ),
    ],
    "embedding_queue": [
        "version 999 after version 1000: stale",
        "after the restart 10 entries wait",
        "entry-0 is 'v1000 text 1000'; never more than 3 ran at once",
        "1009 updates cost 10 runs",
        (
            "dead letter after 3 attempts: {'entry_id': 'entry-0', 'seq': 1001, 'text': 'text 1001'}, "
            "the embedding service is down"
        ),
        "replay: created; entry-0 is 'v1001 text 1001'",
    ],
    "exactly_once": [
        "the first worker was killed: True",
        "it left behind: []",
        "asked for order 1: kept",
        "balance as the job returned it: 70",
        "payments: [(1, 30)]",
        "balance: 70",
    ],
    "keyed_start": [
        "no key: [False, False]",
        "same key: the same job",
        "deduplicated: True, its input differs: True",
        "both get the result: processed 123",
        "incomplete, after the end: created",
        "any, after the end: kept",
        "any, within the window: kept",
        "any, after the window: created",
        "explain: kept, because The same work is already completed; the policy keeps it.",
    ],
    "schedules": [
        "it runs at 02:30 every day, Europe/Berlin time",
        "next: 2026-03-29 03:00:00+02:00",
        "back up for 2026-03-29T01:00:00+00:00",
        "back up for 2026-04-05T00:30:00+00:00",
        "ticks that came to no job: {'missed': 6}",
        "not paused: ['hourly']",
    ],
    "dimensions": [
        "task only: kept",
        "queue, the same: kept",
        "queue, another: created",
        "meta, the same: kept",
        "meta, another: created",
        "reject: withdraw is available already",
        "replace: replaced; the old one is cancelled",
        "drop: first stays",
        "states, while it waits: kept",
        "states, while it runs: created",
        "memory is strong in one process; durability: none",
    ],
}


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_shows_what_it_says(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert [line for line in SHOWS[name] if line not in shown] == [], done.stdout
    assert not re.search("^Traceback", done.stderr, re.MULTILINE)  # those of failed jobs are indented
    assert "was destroyed" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SHOWS.keys()


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_uses_public_names_only(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    imports = [line for line in text.splitlines() if "onejob" in line and "import" in line]
    assert imports
    assert all(line.startswith(PUBLIC) for line in imports)


def test_every_skip_is_one_debug_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "unique_modes.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("log: kept ") == 6
