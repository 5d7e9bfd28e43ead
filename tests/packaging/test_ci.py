"""The workflow of GitHub Actions runs the two commands that a contributor runs, on every supported Python."""

from __future__ import annotations

import re
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.packaging import interpreters
from tools.environment import ROOT

WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
STEPS: list[dict[str, Any]] = WORKFLOW["jobs"]["gate"]["steps"]


def test_it_runs_the_two_commands_and_nothing_else() -> None:
    assert [step["run"] for step in STEPS if "run" in step] == ["make demo", "make test"]
    assert list(WORKFLOW["jobs"]) == ["gate"]


def test_it_runs_on_every_supported_python() -> None:
    versions = WORKFLOW["jobs"]["gate"]["strategy"]["matrix"]["python-version"]
    [chosen] = [step["with"] for step in STEPS if "setup-python" in step.get("uses", "")]

    assert versions == interpreters.supported()
    assert chosen == {"python-version": "${{ matrix.python-version }}"}


def test_it_may_only_read() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_its_targets_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert {step["run"].removeprefix("make ") for step in STEPS if "run" in step} <= set(targets)
