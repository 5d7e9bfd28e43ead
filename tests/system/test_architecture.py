"""The architecture page shows the code as it is."""

import re

from tools.layers import PAGE, PICTURE, SOURCE, drawing, updated


def test_the_diagram_is_up_to_date() -> None:
    assert PICTURE.read_text() == drawing(), "run python -m tools.layers --write"
    assert PAGE.read_text() == updated(PAGE.read_text()), "run python -m tools.layers --write"


def test_every_module_that_the_page_names_exists() -> None:
    table = PAGE.read_text().partition("## One enqueue")[2].partition("## The layers")[0]
    for name in re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py|\.sql|\*\.lua)?)`", table):
        assert list(SOURCE.glob(name.rstrip("/"))), name


def test_design_decisions_are_numbered_without_gaps_and_listed() -> None:
    folder = PAGE.parent / "adr"
    files = sorted(path.name for path in folder.glob("0*.md"))
    overview = (folder / "README.md").read_text()
    listed = re.findall(r"^\| \[(\d{4})\]\((\1-[\w-]+\.md)\) \| (.+) \|$", overview, re.MULTILINE)

    assert [int(name[:4]) for name in files] == list(range(len(files)))
    assert sorted(name for _, name, _ in listed) == files[1:]  # without the template
    for number, name, title in listed:
        first = (folder / name).read_text().partition("\n")[0]
        assert first == f"# {number}: {title}"


def test_references_to_design_decisions_have_the_right_number() -> None:
    for page in (PAGE.parents[1] / "docs").rglob("*.md"):
        for number, target in re.findall(r"\[(\d{4})\]\((?:adr/)?(\d{4})-", page.read_text()):
            assert number == target, page
