"""The wheel and the sdist: what is in them, and what works after installing the wheel alone."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement

import onejob
from tests.packaging import interpreters
from tools.environment import ROOT, Environment, build, make_environment, run, uv

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE = ROOT / "src" / "onejob"
MOST_PACKAGES = 5
NUMBERED = "ignore:Binding:DeprecationWarning"  # Python 3.12.0 to 3.12.3 take ?1 in SQL for a name
SHOP = """
import asyncio
import onejob

app = onejob.App("sqlite:///jobs.db")


@app.task(unique=True)
async def double(number: int) -> int:
    return 2 * number


async def main() -> None:
    async with app:
        first, again = await double.enqueue(21), await double.enqueue(21)
        assert again.deduplicated
        await app.worker(drain=True).run()
        assert await first.result(timeout=30) == 42


asyncio.run(main())
print(onejob.__file__)
"""


def metadata(wheel: Path) -> Metadata:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Metadata.from_email(archive.read(name), validate=True)


def use(environment: Environment, folder: Path) -> None:
    """Do what a new user does."""
    assert f"version {onejob.__version__}" in run(environment.program("onejob"), "--version", cwd=folder)
    assert "Usage: onejob demo" in run(environment.program("onejob"), "demo", "--help", cwd=folder)
    place = run(environment.python, "-W", "error", "-W", NUMBERED, "-c", SHOP, cwd=folder)
    assert Path(place.strip()).is_relative_to(environment.folder)  # not the source tree's


# ── what is in them ───────────────────────────────────────────────────────────────────────────────


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = (path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)

    assert names == {path.relative_to(ROOT / "src").as_posix() for path in files}
    assert {Path(name).suffix for name in names} >= {".py", ".typed", ".sql", ".lua", ".html", ".css", ".js"}


def test_the_sdist_makes_the_same_wheel(dist: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = dist

    [again] = build(sdist, tmp_path, "--wheel")

    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def test_the_metadata_are_whole(wheel: Path) -> None:
    found = metadata(wheel)

    assert str(found.version) == onejob.__version__
    assert found.description_content_type == "text/markdown"
    assert found.license_expression == "Apache-2.0"
    assert set(PROJECT["classifiers"]) == set(found.classifiers or [])
    assert interpreters.supported() == ["3.11", "3.12", "3.13", "3.14"]


def test_the_version_is_written_in_one_place() -> None:
    texts = [ROOT / "pyproject.toml", *SOURCE.rglob("*.py")]

    places = [path for path in texts if f'"{onejob.__version__}"' in path.read_text()]

    assert places == [SOURCE / "__init__.py"]


def test_the_extra_all_is_the_sum_of_the_others(wheel: Path) -> None:
    extras = {*metadata(wheel).provides_extra} - {"all"}  # type: ignore[misc] # the wheel has extras
    [everything] = PROJECT["optional-dependencies"]["all"]

    assert extras >= {"postgres", "redis", "dashboard", "otel", "prometheus", "crypto"}
    assert Requirement(everything).extras == extras


# ── after the install ─────────────────────────────────────────────────────────────────────────────


def test_the_wheel_alone_works(installed: Environment, tmp_path: Path) -> None:
    use(installed, tmp_path)


def test_a_default_install_has_few_packages(installed: Environment) -> None:
    assert set(installed.versions()) == {"click", "msgspec", "onejob"}
    assert len(installed.versions()) <= MOST_PACKAGES


def test_a_type_checker_sees_the_types_of_the_wheel(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import onejob\nreveal_type(onejob.App('memory://').job_sync('1').id)\n"
    )

    checked = run(
        sys.executable, "-m", "mypy", "--no-incremental", "--python-executable", installed.python, "shop.py",
        cwd=tmp_path,
    )  # fmt: skip

    assert 'Revealed type is "str"' in checked.replace("builtins.", "")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("onejob wor", {"worker", "workers"}),
        ("onejob worker --con", {"--concurrency"}),
        ("onejob cron de", {"describe"}),
        ("onejob completion f", {"fish"}),
    ],
)
def test_bash_completes_commands_and_options(installed: Environment, typed: str, offered: set[str]) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    words = typed.split()
    script = f"""
        eval "$(onejob completion bash)"
        complete -p onejob >&2
        COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}
        _onejob_completion onejob
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    path = f"{installed.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"

    shown = run(bash, "-euc", script, env=os.environ | {"PATH": path})

    assert set(shown.split()) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_asks_onejob(installed: Environment, shell: str) -> None:
    assert f"_ONEJOB_COMPLETE={shell}_complete" in run(installed.program("onejob"), "completion", shell)


@pytest.mark.parametrize(("shell", "at"), [("zsh", "1"), ("fish", "wor")])
def test_what_the_scripts_of_zsh_and_fish_ask_is_answered(
    installed: Environment, shell: str, at: str
) -> None:
    asked = {"COMP_WORDS": "onejob wor", "COMP_CWORD": at, "_ONEJOB_COMPLETE": f"{shell}_complete"}
    shown = run(installed.program("onejob"), env=os.environ | asked)
    assert {"worker", "workers"} <= set(re.split(r"[\s,]", shown))


# ── every interpreter ─────────────────────────────────────────────────────────────────────────────


def test_the_interpreter_of_the_tests_is_found() -> None:
    assert re.match(r"3\.\d+", sys.version)
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in interpreters.found()


@pytest.mark.slow
@pytest.mark.parametrize("version", interpreters.found())
def test_the_wheel_works_on(version: str, wheel: Path, tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "environment", interpreters.found()[version])
    environment.install(wheel)

    assert len(environment.versions()) <= MOST_PACKAGES
    use(environment, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_an_extra_installs(extra: str, wheel: Path, tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "environment", sys.executable)

    environment.install(f"onejob[{extra}] @ {wheel.as_uri()}")

    assert set(environment.versions()) > {"click", "msgspec", "onejob"}
    use(environment, tmp_path)


@pytest.mark.slow
def test_uvx_runs_the_demo_from_the_wheel(wheel: Path) -> None:
    shown = uv("tool", "run", "--from", wheel, "onejob", "demo")

    assert "onejob why sqlite:///" in shown
