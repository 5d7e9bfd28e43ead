"""The Dockerfile: what it promises, and its steps, carried out in a folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.packaging import dockerfile, interpreters
from tools.environment import ROOT, run

DOCKERFILE = ROOT / "Dockerfile"
STEPS = dockerfile.instructions(DOCKERFILE.read_text())


def of(name: str) -> list[str]:
    return [rest for instruction, rest in STEPS if instruction == name]


def test_the_last_user_is_not_root() -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", of("USER")[-1])
    names = [name for name, _ in STEPS]
    assert "COPY" not in names[names.index("USER") :]


def test_only_pip_fetches_anything() -> None:
    assert not re.search(r"apt|apk|curl|wget|git|ADD|https?:", " ".join(of("RUN")))


def test_its_python_is_supported() -> None:
    versions = {re.fullmatch(r"python:(3\.\d+)-slim( AS \w+)?", base)[1] for base in of("FROM")}  # type: ignore[index] # else it fails

    assert len(versions) == 1
    assert versions <= set(interpreters.supported())


def test_the_context_has_what_is_copied_and_no_more() -> None:
    ignore = (ROOT / ".dockerignore").read_text().split()
    copied = {word for rest in of("COPY") if "--from" not in rest for word in rest.split()[:-1]}

    assert ignore[0] == "*"
    assert {line.removeprefix("!") for line in ignore if line.startswith("!")} == copied
    assert all((ROOT / word).exists() for word in copied)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_its_steps_make_an_image_that_works(tmp_path: Path) -> None:
    image = dockerfile.build(DOCKERFILE, ROOT, tmp_path)

    first = image.environment["PATH"].split(":")[0]
    assert (image.place(first) / image.entrypoint[0]).exists()
    program = tmp_path / "build" / first.lstrip("/") / image.entrypoint[0]  # it names the folder of its stage
    assert "Usage: onejob" in run(program, *image.command, cwd=image.folder)
    assert "onejob why sqlite:///" in run(program, "demo", cwd=image.folder)
