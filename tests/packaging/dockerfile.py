"""Reads a Dockerfile, and carries it out in a folder: there may be no Docker, but its steps can be run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD"}


@dataclass(slots=True)
class Stage:
    """One stage of an image, with the folder that stands for its root."""

    base: str
    root: Path
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)

    def place(self, path: str) -> Path:
        """Return where a path of the image is."""
        return self.root / path.lstrip("/") if path.startswith("/") else self.folder / path


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, without comments and with continued lines joined."""
    lines = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    found = [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]
    assert {name for name, _ in found} <= KNOWN
    return found


def build(dockerfile: Path, context: Path, target: Path) -> Stage:
    """Carry out a Dockerfile below a target folder, and return its last stage."""
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for name, rest in instructions(dockerfile.read_text()):
        if name == "FROM":
            base, _, alias = rest.partition(" AS ")
            root = target / (alias or "image")
            root.mkdir(parents=True)
            stage = stages[alias] = Stage(base, root, root)
        else:
            assert stage is not None
            carry_out(name, rest, stage, stages, context)
    assert stage is not None
    return stage


def carry_out(name: str, rest: str, stage: Stage, stages: dict[str, Stage], context: Path) -> None:
    """Carry out one instruction."""
    match name:
        case "WORKDIR":
            stage.folder = stage.place(rest)
            stage.folder.mkdir(parents=True, exist_ok=True)
        case "COPY":
            copy(rest.split(), stage, stages, context)
        case "RUN":
            run(rest, stage)
        case "ENV":
            stage.environment |= dict(pair.split("=", 1) for pair in shlex.split(rest))
        case "USER":
            stage.user = rest
        case "ENTRYPOINT":
            stage.entrypoint = json.loads(rest)
        case "CMD":
            stage.command = json.loads(rest)
        case _:
            raise AssertionError(name)


def copy(words: list[str], stage: Stage, stages: dict[str, Stage], context: Path) -> None:
    """Copy files of the context, or of another stage."""
    other = stages[words.pop(0).removeprefix("--from=")] if words[0].startswith("--from=") else None
    *sources, target = words
    for source in sources:
        path = other.place(source) if other else context / source
        place = stage.place(target)
        if path.is_dir():
            shutil.copytree(path, place, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            place = place / path.name if target.endswith("/") else place
            shutil.copy(path, place)


def run(command: str, stage: Stage) -> None:
    """Run a command of the image: its absolute paths lie below the stage's root."""
    moved = re.sub(r"(?<![\w.])/(?=[a-z])", f"{stage.root}/", command)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-euc", moved], cwd=stage.folder, env=os.environ | {"PATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{moved}\n{done.stdout}{done.stderr}"
