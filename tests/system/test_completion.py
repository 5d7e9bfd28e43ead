"""The completion scripts in zsh and fish, where this machine has them; bash is in tests/packaging."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onejob.cli.options import STATES

PROGRAMS = Path(sys.executable).parent
SCRIPTS = {
    "fish": "onejob completion fish | source; complete --do-complete 'onejob jobs shop:app --state '",
    "zsh": 'autoload -Uz compinit && compinit -u; eval "$(onejob completion zsh)"; print -r $_comps[onejob]',
}
ANSWERS = {"fish": {str(state) for state in STATES}, "zsh": {"_onejob_completion"}}


@pytest.mark.parametrize("shell", [shell for shell in SCRIPTS if shutil.which(shell)])
def test_a_shell_takes_the_script(shell: str, tmp_path: Path) -> None:
    path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "-c", SCRIPTS[shell]], cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": path},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (set(done.stdout.splitlines()), done.stderr) == (ANSWERS[shell], "")
