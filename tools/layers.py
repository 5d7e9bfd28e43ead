"""Write the layer diagram and the tables of modules of `docs/architecture.md` from the code.

The layers and their order come from the import-linter contracts in `pyproject.toml`, the sentences from the
modules' docstrings. `python -m tools.layers` prints the tables, `--write` writes the diagram and the page. A
test fails if one of them is out of date.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "onejob"
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "images" / "layers.svg"
BEGIN, END = "<!-- layers: begin -->\n", "<!-- layers: end -->\n"

WIDTH, COLUMN, ROW, BOX, GAP = 590, 150, 52, 30, 10
STYLE = """
  text { font: 14px ui-monospace, monospace; fill: #1f2328; text-anchor: middle }
  rect { fill: #eff2f5; stroke: #d1d9e0 }
  path { fill: none; stroke: #59636e }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } rect { fill: #1b222b; stroke: #3d444d }
    path { stroke: #9198a1 }
  }
"""


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


def drawing() -> str:
    """Return the diagram: a row per layer, from which imports point down."""
    lines, y = list[str](), 0
    for names in layers():
        if y:
            lines.append(f'<path d="M{WIDTH / 2:g} {y - ROW + BOX + 4} V{y - 4} m-4 -4 l4 4 l4 -4"/>')
        left = (WIDTH - len(names) * COLUMN + GAP) / 2
        for x, name in zip(range(int(left), WIDTH, COLUMN), names, strict=False):
            lines.append(f'<rect x="{x}" y="{y}" width="{COLUMN - GAP}" height="{BOX}" rx="5"/>')
            lines.append(f'<text x="{x + (COLUMN - GAP) // 2}" y="{y + 20}">{name}</text>')
        y += ROW
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *lines, "</svg>", ""])


def tables() -> str:
    """Return a table of modules per package, as Markdown."""
    lines = list[str]()
    for name in (name for layer in layers() for name in layer):
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
    """Return the page with the present tables."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{tables()}{END}{tail}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(updated(PAGE.read_text()))
        PICTURE.write_text(drawing())
    else:
        print(tables())  # noqa: T201 - a tool prints
