"""Suggestions for names that do not exist: misspelled, or words of other job systems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")

RETRY = {
    **dict.fromkeys(("max_retries", "retries", "max_attempts", "tries", "times", "max"), "attempts=…"),
    **dict.fromkeys(("backoff", "delay", "interval", "min_backoff", "wait"), "base=…"),
    **dict.fromkeys(
        ("countdown", "eta", "when", "exc"), 'raise onejob.RetryLater("30s") inside the function'
    ),
    **dict.fromkeys(("max_backoff", "max_delay", "max_interval", "retry_backoff_max"), "cap=…"),
    "multiplier": "factor=…",
}
UNIQUE = {
    **dict.fromkeys(("period", "window", "ttl", "timeout", "lock_ttl", "expires", "expiry"), "within=…"),
    **dict.fromkeys(("lock", "lock_key", "unique_key", "queueing_lock", "identity_key"), "key=…"),
    **dict.fromkeys(("args", "arguments", "unique_on", "keys", "lock_args"), "by=…"),
    "replace": 'on_conflict="replace"',
}
APP = {
    **dict.fromkeys(("broker", "broker_url", "redis", "redis_url"), 'App("redis://…")'),
    **dict.fromkeys(("database", "database_url", "dsn"), 'App("postgresql://…")'),
    **dict.fromkeys(("name", "main"), "namespace=…"),
    "include": "onejob worker shop:app --import shop.tasks",
}
"""Arguments of other job systems, and how to write them here."""
MODULE = {
    **dict.fromkeys(("task", "job", "actor", "periodic_task"), "app = onejob.App(…), and @app.task"),
    **dict.fromkeys(("Celery", "Huey", "Queue", "Broker"), 'app = onejob.App("sqlite:///jobs.db")'),
    **dict.fromkeys(
        ("current_task", "get_current_job", "CurrentMessage"), "onejob.current() inside the function"
    ),
    **dict.fromkeys(("Reject", "Ignore", "CancelExecution"), "raise onejob.Discard(…) inside the function"),
    "shared_task": "tasks = onejob.Tasks(), @tasks.task, and app.include(tasks)",
    "AsyncResult": "app.job_sync(id)",
    "chord": "onejob.batch(…, on_success=…)",
    "crontab": '@app.cron("0 4 * * *") above @app.task',
}
"""Names that modules of other job systems have, and what to write here."""
NO_EXCEPTION = "exceptions must derive from BaseException"
RAISE = f'{NO_EXCEPTION}: to try again later, write raise onejob.RetryLater("30s"); Retry(…) is a policy'
"""What Python says of `raise Retry(…)`, and what it is answered with."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is spelled most like another; None if none is."""
    from difflib import get_close_matches  # needed for mistakes only

    return next(iter(get_close_matches(name, [one for one in known if one[0] != "_"], n=1)), None)


def missing(owner: object, name: str, words: Mapping[str, str]) -> AttributeError:
    """Return the error for an attribute that does not exist, with what to write instead if that is known."""
    instead = words.get(name) or (None if name[0] == "_" else nearest(name, dir(type(owner))))
    cure = "" if instead is None else f": write {instead}"
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{cure}")


def answers_unknown(words: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Return a class decorator: an argument that does not exist is answered with what to write instead."""

    def decorate(cls: type[T]) -> type[T]:
        create: Any = cls.__init__

        @wraps(create)
        def __init__(self: object, *args: Any, **options: Any) -> None:  # noqa: N807 - it becomes the method
            try:
                create(self, *args, **options)
            except TypeError as error:
                raise unknown_option(cls.__name__, create, options, words) or error from None

        cls.__init__ = __init__  # type: ignore[method-assign]
        return cls

    return decorate


def unknown_option(
    name: str, create: Callable[..., object], options: Iterable[str], words: Mapping[str, str]
) -> TypeError | None:
    """Return the error for the first option that a class does not have; None if it has them all."""
    from inspect import signature

    known = signature(create).parameters
    for option in options:
        if option not in known:
            near = nearest(option, known)
            instead = words.get(option) or (f"{near}=…" if near else None)
            return TypeError(f"{name} has no {option}=: {f'write {instead}' if instead else 'leave it out'}.")
    return None
