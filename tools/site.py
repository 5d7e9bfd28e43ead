"""Build the documentation site: `python -m tools.site`, or `make docs`.

The pages in `docs` are written for code forges and for the tests: the info string of a code block may say how
the tests treat it, and links may leave the folder. `prepare` writes pages without both into `build/pages`,
Zensical builds `build/site` from them, and `for_assistants` adds `llms.txt` and `llms-full.txt`.
"""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
DOCS, PAGES, SITE = ROOT / "docs", ROOT / "build" / "pages", ROOT / "build" / "site"
BESIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}  # pages from outside `docs`
TEMPLATE = "0000-template.md"  # for writers, not for readers

INFO = re.compile(r"^( *```+)(\w+) [^\n]+$", re.MULTILINE)
DIRECTIVE = re.compile(r"^::: (\S+)\n(?: +.*\n)*", re.MULTILINE)  # of mkdocstrings
FENCED = re.compile(r"^( *)(```+).*?^\1\2$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^##? (.+)$", re.MULTILINE)
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


def listed(nav: list[Any], section: str = "") -> Iterator[tuple[str, str]]:
    """Return the section and the path of every page in the navigation, in order."""
    for item in nav:
        for title, value in item.items():
            if isinstance(value, str):
                yield section, value
            else:
                yield from listed(value, title)


def described(text: str) -> str:
    """Return the title of a page as a link's text, and the headings that say what it is about."""
    title, *headings = HEADING.findall(FENCED.sub("", text))
    about = "; ".join(headings[:12])
    return f"[{title}]({{}}){f': {about}' if about else ''}"


def address(path: str) -> str:
    """Return where a page is on the site."""
    return path.replace("README.md", "index.md").removesuffix(".md") + ".html"


def form(thing: object) -> str:
    """Return the signature of a function as it is written, without quotes and without `self`."""
    signature = str(inspect.signature(thing)) if inspect.isfunction(thing) else ""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", re.sub(r"^\((self|cls)(, )?", "(", signature))


def docstring(path: str) -> str:
    """Return the docstring of a public name as Markdown, and those of its methods."""
    thing = resolve_name(path)
    members = vars(thing).items() if inspect.isclass(thing) and not issubclass(thing, str) else ()
    methods = [
        f"#### `{name}{form(value)}`\n\n{inspect.getdoc(value)}\n"
        for name, value in ((name, getattr(value, "__func__", value)) for name, value in members)
        if name[0] != "_" and not name.endswith("_sync") and (callable(value) or isinstance(value, property))
    ]
    return "\n".join([f"### `{path}{form(thing)}`\n\n{inspect.getdoc(thing)}\n", *methods])


def for_assistants(nav: list[Any]) -> None:
    """Write the list of pages, and all pages as one file in which docstrings stand in their places."""
    listing = ["# onejob", "", "> Background jobs for Python that run once: deduplication first.", ""]
    whole, present = list[str](), ""
    for section, path in listed(nav):
        text = (PAGES / path).read_text()
        if section != present:
            listing += ["", f"## {section}", ""]
            present = section
        listing.append("- " + described(text).format(address(path)))
        text = DIRECTIVE.sub(lambda found: docstring(found[1]), text)
        whole.append(f"<!-- {path} -->\n\n{text.strip()}\n")
    listing += ["", "## Optional", "", "- [All pages in one file](llms-full.txt): about 120,000 tokens.", ""]
    (SITE / "llms.txt").write_text("\n".join(listing))
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
