"""`manage.py onejob …`: the command line of onejob with the app of the project."""

from __future__ import annotations

import argparse
import os
from importlib.metadata import entry_points
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """Passes its arguments to `onejob`; the APP argument is the setting ONEJOB_APP."""

    help = "Run onejob with this project's app, as in: manage.py onejob worker"
    requires_system_checks: list[str] = []  # noqa: RUF012 - as Django declares it

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Accept what `onejob` accepts."""
        parser.add_argument("words", nargs=argparse.REMAINDER)

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command of a terminal; options such as --help are those of onejob."""
        run(argv[2:], standalone_mode=True)

    def handle(self, *args: Any, words: list[str], **_options: Any) -> None:  # noqa: ARG002 - as Django calls it
        """Run the command for `call_command("onejob", "stats")`."""
        run(words, standalone_mode=False)


def run(words: list[str], *, standalone_mode: bool) -> None:
    """Run the installed `onejob` command in this process."""
    os.environ["ONEJOB_APP"] = settings.ONEJOB_APP
    [command] = entry_points(group="console_scripts", name="onejob")
    command.load().main(words, prog_name="manage.py onejob", standalone_mode=standalone_mode)
