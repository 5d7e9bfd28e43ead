"""A command line that answers at once, and an import that costs next to nothing."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ONEJOB = str(Path(sys.executable).with_name("onejob"))
IMPORT = [sys.executable, "-c", "import onejob"]
HELP = [ONEJOB, "--help"]


def seconds(command: Sequence[str]) -> float:
    """Measure the processor time of a start, best of 7: a busy machine adds to the wall clock only."""
    return min(processor_time(command) for _ in range(7))


def processor_time(command: Sequence[str]) -> float:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def modules_after(code: str) -> set[str]:
    """List what a fresh interpreter has loaded after running some code."""
    script = f"import sys\nsys.argv = ['onejob', '--help']\n{code}\nprint('\\n' + ' '.join(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(answer.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(("command", "limit"), [(IMPORT, 0.15), (HELP, 0.2)], ids=["import", "help"])
def test_it_starts_within(command: Sequence[str], limit: float) -> None:
    assert seconds(command) <= limit


def test_an_import_loads_no_driver_no_command_line_and_no_test_tool() -> None:
    loaded = modules_after("from onejob import App, Unique, current, unique; import onejob; onejob.Worker")

    assert "onejob.app.app" in loaded
    assert loaded.isdisjoint(
        {"sqlite3", "click", "pydantic", "hypothesis", "onejob.cli", "onejob.stores.sql"}
    )


def test_a_bare_import_loads_nothing_of_its_own() -> None:
    loaded = modules_after("import onejob")

    assert {name for name in loaded if name.startswith("onejob")} == {"onejob"}


def test_help_loads_neither_the_app_nor_a_store_nor_a_command() -> None:
    loaded = modules_after("from onejob.cli import main\nmain(standalone_mode=False)")

    ours = {name for name in loaded if name.startswith("onejob")}
    assert ours == {"onejob", "onejob.cli", "onejob.errors"}
    assert loaded.isdisjoint({"asyncio", "sqlite3", "msgspec", "logging", "pydantic", "hypothesis"})


def test_every_public_name_is_there_when_it_is_asked_for() -> None:
    script = """
import onejob
print(all(hasattr(onejob, name) for name in onejob.__all__))
print(set(onejob.__all__) <= set(dir(onejob)))
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert answer.stdout.split() == ["True", "True"]


def test_no_public_name_is_hidden_by_a_module_of_its_name() -> None:
    script = """
import onejob.cli, onejob.app
from onejob import unique
print(type(unique).__name__, type(onejob.unique).__name__)
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert answer.stdout.split() == ["Fluent", "Fluent"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    script = "import onejob; onejob.nonsense"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert "AttributeError: module 'onejob' has no attribute 'nonsense'" in answer.stderr
