"""Litestar, in an environment of its own: nothing else here needs it."""

import sys
from pathlib import Path

import pytest

from tools.environment import ROOT, build, make_environment, run

EXAMPLE = ROOT / "examples" / "litestar_shop" / "shop.py"


@pytest.mark.slow
def test_a_shop_on_litestar_runs(tmp_path: Path) -> None:
    [wheel] = build(ROOT, tmp_path / "dist", "--wheel")
    made = make_environment(tmp_path / "environment", sys.executable)
    made.install(f"onejob[dashboard] @ {wheel.as_uri()}", "litestar>=2,<3", "httpx", newest=True)

    shown = run(made.python, EXAMPLE, cwd=tmp_path)

    assert {"result: invoice for 7", "completed: 1"} <= set(shown.splitlines())
