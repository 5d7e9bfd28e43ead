"""What the packaging tests share: the wheel and the sdist, built once, and an environment with the wheel."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.packaging import interpreters
from tools.environment import ROOT, Environment, build, make_environment


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build the wheel and the sdist."""
    wheel, sdist = build(ROOT, tmp_path_factory.mktemp("dist"))
    return wheel, sdist


@pytest.fixture(scope="session")
def wheel(dist: tuple[Path, Path]) -> Path:
    return dist[0]


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Install the wheel alone in a clean environment of the Python that runs the tests."""
    environment = make_environment(tmp_path_factory.mktemp("clean") / "environment", sys.executable)
    environment.install(wheel)
    return environment


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which interpreters the slow tests have tried."""
    if terminalreporter.config.getoption("-m") == "slow":
        terminalreporter.write_line(interpreters.report())
