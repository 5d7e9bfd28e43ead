"""Write the layer diagram of `docs/architecture.md` from the code.

The layers and their order come from the import-linter contracts in `pyproject.toml`, the sentences from the
modules' docstrings. `python -m tools.layers` prints the diagram, `--write` puts it into the page, and a test
fails if the page is out of date.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "onejob"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- layers: begin -->\n", "<!-- layers: end -->\n"


def layers() -> list[list[str]]:
    """Return the packages by layer, top first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [order] = [contract["layers"] for contract in contracts if contract.get("containers") == ["onejob"]]
    return [[name.strip() for name in layer.split("|")] for layer in order]


def summary(path: Path) -> str:
    """Return the first line of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.partition("\n")[0]


def modules(package: Path) -> Iterator[tuple[str, str]]:
    """Return the modules of a package and what they are for, subpackages as one."""
    for path in sorted(package.iterdir()):
        if path.suffix == ".py" and path.stem != "__init__":
            yield path.stem, summary(path)
        elif (path / "__init__.py").exists():
            yield f"{path.name}/", summary(path / "__init__.py")


def diagram() -> str:
    """Return the diagram and a table per package, as Markdown."""
    lines = ["```mermaid", "flowchart TD"]
    order = layers()
    for upper, lower in pairwise(order):
        lines += [f"    {a} --> {b}" for a in upper for b in lower]
    lines += ["```", ""]
    for name in (name for layer in order for name in layer):
        path = SOURCE / name
        if path.is_dir():
            lines += [
                f"### `{name}`",
                "",
                summary(path / "__init__.py"),
                "",
                "| module | what it does |",
                "|---|---|",
            ]
            lines += [f"| `{module}` | {text} |" for module, text in modules(path)]
            lines.append("")
    return "\n".join(lines)


def updated(page: str) -> str:
    """Return the page with the present diagram."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{diagram()}{END}{tail}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(updated(PAGE.read_text()))
    else:
        print(diagram())  # noqa: T201 - a tool prints
