"""`onejob demo`."""

from __future__ import annotations

import click


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog="Example: onejob demo",
)
@click.pass_context
def demo(ctx: click.Context) -> None:
    """Watch duplicates being absorbed, in a minute, on a throw-away database."""
    from onejob.demo import main

    main(ctx.args)
