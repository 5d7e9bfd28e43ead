"""Django, with its own database on SQLite and PostgreSQL; each project is a process of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging import interpreters
from tools.environment import ROOT, Environment, build, make_environment

PROJECT = Path(__file__).parents[2] / "examples" / "django_shop"
VISIT = Path(__file__).with_name("django_visit.py")
NUMBERED = "ignore:Binding:DeprecationWarning"  # Python 3.12.0 to 3.12.3 take ?1 in SQL for a name
CASES = re.findall(r"^def ((?!work)\w+)\(\) -> None:", VISIT.read_text(), re.MULTILINE)


def environment(store: str, folder: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    chosen = os.environ | {
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "SHOP_FOLDER": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if store == "postgres":
        chosen["DATABASE_URL"] = request.getfixturevalue("postgres_url")
    return chosen


def run(command: list[str], surroundings: dict[str, str], python: str | Path = sys.executable) -> str:
    done = subprocess.run(
        [python, "-W", "error", "-W", NUMBERED, *command],
        cwd=PROJECT,
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_are_cases() -> None:
    assert len(CASES) == 9


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_project_uses_onejob(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run([str(VISIT), *CASES], environment(store, tmp_path, request))


def test_manage_py_passes_commands_on_sqlite(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    chosen = environment("sqlite", tmp_path, request)
    run(["manage.py", "migrate", "--verbosity", "0"], chosen)
    run(["manage.py", "makemigrations", "--check", "--dry-run"], chosen)
    admitted = json.loads(run(["manage.py", "onejob", "enqueue", "django.tasks", "--json",
        "path=shop.tasks.greet", 'args=["Ada"]', "kwargs={}", "backend=default"], chosen))  # fmt: skip
    run(["manage.py", "onejob", "worker", "--drain"], chosen)

    shown = json.loads(run(["manage.py", "onejob", "job", admitted["job"], "--json"], chosen))
    assert shown["state"] == "completed"
    assert "Usage: manage.py onejob" in run(["manage.py", "onejob", "--help"], chosen)


# ── Django 6, which has the Tasks framework itself and needs Python 3.12 ──────────────────────────

NEWER = {name: path for name, path in interpreters.found().items() if name != "3.11"}


@pytest.fixture(scope="module", params=NEWER)
def django_6(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Install onejob and Django 6 in an environment of their own, without `django-tasks`."""
    folder = tmp_path_factory.mktemp("django")
    made = make_environment(folder / "environment", NEWER[request.param])
    [wheel] = build(ROOT, folder / "dist", "--wheel")
    made.install(f"onejob[postgres,dashboard] @ {wheel.as_uri()}", "django>=6,<7", newest=True)
    assert made.versions()["django"].startswith("6.")
    assert "django-tasks" not in made.versions()
    return made


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_project_on_django_6_uses_onejob(
    store: str, django_6: Environment, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run([str(VISIT), *CASES], environment(store, tmp_path, request), django_6.python)


@pytest.mark.slow
def test_manage_py_on_django_6_passes_commands_on_sqlite(
    django_6: Environment, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    chosen = environment("sqlite", tmp_path, request)
    run(["manage.py", "migrate", "--verbosity", "0"], chosen, django_6.python)
    run(["manage.py", "makemigrations", "--check", "--dry-run"], chosen, django_6.python)
    assert "Usage: manage.py onejob" in run(["manage.py", "onejob", "--help"], chosen, django_6.python)
