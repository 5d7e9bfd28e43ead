"""Every requirement of the five systems onejob grew from is proved by a test, or awaits one by an issue."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "requirements.md"

SIZES = {"S0": 17, "S1": 22, "S2": 25, "S3": 22, "S4": 18}
NUMBERS = [f"{seed}.{number}" for seed, size in SIZES.items() for number in range(1, size + 1)]

ROW = re.compile(r"^\| (S\d\.\d+) \| (.+?) \| (.*?) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::((?:\w+::)?test_\w+)(?:\[([^\]`]+)\])?`")
ISSUE = re.compile(r"\bissue [34]\b")  # 3: PostgreSQL and Redis; 4: chains, blockers, cron, limits


def rows() -> list[tuple[str, str, str]]:
    """Read the table: number, requirement, proof."""
    return ROW.findall(TABLE.read_text())


@cache
def defined_in(file: str) -> frozenset[str]:
    """Name the tests that a file defines, those of classes as Class::test."""
    if not (path := ROOT / file).is_file():
        return frozenset()
    return frozenset(names(ast.parse(path.read_text()).body, ""))


def names(body: list[ast.stmt], prefix: str) -> list[str]:
    found: list[str] = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            found.append(prefix + node.name)
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found += names(node.body, f"{node.name}::")
    return found


def test_there_are_104() -> None:
    assert len(NUMBERS) == 104


def test_every_requirement_stands_in_the_table_once() -> None:
    found = Counter(number for number, _, _ in rows())

    assert [number for number in NUMBERS if number not in found] == []
    assert [number for number in found if number not in NUMBERS] == []
    assert [number for number, times in found.items() if times > 1] == []


def test_the_table_has_no_row_that_is_not_read() -> None:
    lines = [line for line in TABLE.read_text().splitlines() if re.match(r"\| *S\d", line)]

    assert len(lines) == len(rows())


@pytest.mark.parametrize("number", NUMBERS)
def test_a_requirement_names_a_test_or_an_issue(number: str) -> None:
    proofs = [proof for found, _, proof in rows() if found == number]

    assert proofs, f"{number} is missing"
    for proof in proofs:
        assert TEST.search(proof) or ISSUE.search(proof), f"{number} names neither a test nor an issue"


@pytest.mark.parametrize("number", NUMBERS)
def test_the_tests_that_a_requirement_names_exist(number: str) -> None:
    for proof in [proof for found, _, proof in rows() if found == number]:
        for file, test, parameters in TEST.findall(proof):
            assert test in defined_in(file), f"{number}: {file} has no {test}"
            assert not parameters or is_parametrised(file, test), f"{number}: {test} has no parameters"
        assert TEST.sub("", proof).count("`") == 0, f"{number}: {proof} names something that is no test"


def is_parametrised(file: str, test: str) -> bool:
    """Return whether a test is given its cases by a decorator."""
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == test.rpartition("::")[2]:
            return any("parametrize" in ast.unparse(decorator) for decorator in node.decorator_list)
    return False


def test_a_test_that_does_not_exist_is_noticed() -> None:
    here = Path(__file__).relative_to(ROOT).as_posix()

    assert "test_there_are_104" in defined_in(here)
    assert "test_there_are_105" not in defined_in(here)
    assert defined_in("tests/nowhere.py") == frozenset()
    assert names(ast.parse("class TestA:\n    async def test_b(self): ...").body, "") == ["TestA::test_b"]
