"""`onejob mcp`, asked by the client of the SDK over its standard input: it answers, and changes nothing."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mcp import Client, StdioServerParameters, stdio_client

from onejob import App, Retry, Unique
from onejob.cli import main
from onejob.integrations import mcp
from onejob.testing import drain

ONEJOB = str(Path(sys.executable).with_name("onejob"))
NOBODY = "01990c3e-5c1f-7000-8a55-3f1c6e0d9b42"
URL = "sqlite:///jobs.db"
TOOLS = {"why", "jobs", "job", "holds", "stats", "workers", "doctor"}
SECRET = "a private note"  # an argument that no answer may contain
SHOP = """
import os
from onejob import App, Retry, Unique

app = App("sqlite:///jobs.db")
print("a line that an import prints")


@app.task(unique=Unique(by="user"))
async def sync(user: int, note: str = "") -> str:
    print("a line that a task prints")
    return note


@app.task(retry=Retry.never())
async def explode(note: str = "") -> None:
    raise RuntimeError("boom")
"""


@pytest.fixture
async def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with an app, whose store has a held key, absorbed requests and a dead letter."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ONEJOB_APP", raising=False)
    (tmp_path / "shop.py").write_text(SHOP)
    async with App(URL) as app:

        @app.task(retry=Retry.never())
        async def explode(note: str = "") -> None:
            assert note
            raise RuntimeError("boom" + "!" * 2500)

        @app.task(unique=Unique(by="user"))
        async def sync(user: int, note: str = "") -> str:
            return f"{user} {note}"

        await explode.enqueue(SECRET)
        await drain(app)
        for note in (SECRET, "other", "third"):
            await sync.enqueue(7, note)
    return tmp_path


@asynccontextmanager
async def connected(folder: Path, *args: str) -> AsyncIterator[Client]:
    """Start the server in a process of its own, as an assistant does."""
    command = StdioServerParameters(command=ONEJOB, args=["mcp", *args], cwd=folder, env=dict(os.environ))
    with (folder / "errors.txt").open("w") as errors:
        async with Client(stdio_client(command, errlog=errors), read_timeout_seconds=60) as client:
            yield client


async def ask(client: Client, tool: str, **arguments: Any) -> Any:
    """Call a tool and return its answer."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """Call a tool that refuses, and return its sentence."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    [content] = result.content
    sentence: str = getattr(content, "text", "")
    return sentence


def dump(folder: Path) -> list[str]:
    """Return every row of the store."""
    with closing(sqlite3.connect(folder / "jobs.db")) as connection:
        return list(connection.iterdump())


async def test_an_assistant_learns_why_a_request_made_no_job(folder: Path) -> None:
    async with connected(folder, "shop:app") as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
        by_task = await ask(client, "why", what="sync", arguments={"user": 7})
        request = by_task["request"]
        assert (request["outcome"], request["absorbed"]) == ("kept", 2)
        assert request["reason"] == "The same work is already available; the policy keeps it."
        assert request["same_work"]["args"] == {"user": "…"}
        by_key = await ask(client, "why", what=request["key"])
        by_id = await ask(client, "why", what=request["holder"]["id"])

        assert by_key["absorbed"] == by_id["absorbed"] != []
        assert {entry["outcome"] for entry in by_id["absorbed"]} == {"kept"}
        assert by_id["job"]["task"] == "sync"
        assert any("2 requests" in sentence for sentence in by_key["answer"]), by_key["answer"]


async def test_every_tool_answers_without_arguments_of_jobs(folder: Path) -> None:
    async with connected(folder, "shop:app") as client:
        dead, live = (await ask(client, "jobs", states=["discarded"]))["jobs"], await ask(client, "holds")
        answers = [
            dead,
            live,
            await ask(client, "jobs", task="sync", limit=1000),
            await ask(client, "job", job_id=dead[0]["id"]),
            await ask(client, "why", what=dead[0]["id"], compare=live["holds"][0]["id"]),
            await ask(client, "stats"),
            await ask(client, "workers"),
            await ask(client, "doctor"),
        ]
    assert SECRET not in json.dumps(answers)
    [letter] = dead
    assert (letter["state"], letter["args"]) == ("discarded", {"note": "…"})
    assert letter["errors"][0]["message"].startswith("boom!!!")
    assert len(letter["errors"][0]["message"]) == 2001
    assert "Traceback" in answers[3]["errors"][0]["traceback"]
    [hold] = live["holds"]
    assert (hold["role"], hold["absorbed"]) == ("holder", 2)
    assert answers[4]["other"]["id"] == hold["id"]
    assert "two tasks" in answers[4]["answer"][0]
    assert answers[5]["absorbed"] == {"sync": {"kept": 2}}
    assert answers[6] == {"workers": []}
    assert {finding["level"] for finding in answers[7]["findings"]} <= {"ok", "warn", "fail"}


async def test_arguments_are_shown_if_the_operator_says_so(folder: Path) -> None:
    async with connected(folder, URL, "--show-arguments") as client:
        found = await ask(client, "jobs", task="explode")
    assert [job["args"] for job in found["jobs"]] == [{"note": SECRET}]


async def test_nothing_is_written(folder: Path) -> None:
    before = dump(folder)
    with closing(sqlite3.connect(folder / "jobs.db")) as watching:
        [version] = watching.execute("PRAGMA data_version").fetchone()
        async with connected(folder, "shop:app") as client:
            job_id = (await ask(client, "jobs", limit=1))["jobs"][0]["id"]
            for tool in sorted(TOOLS - {"why", "job"}):
                await ask(client, tool)
            await ask(client, "job", job_id=job_id)
            await ask(client, "why", what=job_id)
            await ask(client, "why", what="sync", arguments={"user": 7})
            await ask(client, "why", what="sync", arguments={"user": 8})
            assert watching.execute("PRAGMA data_version").fetchone() == (version,)
    assert dump(folder) == before


async def test_an_error_is_a_sentence(folder: Path) -> None:
    async with connected(folder, "shop:app") as client:
        missing = await refused(client, "job", job_id=NOBODY)
        assert missing.endswith(f"No job has the id '{NOBODY}': it never existed, or it has been pruned.")
        assert "is no state" in await refused(client, "jobs", states=["lost"])
        assert "is not a key" in await refused(client, "jobs", key="xyz")
        assert "no task" in (await refused(client, "why", what="sink", arguments={})).lower()
        assert "registered: explode, sync" in await refused(client, "why", what="sink")
        assert "missing a required argument: 'user'" in await refused(
            client, "why", what="sync", arguments={"customer": 7}
        )
        assert (await ask(client, "stats"))["waiting"] == 1  # it still answers


def test_standard_output_has_only_the_protocol(folder: Path) -> None:
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    run = subprocess.run(
        [ONEJOB, "mcp", "shop:app"],
        input=f"{json.dumps(hello)}\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=folder,
    )
    [answer] = [json.loads(line) for line in run.stdout.splitlines()]
    assert answer["result"]["serverInfo"]["name"] == "onejob"
    assert "a line that an import prints" in run.stderr


def test_a_store_without_tables_is_refused_and_not_created(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["mcp", f"sqlite:///{tmp_path}/none.db"])
    assert result.exit_code == 1
    assert "has no tables of onejob" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("version", "advice"), [(0, "onejob migrate"), (99, "upgrade onejob")])
def test_tables_of_another_version_are_refused_and_not_upgraded(
    folder: Path, version: int, advice: str
) -> None:
    with closing(sqlite3.connect(folder / "jobs.db")) as connection:
        connection.execute("UPDATE onejob_schema SET version = ?", [version])
        connection.commit()
    before = dump(folder)
    result = CliRunner().invoke(main, ["mcp", URL])
    assert result.exit_code == 1
    assert advice in result.output
    assert dump(folder) == before


def test_a_missing_package_is_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder.exists()
    monkeypatch.setattr(mcp, "find_spec", lambda _name: None)
    result = CliRunner().invoke(main, ["mcp", URL])
    assert result.exit_code == 1
    assert result.output == "Error: The MCP server needs mcp: install it with pip install 'onejob[mcp]'.\n"
