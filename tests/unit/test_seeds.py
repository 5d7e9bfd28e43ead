"""Whatever a test draws can be drawn again: from the run's seed, or from a fixed one."""

import ast
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.conftest import derive_seed

TESTS = Path(__file__).parents[1]
SEEDED = {"races/load.py", "races/shop.py"}  # run in processes that set the module's own seed
NO_CASE = {"conftest.py", "races/__main__.py", "races/slots.py", "servers.py"}  # draw seeds, and ports


def unseeded(source: str) -> Iterator[str]:
    """Yield the calls that draw from the module's own generator, or from a new one without a seed."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("random"), attr="Random"), args=[]):
                yield f"{node.lineno}: random.Random()"
            case ast.Call(func=ast.Attribute(value=ast.Name("random"), attr=name)) if name != "Random":
                yield f"{node.lineno}: random.{name}"


@pytest.mark.parametrize("path", [path.relative_to(TESTS).as_posix() for path in sorted(TESTS.rglob("*.py"))])
def test_a_test_draws_from_a_seed(path: str) -> None:
    found = list(unseeded((TESTS / path).read_text()))
    assert found == [] or path in SEEDED | NO_CASE, "take the fixture `chance` instead"


def test_an_unseeded_draw_is_found() -> None:
    source = "import random\nrandom.Random()\nrandom.choice([1])\nrandom.Random(1).random()\n"
    assert list(unseeded(source)) == ["2: random.Random()", "3: random.choice"]


def test_a_seed_depends_on_the_run_and_on_the_test() -> None:
    assert derive_seed(1, "a") == derive_seed(1, "a")
    assert len({derive_seed(1, "a"), derive_seed(1, "b"), derive_seed(2, "a")}) == 3


def test_a_test_gets_its_own_generator(chance: Random, seed: int) -> None:
    assert chance.random() == Random(seed).random()
