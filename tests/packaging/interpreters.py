"""The Python interpreters of this machine that onejob supports: on the PATH, and those of pyenv."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLASSIFIER = "Programming Language :: Python :: 3."


def supported() -> list[str]:
    """Return the versions that the classifiers name, such as 3.11."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    return ["3." + line.removeprefix(CLASSIFIER) for line in classifiers if line.startswith(CLASSIFIER)]


def candidates(version: str) -> Iterator[Path]:
    """Return where an interpreter may be."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        yield Path(sys.executable)
    if on_path := shutil.which(f"python{version}"):
        yield Path(on_path)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python"))


def works(python: Path, version: str) -> bool:
    """Return whether an interpreter starts and is of this version; a shim of pyenv may do neither."""
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


@cache
def found() -> dict[str, Path]:
    """Return one interpreter for each supported version that this machine has."""
    return {
        version: python
        for version in supported()
        if (python := next((path for path in candidates(version) if works(path, version)), None))
    }


def report() -> str:
    """Return a line that says which versions were found."""
    missing = [version for version in supported() if version not in found()]
    return f"Python {', '.join(found())} found" + (f"; not found: {', '.join(missing)}" if missing else "")
