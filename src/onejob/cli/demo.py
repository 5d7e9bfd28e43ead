"""`onejob demo`."""

from __future__ import annotations

import click


@click.command(epilog="Example: onejob demo")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def demo(*, as_json: bool) -> None:
    """Watch duplicates being absorbed, in a minute, on a throw-away database."""
    from onejob.demo import main

    if code := main(json=as_json):
        raise click.exceptions.Exit(code)
