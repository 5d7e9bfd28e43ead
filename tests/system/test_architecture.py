"""The architecture page shows the code as it is."""

import re

from tools.layers import PAGE, PICTURE, SOURCE, drawing, updated


def test_the_diagram_is_up_to_date() -> None:
    assert PICTURE.read_text() == drawing(), "run python -m tools.layers --write"
    assert PAGE.read_text() == updated(PAGE.read_text()), "run python -m tools.layers --write"


def test_every_module_that_the_page_names_exists() -> None:
    table = PAGE.read_text().partition("## Where do I change X?")[2].partition("## The layers")[0]
    for name in re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py|\.sql|\*\.lua)?)`", table):
        assert list(SOURCE.glob(name.rstrip("/"))), name
