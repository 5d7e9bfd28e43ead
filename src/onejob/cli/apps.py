"""The APP argument: module:attribute, or the URL of a store; and commands that open it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import reduce, wraps
from importlib import import_module
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

import click

from onejob.cli.foreign import refuse_option
from onejob.cli.options import json_option
from onejob.errors import OnejobError

if TYPE_CHECKING:
    from onejob import App

VARIABLE = "ONEJOB_APP"
PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
URL = re.compile(r"[a-z][a-z0-9+]*://.*", re.DOTALL)

Work = Callable[..., Coroutine[Any, Any, int | None]]


class AppCommand(click.Command):
    """A command whose first argument is APP, unless ONEJOB_APP is set."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the app of the environment if the first argument is not an app."""
        try:
            return super().parse_args(ctx, self.with_default(ctx, args))
        except click.NoSuchOption as error:
            refuse_option(ctx, error)
            raise

    def with_default(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the words of a command line with the app of the environment, if they need it."""
        default = os.environ.get(VARIABLE)
        if default and not ctx.resilient_parsing:
            words, _, _ = self.make_parser(ctx).parse_args(list(args))
            several = words.get("apps")  # of the worker; not a tuple if none is given
            first = several[0] if isinstance(several, tuple) and several else words.get("app")
            if not is_app(first):
                return [default, *args]
        return args


def is_app(word: object) -> bool:
    """Return whether an argument looks like module:attribute or like a URL."""
    return isinstance(word, str) and bool(PLACE.fullmatch(word) or URL.fullmatch(word))


def app_command(
    *, example: str, needs_tasks: bool = False, may_be_empty: bool = False
) -> Callable[[Work], click.Command]:
    """Return a decorator for coroutine functions that take an open App and return an exit code or None.

    Args:
        example: A command line for the help.
        needs_tasks: Refuse the URL of a store: it has no tasks.
        may_be_empty: Run it on a store without tables, which it may create; other commands create no file.
    """

    def decorate(work: Work) -> click.Command:
        @wraps(work)
        def callback(
            app: str, modules: tuple[str, ...], namespace: str | None = None, **options: Any
        ) -> None:
            opened = load(app, namespace, needs_tasks=needs_tasks, modules=modules)
            if not may_be_empty and (URL.fullmatch(app) or opened.url.startswith("sqlite:")):
                refuse_empty(opened)
            run(work, opened, options)

        decorated = import_option(json_option(callback))
        if not needs_tasks:
            decorated = namespace_option(decorated)
        decorated = click.argument("app")(decorated)
        return click.command(cls=AppCommand, epilog=f"Example: {example}")(decorated)

    return decorate


namespace_option = click.option("--namespace", help="The tenant, where APP is a URL.")
import_option = click.option(
    "--import", "modules", multiple=True, metavar="MODULE",
    help="Also import this module, which declares tasks; may be repeated.",
)  # fmt: skip


def run(work: Work, app: App, options: dict[str, Any]) -> None:
    """Run a command on an open app, close it, and exit with the code that the command returned."""
    import asyncio

    async def use() -> int | None:
        async with app:
            return await work(app, **options)

    if code := asyncio.run(use()):
        raise click.exceptions.Exit(code)


def load(
    place: str, namespace: str | None = None, *, needs_tasks: bool = False, modules: Sequence[str] = ()
) -> App:
    """Return the app that an argument names, after importing the modules that declare its tasks."""
    from onejob import App

    if URL.fullmatch(place) and not needs_tasks:
        if modules:
            raise click.UsageError("--import goes with an app; a store has no tasks.")
        return App(place, namespace=namespace or "")
    if namespace is not None:
        raise click.UsageError("--namespace goes with a URL; an app has its own.")
    if URL.fullmatch(place):
        raise click.UsageError(
            f"{hide_password(place)} names a store, which has no tasks: name the app, as in shop:app."
        )
    if not PLACE.fullmatch(place):
        shown = repr(re.sub(r".*@", "…@", place))
        raise click.UsageError(
            f"{shown} is not an app: write module:attribute, as in shop:app, or set {VARIABLE}."
        )
    module, _, attribute = place.partition(":")
    found = pick(load_module(module), module, attribute)
    if callable(found):
        place, found = f"{place}()", make(place, found)
    if not isinstance(found, App):
        raise click.UsageError(f"{place} is of type {type(found).__name__}, not an onejob App.")
    for name in modules:
        load_module(name)
    return found


def make(place: str, factory: Callable[[], object]) -> object:
    """Return the app that a factory returns; refuse a task, which looks like one."""
    from onejob import Task

    if isinstance(factory, Task):
        raise click.UsageError(f"{place} is a task, not an app: write {place.partition(':')[0]}:app.")
    if iscoroutinefunction(factory):
        raise click.UsageError(f"{place} is an async function: write a plain one that returns the app.")
    try:
        return factory()
    except Exception as error:
        shown = f"{type(error).__name__}: {error}{origin(error)}"
        raise click.ClickException(f"{place}() did not return an app: {shown}.") from error


def load_module(name: str) -> Any:
    """Import a module as Python would if it was started in this folder."""
    if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - sys.path holds text
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except OnejobError as error:
        raise click.ClickException(f"{str(error).rstrip('.')}{origin(error)}.") from error
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            cure = f": write {name.removesuffix('.py')}, without .py" if name.endswith(".py") else ""
            raise click.UsageError(
                f"There is no module {name!r} in {here} or on the Python path{cure}."
            ) from error
        raise click.ClickException(broken(name, error)) from error
    except Exception as error:
        raise click.ClickException(broken(name, error)) from error


def broken(name: str, error: Exception) -> str:
    """Return in one sentence why a module could not be imported, and where."""
    return f"{name} could not be imported: {type(error).__name__}: {error}{origin(error)}."


def origin(error: Exception) -> str:
    """Return where the app's own code raised an error, in parentheses."""
    import traceback

    ours = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - traceback has text, too
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and not frame.filename.startswith(ours)
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def pick(module: Any, name: str, attribute: str) -> Any:
    """Return a dotted attribute of a module."""
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        from onejob import App

        apps = [f"{name}:{one}" for one, value in vars(module).items() if isinstance(value, App)]
        cure = f": write {' or '.join(apps)}" if apps else ", and no app in it"
        raise click.UsageError(f"Module {name!r} has no attribute {attribute!r}{cure}.") from error


def refuse_empty(app: App) -> None:
    """Refuse a store without tables: more likely, the URL is wrong or a relative path starts elsewhere."""
    if not app.maintenance.schema().found:
        raise click.ClickException(
            f"{whole(app.url)} has no tables of onejob: check the URL and the folder, "
            "or create them with onejob migrate."
        )


async def refuse_unknown_task(app: App, task: str | None) -> None:
    """Raise UnknownTask if neither the store nor the app has a task of this name."""
    if task is not None and app.tasks and not await app.jobs(task=task, limit=1):
        app.task_named(task)


def app_named() -> str:
    """Return the APP of this command line, without its password."""
    return hide_password(click.get_current_context().params.get("app") or "APP")


def hide_password(url: str) -> str:
    """Return a URL without its password."""
    shown = re.sub(r"(?<=://)([^:/@]*):.*@", r"\1:…@", url)  # also where a part of it is not encoded
    return re.sub(r"(?<=[?&]password=)[^&]*", "…", shown)


def whole(url: str) -> str:
    """Return a URL without its password; a relative path of a file is made absolute."""
    scheme, _, path = url.partition(":///")
    if scheme == "sqlite" and path:
        return f"{scheme}:///{os.path.abspath(path)}"  # noqa: PTH100 - it is text in a URL
    return hide_password(url)
