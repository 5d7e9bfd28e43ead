"""The layers of the house: the contracts in pyproject.toml hold, and notice when they are broken."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PUBLIC_NAMES = "The command line, the dashboard, integrations and the demo use public names"


def lint_imports(source: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts against the `onejob` package that lies in `source`."""
    program = Path(sys.executable).with_name("lint-imports")
    command = [str(program), "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    environment = os.environ | {"PYTHONPATH": str(source), "COLUMNS": "120"}
    return subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)


def test_the_contracts_hold() -> None:
    report = lint_imports(ROOT / "src")

    assert report.returncode == 0, report.stdout + report.stderr


@pytest.mark.parametrize(
    ("module", "wrong", "contract"),
    [
        ("errors", "import onejob.core.job", "Imports point downward"),
        ("errors", "from onejob import App", "Imports point downward"),
        ("afterthought", "", "Imports point downward"),
        ("stores/memory", "import onejob.stores.sqlite", "Stores do not know each other"),
        ("core/key", "import time", "The core is pure: no clock, no chance, no input, no output"),
        ("cli", "from onejob.stores import contract", PUBLIC_NAMES),
        ("http", "from onejob.app import app", PUBLIC_NAMES),
        ("integrations", "from onejob.stores import contract", PUBLIC_NAMES),
    ],
)
def test_a_wrong_import_is_noticed(tmp_path: Path, module: str, wrong: str, contract: str) -> None:
    package = shutil.copytree(ROOT / "src" / "onejob", tmp_path / "onejob")
    folder = package / module
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")

    with file.open("a") as text:
        text.write(f"\n{wrong}\n")
    report = lint_imports(tmp_path)

    assert report.returncode == 1
    assert f"{contract} BROKEN" in report.stdout
