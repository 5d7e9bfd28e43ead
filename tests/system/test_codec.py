"""A codec beyond one process: tasks with process=True, and the command line with and without the key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from onejob import AesGcmCodec
from onejob.testing import drain

MARKER = "Zimtschnecke"
VAULT = """
import os

from onejob import App, Retry
from onejob.engine.sealing import AesGcmCodec

key = os.environ.get("VAULT_KEY")
app = App("sqlite:///jobs.db", codec=AesGcmCodec(key) if key else None, secret="pepper and coarse salt")


@app.task(process=True)
def shout(text: str) -> str:
    return text.upper()


@app.task(process=True, retry=Retry.never())
def explode(text: str) -> None:
    raise ValueError(text)


@app.task
async def whisper(text: str) -> str:
    return text.lower()
"""

Onejob = Callable[..., str]


@pytest.fixture
def vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Import an app that keeps its payloads sealed."""
    (tmp_path / "vault.py").write_text(VAULT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("VAULT_KEY", AesGcmCodec.generate_key())
    yield import_module("vault")
    del sys.modules["vault"]


def onejob(*words: str, **environment: str) -> str:
    """Run a command as a shell would, and return what it prints, also when it fails."""
    program = [sys.executable, "-m", "onejob", *words]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run(program, env=found, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def in_files(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.glob("jobs.db*"))


async def test_a_process_unseals_what_it_runs_and_seals_what_it_returns(vault: Any, tmp_path: Path) -> None:
    async with vault.app as app:
        shouted = await vault.shout.enqueue(MARKER)
        broken = await vault.explode.enqueue(MARKER)
        await drain(app)
        assert await shouted.result() == MARKER.upper()
        letter = await app.job(broken.job.id)
        assert (letter.failures[0]["type"], letter.failures[0]["message"]) == ("ValueError", "sealed")
        assert app.reveal(letter).failures[0]["message"] == MARKER
    stored = in_files(tmp_path)
    assert MARKER.encode() not in stored
    assert MARKER.upper().encode() not in stored


async def finished(vault: Any) -> str:
    async with vault.app as app:
        admission = await vault.whisper.enqueue(MARKER)
        await drain(app)
        return str(admission.job.id)


async def test_a_command_shows_that_a_job_is_sealed(vault: Any) -> None:
    job_id = await finished(vault)
    for key in (os.environ["VAULT_KEY"], ""):
        shown = onejob("job", "vault:app", job_id, VAULT_KEY=key)
        facts = dict(line.split(maxsplit=1) for line in shown.splitlines())
        assert (facts["arguments"], facts["result"]) == ("sealed", "sealed")
        assert "sealed" in onejob("jobs", "vault:app", VAULT_KEY=key)
        document = json.loads(onejob("job", "vault:app", job_id, "--json", VAULT_KEY=key))
        assert [list(document[name]) for name in ("args", "result")] == [["onejob:sealed"]] * 2


async def test_a_command_reveals_it_if_the_app_has_the_key(vault: Any) -> None:
    job_id = await finished(vault)
    document = json.loads(onejob("job", "vault:app", job_id, "--reveal", "--json"))
    assert (document["args"], document["result"]) == ({"text": MARKER}, MARKER.lower())
    assert MARKER in onejob("job", "vault:app", job_id, "--reveal")


@pytest.mark.parametrize("key", ["", AesGcmCodec.generate_key()], ids=["none", "another"])
async def test_without_the_key_a_command_says_what_is_missing(vault: Any, key: str) -> None:
    job_id = await finished(vault)
    told = onejob("job", "vault:app", job_id, "--reveal", VAULT_KEY=key)
    assert f"The arguments of job {job_id} cannot be unsealed" in told
    assert "Traceback" not in told
