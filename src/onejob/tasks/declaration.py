"""A task as it was declared: a function with its policies, checked when it is registered."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from onejob.core.durations import Duration, duration, seconds, spell
from onejob.core.fluent import Fluent, policy_of
from onejob.core.job import Replay, Retention, Retry, State
from onejob.core.policy import Unique
from onejob.core.text import is_name
from onejob.errors import InvalidPolicy, WeakStore
from onejob.stores.contract import FullStore
from onejob.tasks.foreign import instead_of_policy, instead_of_retry
from onejob.tasks.signature import Signature

log = logging.getLogger("onejob")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Declaration:
    """A named function with its default policies."""

    name: str
    function: Callable[..., Any]
    signature: Signature
    is_async: bool
    queue: str
    unique: Unique | None
    retry: Retry
    timeout: float | None
    priority: int
    give_up_on: tuple[type[Exception], ...]
    process: bool
    check: bool
    expires_in: timedelta | None
    delay: timedelta | None
    partition: str | Callable[..., object] | None
    replay: Replay | None
    retention: Retention


def declare(
    function: Callable[..., Any],
    *,
    name: str,
    retry: Retry,
    retention: Retention,
    queue: str = "default",
    unique: Unique | Fluent | bool | None = None,
    timeout: Duration | None = None,
    priority: int = 0,
    give_up_on: type[Exception] | tuple[type[Exception], ...] = (),
    process: bool = False,
    check: bool = True,
    expires_in: Duration | None = None,
    delay: Duration | None = None,
    partition: str | Callable[..., object] | None = None,
    replay: Replay | None = None,
    **unknown: Any,
) -> Declaration:
    """Return the declaration of a task; raise InvalidPolicy for options that could only fail later."""
    refuse_unknown(name, unknown)
    declared = Declaration(
        name=name,
        function=function,
        signature=Signature(function),
        is_async=inspect.iscoroutinefunction(function),
        queue=queue,
        unique=policy_of(unique),
        retry=retry,
        timeout=None if timeout is None else seconds(timeout),
        priority=priority,
        give_up_on=(give_up_on,) if isinstance(give_up_on, type) else give_up_on,
        process=process,
        check=check,
        expires_in=None if expires_in is None else duration(expires_in),
        delay=None if delay is None else duration(delay),
        partition=partition,
        replay=replay,
        retention=retention,
    )
    return check_declaration(declared)


# ── checks ────────────────────────────────────────────────────────────────────────────────────────


def check_declaration(task: Declaration) -> Declaration:
    """Return a declaration; raise InvalidPolicy for options that could only fail later."""
    name = task.name
    if not name:
        raise InvalidPolicy(f"{task.function!r} has no name: write name=….")
    if not is_name(name):
        raise InvalidPolicy(f"name={name!r}: a task's name is printable text.")
    if is_method(task):
        raise InvalidPolicy(f"{name} is a method, whose object no worker has: write a function.")
    if inspect.isgeneratorfunction(task.function) or inspect.isasyncgenfunction(task.function):
        raise InvalidPolicy(f"{name} is a generator, which has no one result: write a function that returns.")
    check_switches(task)
    if not is_name(task.queue):
        raise InvalidPolicy(f"{name}: queue={task.queue!r}: a queue's name is printable text.")
    if not isinstance(task.retry, Retry):
        raise InvalidPolicy(f"{name}: retry={task.retry!r}: write {instead_of_retry(task.retry)}.")
    if task.timeout == 0:
        raise InvalidPolicy(f"{name}: timeout=0 leaves no time to run: leave it out for no limit.")
    if not is_priority(task.priority):
        raise InvalidPolicy(f"{name}: priority={task.priority!r}: write a whole number; higher runs sooner.")
    check_delay(task)
    check_partition(task)
    check_exceptions(task)
    check_replay(task)
    return task


def refuse_unknown(task: str, options: Iterable[str]) -> None:
    """Raise InvalidPolicy for an option that tasks do not have."""
    for option in options:
        instead = instead_of_policy(option)
        cure = "leave it out" if instead is None else f"write {instead}"
        raise InvalidPolicy(f"{task}: app.task has no option {option}=: {cure}.")


def check_switches(task: Declaration) -> None:
    """Raise InvalidPolicy unless `process` and `check` are True or False, and `process` fits the function."""
    for option, chosen in (("process", task.process), ("check", task.check)):
        if not isinstance(chosen, bool):
            raise InvalidPolicy(f"{task.name}: {option}={chosen!r}: write True or False.")
    if task.process and task.is_async:
        raise InvalidPolicy(f"{task.name}: process=True is for plain functions: write def, or leave it out.")


def check_delay(task: Declaration) -> None:
    """Raise InvalidPolicy for a delay that contradicts another option."""
    if task.delay is None:
        return
    if task.unique is not None and task.unique.wait is not None:
        raise InvalidPolicy(f"{task.name}: wait= says when a debounced job runs: leave delay= out.")
    if task.expires_in is not None and task.expires_in <= task.delay:
        raise InvalidPolicy(
            f"{task.name}: expires_in={spell(task.expires_in)} ends before delay={spell(task.delay)}: "
            "no job could start; write a longer expires_in."
        )


def is_method(task: Declaration) -> bool:
    """Return whether a function was declared in the body of a class."""
    owner = getattr(task.function, "__qualname__", "").rpartition(".")[0]
    return (
        bool(owner) and not owner.endswith("<locals>") and task.signature.names[:1] in {("self",), ("cls",)}
    )


def check_exceptions(task: Declaration) -> None:
    """Raise InvalidPolicy unless `give_up_on` names exception classes."""
    kinds: Any = task.give_up_on  # what was written, which may be anything
    if not isinstance(kinds, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds
    ):
        raise InvalidPolicy(
            f"{task.name}: give_up_on={task.give_up_on!r}: write a tuple of exception classes."
        )


def check_replay(task: Declaration) -> None:
    """Raise InvalidPolicy for a replay that would come after its dead letter is pruned."""
    replay = task.replay
    if replay is None:
        return
    if not isinstance(replay, Replay):
        raise InvalidPolicy(f"{task.name}: replay={replay!r}: write Replay(times=…, after=…).")
    kept = task.retention.of(State.DISCARDED)
    if (longest := replay.delay(replay.times - 1)) >= kept:
        raise InvalidPolicy(
            f"{task.name}: a dead letter is forgotten after {spell(kept)}, before its replay after "
            f"{spell(longest)}: write a shorter after= or cap=, or keep discarded jobs for longer."
        )


def check_partition(task: Declaration) -> None:
    """Raise InvalidPolicy for a partition that names an argument which the task does not have."""
    wanted, names = task.partition, task.signature.names
    if wanted is None:
        return
    if callable(wanted):
        check_function(wanted, task, "partition")
    elif not isinstance(wanted, str) or (wanted.split(".")[0] not in names and wanted not in names):
        raise InvalidPolicy(
            f"{task.name}: partition={wanted!r} is not an argument (it has: {known_names(task)})."
        )


def check_policy(policy: Unique | None, task: Declaration, store: FullStore, *, sealed: bool) -> None:
    """Raise for a policy that does not fit the task, the store or the app's codec."""
    if policy is None:
        return
    names, known = task.signature.names, known_names(task)
    for path in policy.by or ():
        if path.split(".")[0] not in names and path not in names:
            raise InvalidPolicy(f"{task.name}: by={path!r} is not an argument (it has: {known}).")
    if policy.version is not None and policy.version not in names:
        raise InvalidPolicy(f"{task.name}: version={policy.version!r} is not an argument (it has: {known}).")
    for name in policy.merge if isinstance(policy.merge, Mapping) else ():
        if name not in names:
            raise InvalidPolicy(f"{task.name}: merge={{{name!r}: …}} is not an argument (it has: {known}).")
    if callable(policy.key):
        check_function(policy.key, task, "key")
    if policy.merge is not None and sealed:
        raise InvalidPolicy(
            f"{task.name}: merge= reads payloads inside the store's step, but this app's codec seals them "
            "before: leave merge= out, or give the task to an app without codec=."
        )
    check_strength(task.name, policy, store)
    warn_of_gaps(task.name, policy)


def warn_of_gaps(task: str, policy: Unique) -> None:
    """Log that duplicates are admitted while a job passes through states without a hold."""
    if policy.states is not None and policy.gaps:
        gaps = ", ".join(state for state in State if state in policy.gaps)
        log.warning(
            "%s: states=%s has gaps: while a job is %s, it holds no key and duplicates are admitted; "
            "add these states, or write until=",
            task,
            sorted(policy.held_states),
            gaps,
        )


def check_strength(task: str, policy: Unique, store: FullStore) -> None:
    """Raise WeakStore if a policy demands more than the store declares; only then is a server asked."""
    if policy.strength == "strong" and (declared := store.guarantees).strength != "strong":
        raise WeakStore(
            f"{task} demands strength='strong', but the {declared.store} store declares "
            f"{declared.strength!r}: choose another store, or leave strength out."
        )


def check_function(function: Callable[..., object], task: Declaration, what: str) -> None:
    """Raise InvalidPolicy for a key or partition function with arguments that the task does not have."""
    for parameter in inspect.signature(function).parameters.values():
        needed = parameter.default is parameter.empty and parameter.kind not in {
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        }
        if needed and parameter.name not in task.signature.names:
            raise InvalidPolicy(
                f"{task.name}: the {what} function asks for {parameter.name!r}; "
                f"the task has: {known_names(task)}."
            )


def known_names(task: Declaration) -> str:
    """Return the names of a task's arguments for an error message."""
    return ", ".join(task.signature.names) or "none"


def is_priority(value: object) -> bool:
    """Return whether a value is a whole number of at most 31 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31
