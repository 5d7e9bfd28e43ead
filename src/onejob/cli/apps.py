"""APP on the command line: module:attribute, or the URL of a store; and commands that open it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Coroutine
from functools import reduce, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from onejob.errors import OnejobError

if TYPE_CHECKING:
    from onejob import App

VARIABLE = "ONEJOB_APP"
PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
URL = re.compile(r"[a-z][a-z0-9+]*://.*", re.DOTALL)

Work = Callable[..., Coroutine[Any, Any, int | None]]


class AppCommand(click.Command):
    """A command whose first word is APP, unless ONEJOB_APP says it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the app of the environment in its place if the first word is not one."""
        default = os.environ.get(VARIABLE)
        if default and not ctx.resilient_parsing:
            words, _, _ = self.make_parser(ctx).parse_args(list(args))
            if not is_app(words.get("app")):
                args = [default, *args]
        return super().parse_args(ctx, args)


def is_app(word: object) -> bool:
    """Tell whether a word looks like module:attribute or like a URL."""
    return isinstance(word, str) and bool(PLACE.fullmatch(word) or URL.fullmatch(word))


def app_command(
    *, example: str, needs_tasks: bool = False, makes_tables: bool = False
) -> Callable[[Work], click.Command]:
    """Make a command of a coroutine function that takes an open App and returns its exit code, or None."""

    def decorate(work: Work) -> click.Command:
        @wraps(work)
        def callback(app: str, namespace: str | None = None, **options: Any) -> None:
            opened = load(app, namespace, needs_tasks=needs_tasks)
            if URL.fullmatch(app) and not makes_tables:
                refuse_empty(opened)
            run(work, opened, options)

        decorated = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")(callback)
        if not needs_tasks:
            decorated = click.option("--namespace", help="The tenant, where APP is a URL.")(decorated)
        decorated = click.argument("app")(decorated)
        return click.command(cls=AppCommand, epilog=f"Example: {example}")(decorated)

    return decorate


def run(work: Work, app: App, options: dict[str, Any]) -> None:
    """Do a command's work on an open app, close it, and exit with the code that the work returned."""
    import asyncio

    async def use() -> int | None:
        async with app:
            return await work(app, **options)

    if code := asyncio.run(use()):
        raise click.exceptions.Exit(code)


def load(place: str, namespace: str | None = None, *, needs_tasks: bool = False) -> App:
    """Find the app that a word names."""
    from onejob import App

    if URL.fullmatch(place) and not needs_tasks:
        return App(place, namespace=namespace or "")
    if namespace is not None:
        raise unusable("--namespace goes with a URL; an app has its own.")
    if URL.fullmatch(place):
        raise unusable(f"{place} names a store, which knows no tasks: name the app, as in shop:app.")
    if not PLACE.fullmatch(place):
        raise unusable(f"{place!r} is not an app: write module:attribute, as in shop:app, or set {VARIABLE}.")
    module, _, attribute = place.partition(":")
    found = pick(load_module(module), module, attribute)
    if not isinstance(found, App):
        raise unusable(f"{place} is of type {type(found).__name__}, not an onejob App.")
    found.place = place
    return found


def load_module(name: str) -> Any:
    """Import a module, as Python started in this folder would."""
    if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - sys.path holds text
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except OnejobError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise unusable(f"No module is named {name!r}, seen from {here}.") from error
        raise click.ClickException(broken(name, error)) from error
    except Exception as error:
        raise click.ClickException(broken(name, error)) from error


def broken(name: str, error: Exception) -> str:
    """Say in one sentence why a module could not be imported, and where it went wrong."""
    import traceback

    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename
    ]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
    return f"{name} could not be imported: {type(error).__name__}: {error}{where}."


def pick(module: Any, name: str, attribute: str) -> Any:
    """Read a dotted attribute of a module."""
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        raise unusable(f"Module {name!r} has no attribute {attribute!r}.") from error


def refuse_empty(app: App) -> None:
    """Refuse a URL behind which there is nothing yet: it is more likely a slip than a wish."""
    if not app.schema().found:
        raise click.ClickException(
            f"{redacted(app.url)} has no jobs of onejob: check the URL, or make it so with onejob migrate."
        )


def unusable(message: str) -> click.UsageError:
    """Make the error for an APP that cannot be used."""
    return click.UsageError(message)


def redacted(url: str) -> str:
    """Show a URL without its password."""
    password = urlsplit(url).password
    shown = url.replace(f":{password}@", ":…@", 1) if password else url
    return re.sub(r"(?<=[?&]password=)[^&]*", "…", shown)
