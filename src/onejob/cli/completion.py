"""`onejob completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_ONEJOB_COMPLETE"  # click answers the shell's questions if it is set


@click.command(epilog="Example: onejob completion fish | source")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes onejob's commands and options in a shell.

    Add `eval "$(onejob completion bash)"` to ~/.bashrc; or `eval "$(onejob completion zsh)"` to ~/.zshrc,
    below the call of compinit; or the example to ~/.config/fish/config.fish.
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click has the three that are allowed above
    click.echo(kind(ctx.find_root().command, {}, "onejob", VARIABLE).source())
