"""Build the documentation site: `python -m tools.site`, or `make docs`.

The pages in `docs` are written for code forges and for the tests: the info string of a code block may say how
The pages in `docs` are written for code forges and for the tests. The info string of a code block may say how
pages without both into `build/pages`, Zensical builds `build/site` from them, and `for_assistants` adds
`llms.txt` and `llms-full.txt`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
DOCS, PAGES, SITE = ROOT / "docs", ROOT / "build" / "pages", ROOT / "build" / "site"
BESIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}  # pages from outside `docs`
TEMPLATE = "0000-template.md"  # for writers, not for readers

INFO = re.compile(r"^( *```+)(\w+) [^\n]+$", re.MULTILINE)
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?!adr/|presets/|coming-from/|images/)([^)\s]+)\)")


def adapted(text: str, depth: int) -> str:
    """Return a page as the site needs it; `depth` is the number of folders above it."""

    def link(match: re.Match[str]) -> str:
        words, target = match.groups()
        file, hash_sign, anchor = target.partition("#")
        if file in BESIDE:
            return f"[{words}]({'../' * depth}{BESIDE[file]}{hash_sign}{anchor})"
        is_page = (DOCS / file).exists() and depth > 0
        return match.group(0) if is_page else words

    text = text.replace(f"[the template]({TEMPLATE})", "the template")
    return OUTSIDE.sub(link, INFO.sub(r"\1\2", text))


def prepare() -> None:
    """Write the pages and the pictures into `build/pages`."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(DOCS, PAGES, ignore=shutil.ignore_patterns(TEMPLATE))
    for page in PAGES.rglob("*.md"):
        page.write_text(adapted(page.read_text(), len(page.relative_to(PAGES).parts) - 1))
    for source, name in BESIDE.items():
        text = (ROOT / source).read_text().replace("](docs/", "](")
        (PAGES / name).write_text(adapted(text, 0))


def listed(nav: list[Any]) -> Iterator[tuple[str, str]]:
    """Return the title and the path of every page in the navigation, in order."""
    for item in nav:
        for title, value in item.items():
            if isinstance(value, str):
                yield title, value
            else:
                yield from listed(value)


def for_assistants(nav: list[Any]) -> None:
    """Write the list of pages, and all pages as one file."""
    listing = ["# onejob", "", "> Background jobs for Python that run once: deduplication first.", ""]
    whole: list[str] = []
    for title, path in listed(nav):
        text = (PAGES / path).read_text()
        listing.append(f"- [{title}]({path.removesuffix('.md')}.html)")
        whole.append(f"<!-- {path} -->\n\n{text.strip()}\n")
    (SITE / "llms.txt").write_text(
        "\n".join([*listing, "", "All pages in one file: [llms-full.txt](llms-full.txt)", ""])
    )
    (SITE / "llms-full.txt").write_text("\n".join(whole))


def main() -> None:
    """Build the site; a warning of Zensical is an error."""
    prepare()
    shutil.rmtree(SITE, ignore_errors=True)
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--strict", "--clean"]
    subprocess.run(command, cwd=ROOT, check=True)  # noqa: S603 - the program that our own requirements name
    for_assistants(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])


if __name__ == "__main__":
    main()
