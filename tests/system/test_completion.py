"""Shell completion: the script of `onejob completion`, run by each shell that this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onejob.cli.options import STATES

ONEJOB = Path(sys.executable).with_name("onejob")
ENVIRONMENT = {**os.environ, "PATH": f"{ONEJOB.parent}{os.pathsep}{os.environ['PATH']}"}

ASKED = {"wo": ["worker", "workers"], "cron d": ["describe"], "jobs shop:app --state ": list(STATES)}

BASH = """
eval "$(onejob completion bash)"
IFS=' ' COMP_WORDS=(onejob {words})
[[ '{words}' == *' ' ]] && COMP_WORDS+=("")
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_onejob_completion onejob
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = "onejob completion fish | source; complete --do-complete 'onejob {words}'"
SCRIPTS = {"bash": BASH, "fish": FISH}


@pytest.mark.parametrize("words", ASKED)
@pytest.mark.parametrize("shell", [one for one in SCRIPTS if shutil.which(one)])
def test_a_shell_completes(shell: str, words: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [shell, "-c", SCRIPTS[shell].format(words=words)],
        cwd=tmp_path, env={**ENVIRONMENT, "HOME": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert sorted(line.split("\t")[0] for line in done.stdout.splitlines()) == sorted(ASKED[words])


@pytest.mark.parametrize("words", ASKED)
def test_zsh_is_answered(words: str, tmp_path: Path) -> None:
    place = len(words.split()) + words.endswith(" ")
    asked = {"_ONEJOB_COMPLETE": "zsh_complete", "COMP_WORDS": f"onejob {words}", "COMP_CWORD": str(place)}
    done = subprocess.run(
        [ONEJOB], cwd=tmp_path, env=ENVIRONMENT | asked, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[1::3] == ASKED[words]


@pytest.mark.parametrize("shell", [one for one in ["zsh"] if shutil.which(one)])
def test_zsh_takes_the_script(shell: str, tmp_path: Path) -> None:
    script = (
        'autoload -Uz compinit && compinit -u; eval "$(onejob completion zsh)"; print -r -- $_comps[onejob]'
    )
    done = subprocess.run(
        [shell, "-f", "-c", script], cwd=tmp_path, env={**ENVIRONMENT, "HOME": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("_onejob_completion\n", "")
