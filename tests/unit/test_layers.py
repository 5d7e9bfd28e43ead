"""The layers of the code: the contracts in pyproject.toml hold, and notice when they are broken."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOWNWARD = "Imports point downward"
PURE = "The core is pure: no clock, no chance, no input, no output"
PUBLIC_NAMES = "The command line, the dashboard, integrations and the demo use public names"
WRONG = {  # what an importer must not import, and the contract that says so
    ("errors", "onejob.core.job"): DOWNWARD,
    ("engine.steps", "onejob"): DOWNWARD,  # which leads to App
    ("stores.memory", "onejob.stores.sqlite"): "Stores do not know each other",
    ("core.key", "time"): PURE,
    ("core.job", "psycopg"): PURE,
    ("core.runs", "socket"): PURE,
    ("cli", "onejob.stores.contract"): PUBLIC_NAMES,
    ("http", "onejob.app.app"): PUBLIC_NAMES,
    ("integrations", "onejob.stores.contract"): PUBLIC_NAMES,
    ("cli.apps", "onejob.cli.worker"): "The command line has an order",
    ("observe.compare", "onejob.observe.why"): "Observing has an order",
    ("testing.inside", "onejob.testing.draining"): "The testing kit has an order",
}


def lint_imports(source: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts against the `onejob` package that lies in `source`."""
    program = Path(sys.executable).with_name("lint-imports")
    command = [str(program), "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    environment = os.environ | {"PYTHONPATH": str(source), "COLUMNS": "120"}
    return subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)


def test_the_contracts_hold() -> None:
    report = lint_imports(ROOT / "src")

    assert report.returncode == 0, report.stdout + report.stderr


def test_wrong_imports_and_modules_without_a_place_are_noticed(tmp_path: Path) -> None:
    package = shutil.copytree(ROOT / "src" / "onejob", tmp_path / "onejob")
    (package / "afterthought.py").touch()
    for importer, imported in WRONG:
        path = package / importer.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        with file.open("a") as text:
            text.write(f"\nimport {imported}\n")

    report = lint_imports(tmp_path)

    said = " ".join(report.stdout.split())
    assert report.returncode == 1
    assert "- onejob.afterthought" in said
    for (importer, imported), contract in WRONG.items():
        assert f"{contract} BROKEN" in said
        assert f"onejob.{importer} -> {imported} (l." in said


def test_a_circle_in_a_package_without_a_stated_order_is_noticed(tmp_path: Path) -> None:
    package = shutil.copytree(ROOT / "src" / "onejob", tmp_path / "onejob")
    with (package / "stores" / "redis" / "url.py").open("a") as text:
        text.write("\nimport onejob.stores.redis.store\n")

    report = lint_imports(tmp_path)

    assert report.returncode == 1
    assert "No cycles are allowed in onejob.stores.redis." in report.stdout
    assert ".url -> .store (1 import)" in report.stdout
