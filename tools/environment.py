"""Build onejob, and make virtual environments to install it in, with uv.

uv's cache has what `make` installed, so the cache is tried first; what it lacks is fetched as `make` does.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


class CommandFailed(Exception):
    """A command ended with an error; the message has the command and its output."""


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Run a command and return its standard output; raise `CommandFailed` if it fails."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)  # noqa: S603 - our own commands
    if done.returncode:
        words = " ".join(map(str, command))
        raise CommandFailed(f"{words}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def uv(*arguments: str | Path, cwd: Path = ROOT) -> str:
    """Run uv, first from its cache alone, then with the package index."""
    program = shutil.which("uv") or ROOT / ".tools" / "bin" / "uv"
    try:
        return run(program, "--offline", *arguments, cwd=cwd)
    except CommandFailed:
        return run(program, *arguments, cwd=cwd)


def build(source: Path, target: Path, *formats: str) -> list[Path]:
    """Build a source tree or an sdist in an environment of its own; return the files, wheel first."""
    uv("build", "-q", *formats, "--no-create-gitignore", "-o", target, source)
    return sorted(target.iterdir(), key=lambda path: path.suffix != ".whl")


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @property
    def python(self) -> Path:
        """Return the environment's interpreter."""
        return self.folder / "bin" / "python"

    def program(self, name: str) -> Path:
        """Return the path of a program that a package installed."""
        return self.folder / "bin" / name

    def install(self, *requirements: str | Path, newest: bool = False) -> None:
        """Install packages in the versions of constraints.txt, or the newest, and check that they agree."""
        versions: list[str | Path] = [] if newest else ["-c", ROOT / "constraints.txt"]
        uv("pip", "install", "-q", "--python", self.python, *versions, *requirements)
        uv("pip", "check", "-q", "--python", self.python)

    def versions(self) -> dict[str, str]:
        """Return the version of each package that is installed."""
        listed = json.loads(uv("pip", "list", "-q", "--format", "json", "--python", self.python))
        return {package["name"]: package["version"] for package in listed}


def make_environment(folder: Path, python: Path | str) -> Environment:
    """Make an empty virtual environment with an interpreter."""
    uv("venv", "-q", "--no-python-downloads", "--python", python, folder)
    return Environment(folder)
