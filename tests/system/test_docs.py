"""The documentation is true: its code runs, its commands exist, its links lead somewhere."""

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from string import Template
from types import ModuleType
from typing import Any

import click
import pytest

import onejob
from onejob import App
from onejob.cli import main
from onejob.testing import drain_sync, moving_clock
from tests import servers

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "docs" / "adr" / "0000-template.md"
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if page != TEMPLATE)]
TEXTS = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]

FENCE = re.compile(r"^( *)(```+)(.*)$")
PRESETS = [preset for preset, value in vars(onejob.Unique).items() if isinstance(value, classmethod)]
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
MAKE = re.compile(r"\bmake ([a-z]+)\b")
OUTPUT = "text output"
SESSION = "console run"
PROGRAM = "python alone"  # runs in a process of its own, with the page's first block beside it as shop.py
SERVERS = {
    "DATABASE_URL": servers.postgres,
    "REDIS_URL": servers.redis,
}  # what a page finds in its environment
MAIN = 'if __name__ == "__main__":'
REASON = re.compile(r"python no-run: \S.+")


@dataclass(frozen=True)
class Block:
    """A fenced piece of a page."""

    page: Path
    line: int  # of its first line of content, counted from 1
    info: str
    text: str

    def __str__(self) -> str:
        return f"{name(self.page)}:{self.line}"


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    lines = iter(enumerate(page.read_text().splitlines(), start=1))
    for number, line in lines:
        if fence := FENCE.match(line):
            indent, ticks, info = fence.groups()
            inside: list[str] = []
            for _, content in lines:
                if content.strip() == ticks:
                    break
                inside.append(content.removeprefix(indent))
            yield Block(page, number + 1, info.strip(), "\n".join(inside))


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    lines, fenced = [], False
    for line in page.read_text().splitlines():
        is_fence = FENCE.match(line) is not None
        fenced = fenced != is_fence
        if not fenced and not is_fence:
            lines.append(line)
    return "\n".join(lines)


def of_language(page: Path, language: str) -> list[Block]:
    return [block for block in blocks(page) if block.info.split(" ")[0] == language]


def first_program(page: Path) -> str:
    """Return the page's first block of Python that runs."""
    return next(block.text for block in blocks(page) if block.info == "python")


# ── code ──────────────────────────────────────────────────────────────────────────────────────────


def run(block: Block, namespace: dict[str, object], runner: asyncio.Runner) -> None:
    """Run a block as if it stood in its page's own module; with a top-level await, inside the page's loop."""
    source = "\n" * (block.line - 1) + block.text  # so that a traceback names the page's line
    code = compile(source, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    own = namespace.get("__name__", "documented")
    namespace["__name__"] = "__main__" if MAIN in block.text else own
    result = eval(code, namespace)  # noqa: S307 - our own documentation
    namespace["__name__"] = own
    if inspect.iscoroutine(result):
        runner.run(result)


@pytest.fixture
def surroundings(page: Path) -> Iterator[dict[str, str]]:
    """Start the servers whose URLs a page reads from its environment, set as a server in production is."""
    text = page.read_text()
    with contextlib.ExitStack() as stack:
        started = {name: start for name, start in SERVERS.items() if name in text}
        yield {name: stack.enter_context(start(durable=True)).url for name, start in started.items()}


def run_alone(
    command: list[str], folder: Path, surroundings: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, as a reader with our environment and a wide terminal would."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | surroundings | {"PATH": path, "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def matches(printed: str, shown: str) -> bool:
    """Return whether a page shows what its code prints; … stands for what differs each time."""
    pattern = ".*".join(re.escape(part) for part in shown.strip().split("…"))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


@pytest.mark.parametrize("page", [p for p in PAGES if of_language(p, "python")], ids=name)
def test_the_code_of_a_page_runs(
    page: Path, surroundings: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, url in surroundings.items():
        monkeypatch.setenv(name, url)
    module = ModuleType("documented")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    apps: set[App] = set()  # also those whose name a later block gives to another

    with asyncio.Runner() as runner:
        try:
            printed = ""
            for block in blocks(page):
                if block.info == "python":
                    with contextlib.redirect_stdout(io.StringIO()) as output:
                        run(block, vars(module), runner)
                    apps.update(value for value in vars(module).values() if isinstance(value, App))
                    printed = output.getvalue().strip()
                elif block.info == OUTPUT:
                    assert matches(printed, block.text), f"{block}: the code above prints\n{printed}"
        finally:
            for app in apps:
                runner.run(app.close())


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.info == PROGRAM for b in blocks(p))], ids=name)
def test_the_programs_of_a_page_run(page: Path, surroundings: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(first_program(page))

    for block in blocks(page):
        if block.info == PROGRAM:
            run = run_alone([sys.executable, "-c", block.text], tmp_path, surroundings)
            assert run.returncode == 0, f"{block}: {run.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_that_does_not_run_says_why(page: Path) -> None:
    for block in of_language(page, "python"):
        assert block.info in {"python", PROGRAM} or REASON.fullmatch(block.info), (
            f"{block}: write `python no-run: why`"
        )


@pytest.mark.parametrize(
    ("printed", "right"),
    [("kept 01a1e126-77", True), ("kept 01a1e126-77 twice", True), ("created 01", False)],
)
def test_what_a_page_shows_is_compared(printed: str, right: bool) -> None:  # noqa: FBT001 - a case
    assert matches(printed, "kept 01a1…") is right


def test_a_page_shares_its_names_and_its_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# P\n\n```python\nx = 1\n```\n\n```python\nfrom asyncio import sleep\nawait sleep(x - 2)\n```\n"
    )
    first, second = of_language(page, "python")
    namespace: dict[str, object] = {}

    with asyncio.Runner() as runner:
        run(first, namespace, runner)
        run(second, namespace, runner)
        namespace["x"] = "one"
        with pytest.raises(TypeError) as failure:
            run(second, namespace, runner)

    assert failure.traceback[-1].lineno + 1 == 9


# ── commands ──────────────────────────────────────────────────────────────────────────────────────


def commands(page: Path) -> list[tuple[Block, list[str]]]:
    """Return what the console blocks of a page type after `$ onejob`."""
    return [
        (block, words)
        for block in of_language(page, "console")
        for line in re.sub(r"\\\n", " ", block.text).splitlines()
        if (words := line.split())[:2] == ["$", "onejob"]
    ]


@pytest.mark.parametrize("page", [p for p in PAGES if of_language(p, "console")], ids=name)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    context = click.Context(main)

    for block, words in commands(page):
        command = main.get_command(context, words[2])
        if isinstance(command, click.Group):
            command = command.get_command(context, words[3])
        assert command is not None, f"{block}: onejob has no {' '.join(words[2:4])}"
        known = {option for parameter in command.params for option in parameter.opts}
        used = {word.partition("=")[0] for word in words[3:] if word.startswith("-")}
        assert used <= known, f"{block}: onejob {words[2]} has no {used - known}"


def sessions(page: Path) -> Iterator[tuple[Block, str, str]]:
    """Return the commands of blocks that are to be run, each with the output that the page shows."""
    for block in blocks(page):
        if block.info == SESSION:
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                yield block, command, shown


@pytest.mark.parametrize("page", [p for p in PAGES if any(sessions(p))], ids=name)
def test_the_sessions_of_a_page_run(page: Path, surroundings: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(first_program(page))

    for block, command, shown in sessions(page):
        words = shlex.split(Template(command).safe_substitute(surroundings))
        run = run_alone(words, tmp_path, surroundings)
        assert run.returncode == 0, f"{block}: {command}: {run.stderr}"
        assert matches(run.stdout.strip(), shown), f"{block}: {command} prints\n{run.stdout}"


def test_the_targets_that_the_readme_names_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = prose(ROOT / "README.md")

    named = {target for part in re.findall(r"`[^`]+`", text) for target in MAKE.findall(part)}

    assert {"demo", "test"} <= named <= targets


# ── completeness ──────────────────────────────────────────────────────────────────────────────────


def words(page: str) -> set[str]:
    return set(re.findall(r"\w+", (ROOT / "docs" / page).read_text()))


def test_the_reference_names_every_public_name() -> None:
    assert set(onejob.__all__) <= words("reference.md")


def test_the_reference_names_every_command() -> None:
    table = (ROOT / "docs" / "reference.md").read_text().partition("## The `onejob` command")[2]
    named = set(re.findall(r"`([a-z-]+)[` ]", table))

    assert set(main.list_commands(click.Context(main))) - named == set()


@pytest.mark.parametrize("kind", [onejob.App, onejob.Task, onejob.Admission, onejob.Context], ids=str)
def test_the_docs_name_every_public_method(kind: type) -> None:
    known = words("reference.md") | words("enqueueing.md") | words("writing-tasks.md")
    own = {member for member, value in vars(kind).items() if callable(value) or isinstance(value, property)}

    assert {member for member in own if not member.startswith("_")} - known == set()


def test_the_reference_draws_the_errors_as_their_module_does() -> None:
    drawn = str(onejob.errors.__doc__).partition("\n\n")[2]

    assert drawn.strip() in (ROOT / "docs" / "reference.md").read_text()


def test_every_field_of_a_policy_is_explained() -> None:
    assert {field.name for field in fields(onejob.Unique)} <= words("deduplication.md")


FORMER = [page for page in sorted((ROOT / "docs" / "coming-from").glob("*.md")) if page.stem != "index"]


FIXTURES = {"postgresql": "postgres_url", "redis": "redis_url"}


def named_stores(page: Path) -> list[str]:
    """Return the stores that the program of a page names in its comment, and its own."""
    return ["sqlite", *re.findall(r"(\w+)://…", first_program(page))]


@pytest.mark.parametrize(
    ("page", "store"),
    [(page, store) for page in FORMER for store in named_stores(page)],
    ids=lambda value: getattr(value, "stem", value),
)
def test_a_newcomers_program_runs_on_every_store_that_it_names(
    page: Path, store: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue(FIXTURES[store]) if store in FIXTURES else "sqlite:///jobs.db"
    [program] = [block.text for block in blocks(page) if block.info == PROGRAM]
    monkeypatch.chdir(tmp_path)
    shop: Any = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", shop)
    exec(first_program(page).replace("sqlite:///jobs.db", url), vars(shop))  # noqa: S102 - our own documentation
    exec(program, {})  # noqa: S102 - as above

    with moving_clock(shop.app) as clock:
        clock.advance("1h")
        drain_sync(shop.app, raises=True)
    states = {str(job.state) for job in shop.app.jobs_sync()}
    shop.app.close_sync()
    assert {"completed"} <= states <= {"completed", "cancelled"}


def test_every_newcomers_program_names_a_server() -> None:
    assert len(FORMER) == 12
    assert all(FIXTURES.keys() & set(named_stores(page)) for page in FORMER)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "coming-from").glob("*.md")), ids=name)
def test_what_a_newcomer_pastes_into_a_file_is_a_program(page: Path) -> None:
    for block in blocks(page):
        if block.info == "python":
            compile(block.text, str(block), "exec")  # refuses an await outside of a function


def test_every_option_of_a_call_is_explained() -> None:
    options = {
        name
        for name, parameter in inspect.signature(onejob.Task.options).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert options <= words("enqueueing.md")


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_its_page(preset: str) -> None:
    page = (ROOT / "docs" / "presets" / f"{preset}.md").read_text()

    assert f"Unique.{preset}(" in page
    assert f"../images/timelines/{preset}.svg" in page  # drawn by tools/timelines.py


# ── links ─────────────────────────────────────────────────────────────────────────────────────────


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings make, as code forges make them."""
    slugs: list[str] = []
    for heading in HEADING.findall(prose(page)):
        text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", heading).lower()
        slugs.append(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return {
        slug if slugs.index(slug) == i else f"{slug}-{slugs[:i].count(slug)}" for i, slug in enumerate(slugs)
    }


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)} links to {link}, which is not there"
        assert not anchor or anchor in anchors(target), (
            f"{name(page)} links to {link}, which has no such heading"
        )


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, new = set[Path](), {ROOT / "README.md"}
    while new:
        reached |= new
        found = {
            (page.parent / link.partition("#")[0]).resolve()
            for page in new
            for link in LINK.findall(prose(page))
            if link.partition("#")[0].endswith(".md") and "://" not in link
        }
        new = found - reached - {TEMPLATE}

    assert [name(page) for page in PAGES if page not in reached] == []
