"""Task: a function that can be called at once, or enqueued."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from functools import update_wrapper
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Never, ParamSpec, TypeVar

from onejob.core.durations import Duration
from onejob.core.fluent import Fluent
from onejob.core.job import Retry
from onejob.core.policy import Unique
from onejob.core.suggestions import missing
from onejob.errors import InvalidCall, InvalidPolicy
from onejob.tasks.admission import Admission
from onejob.tasks.call import Call
from onejob.tasks.enqueue import enqueue_call, enqueue_sync
from onejob.tasks.explain import Explanation, explain, is_pending
from onejob.tasks.foreign import methods_of
from onejob.tasks.options import OnBlockerFailure, chosen_options
from onejob.tasks.request import RequestBuilder
from onejob.tasks.signature import misfit
from onejob.tasks.unawaited import Unawaited

log = logging.getLogger("onejob")

P = ParamSpec("P")
R = TypeVar("R")


class Task(Generic[P, R]):
    """A named function that can be called at once, or enqueued: the answer of `@app.task`.

    Examples:
        >>> await send_invoice.enqueue(7)
        >>> await send_invoice.options(delay="30s").enqueue(8)
        >>> send_invoice(9)  # still a function
    """

    def __init__(self, builder: RequestBuilder) -> None:
        self._builder = builder
        update_wrapper(self, builder.declaration.function)

    @property
    def name(self) -> str:
        """The task's name."""
        return self._builder.declaration.name

    @property
    def function(self) -> Callable[..., Any]:
        """The function."""
        return self._builder.declaration.function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function here and now; an async one is awaited as usual."""
        return self._builder.declaration.function(*args, **kwargs)

    def __repr__(self) -> str:
        """Return the task's name."""
        return f"<Task {self.name}>"

    if not TYPE_CHECKING:  # or type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError; for a method of other job systems, say what to write instead."""
            raise missing(self, name, methods_of(self.__dict__.get("__name__", "task")))

    # ── enqueuing ─────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Admission[R]]:
        """Enqueue a call of this task.

        Args:
            *args: Positional arguments of the function.
            **kwargs: Keyword arguments of the function.

        Returns:
            What happened to the request, and the job that serves it. A duplicate is an answer, not an error.

        Raises:
            Duplicate: The policy rejects duplicates, and the key is held.
            QueueFull: The queue has as many waiting jobs as its `max_depth` allows.
            InvalidCall: The call does not fit the function, or has no JSON form.
            StoreError: The store could not decide; `StoreTimeout.may_exist` says whether the job may exist.
        """
        builder = self._builder
        return enqueue_call(builder, args, kwargs, Unawaited("enqueue", [builder.declaration.name]))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Admission[R]:
        """Blocking variant of `enqueue`."""
        return enqueue_sync(self._builder, self._builder.request(args, kwargs))

    def enqueue_quietly(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Admission[R] | None]:
        """Enqueue a call of this task, but log a failure instead of raising it.

        Args:
            *args: Positional arguments of the function.
            **kwargs: Keyword arguments of the function.

        Returns:
            What happened to the request, as `enqueue` returns it, or None if it failed.
        """
        return self._enqueue_quietly(Unawaited("enqueue_quietly", [self.name]), args, kwargs)

    async def _enqueue_quietly(
        self, unawaited: Unawaited, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Admission[R] | None:
        try:
            return await enqueue_call(self._builder, args, kwargs, unawaited)
        except Exception:
            log.exception("a quiet enqueue of %s failed", self.name)
            return None

    def enqueue_quietly_sync(self, *args: P.args, **kwargs: P.kwargs) -> Admission[R] | None:
        """Blocking variant of `enqueue_quietly`."""
        try:
            return self.enqueue_sync(*args, **kwargs)
        except Exception:
            log.exception("a quiet enqueue of %s failed", self.name)
            return None

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a call without enqueuing it, for `enqueue_many`, `chain`, `group` and `continue_with`.

        Args:
            *args: Positional arguments of the function.
            **kwargs: Keyword arguments of the function.

        Examples:
            >>> await app.enqueue_many([send_invoice.call(7), send_invoice.call(8)])
        """
        return Call(self._builder, args, kwargs)

    def step(self, *args: Any, **kwargs: Any) -> Call[R]:
        """Return a call with one argument left open, which a chain fills with the previous result.

        It is `call` for type checkers, which would miss the open argument.

        Args:
            *args: Positional arguments of the function.
            **kwargs: Keyword arguments of the function.

        Examples:
            >>> await chain(fetch.call(url), store.step(table="pages")).enqueue()
        """
        return Call(self._builder, args, kwargs)

    def call_from(self, arguments: Mapping[str, Any]) -> Call[R]:
        """Return a call with arguments that come from JSON, converted to the types that the task declares.

        Args:
            arguments: Values by argument name.

        Raises:
            InvalidCall: The arguments do not fit the task.
        """
        signature = self._builder.declaration.signature
        bound = signature.bind((), dict(arguments))
        try:
            args, kwargs = signature.restore(bound)
        except (TypeError, ValueError) as error:
            why = misfit(signature, bound, error)
            raise InvalidCall(f"The arguments do not fit {self.name}: {why}.") from error
        return Call(self._builder, tuple(args), kwargs)

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments: an object with one property per argument.

        Examples:
            >>> schema = send_invoice.schema()
        """
        return self._builder.declaration.signature.schema()

    def accepts(self, name: str, value: object) -> bool:
        """Return whether a JSON value can be converted to the type that an argument declares.

        Args:
            name: The name of the argument.
            value: The value.
        """
        try:
            self._builder.declaration.signature.convert({name: value})
        except (TypeError, ValueError):
            return False
        return True

    # ── looking ahead ─────────────────────────────────────────────────────────────────────────────

    async def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """Return what enqueuing this call would do, and why, without doing or counting it.

        Raises:
            InvalidCall: The call does not fit the function.
        """
        return await explain(self._builder, args, kwargs)

    def explain_sync(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """Blocking variant of `explain`."""
        return self._builder.engine.run_sync(self.explain(*args, **kwargs))

    async def pending(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Return whether any job with the key of this call waits or runs.

        Raises:
            InvalidCall: The call does not fit the function.
        """
        return await is_pending(self._builder.engine, self._builder.request(args, kwargs))

    def pending_sync(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Blocking variant of `pending`."""
        return self._builder.engine.run_sync(self.pending(*args, **kwargs))

    # ── options ───────────────────────────────────────────────────────────────────────────────────

    def options(
        self,
        *,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        unique: Unique | Fluent | bool | None = None,
        key: str | None = None,
        meta: Mapping[str, Any] | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        force: bool = False,
        connection: Any = None,
        expires_at: datetime | None = None,
        expires_in: Duration | None = None,
        after: Any = None,
        on_blocker_failure: OnBlockerFailure | None = None,
        exclude: Any = None,
        **unknown: Never,
    ) -> Task[P, R]:
        """Return this task with other options for the next call.

        Args:
            delay: Run no sooner than after this time.
            run_at: Run no sooner than at this time; excludes `delay`.
            priority: Higher starts sooner.
            queue: Another queue than the task's.
            unique: Another policy than the task's; False for none.
            key: An identity of your own, instead of the policy's.
            meta: Values that are kept with the job.
            retry: Another retry policy than the task's.
            timeout: How long the run may take.
            force: Admit even if the same work is waiting or running.
            connection: Your connection: the job exists if and only if you commit.
            expires_at: When it is too late to start.
            expires_in: After what time it is too late to start; excludes `expires_at`.
            after: Chains, admissions, jobs or ids that must end first.
            on_blocker_failure: "wait" (for a replay), "fail" with the blocker, or "ignore" its failure.
            exclude: Chains that do not count as holders of the key.
            **unknown: No other option exists; a refusal says what to write instead.

        Raises:
            InvalidCall: Options contradict each other, or do not exist.
            InvalidPolicy: The policy does not fit the task.

        Examples:
            >>> await send_invoice.options(delay="30s", priority=5).enqueue(9)
        """
        when = {"delay": delay, "run_at": run_at, "expires_at": expires_at, "expires_in": expires_in}
        order = {"queue": queue, "priority": priority, "after": after}
        policies = {"unique": unique, "key": key, "exclude": exclude, "retry": retry, "timeout": timeout}
        rest = {"meta": meta, "force": force or None, "connection": connection}
        given = chosen_options(
            self.name, unknown, **when, **order, **policies, **rest, on_blocker_failure=on_blocker_failure
        )
        return Task(self._builder.with_options(**given))


def bind_task(task: Task[..., Any], builder: RequestBuilder) -> None:
    """Make a task that was declared without an app enqueue through an app's builder.

    If another app has included it before, the newer app takes its place; a warning says so if it has another
    store.
    """
    before = vars(task)["_builder"]
    if isinstance(before, RequestBuilder) and store_of(before) != store_of(builder):
        log.warning(
            "%s was included by an app with another store or namespace before; it is enqueued through the "
            "newer app now: write app.task_named(%r).enqueue(…) where an app has both",
            task.name,
            task.name,
        )
    vars(task)["_builder"] = builder


def store_of(builder: RequestBuilder) -> tuple[str, str]:
    """Return the store and the namespace in which a builder's jobs live."""
    return builder.engine.url, builder.engine.namespace


builder_of: Callable[[Task[..., Any]], RequestBuilder] = attrgetter("_builder")
"""Return what builds a task's requests; its attributes are not shown to users."""


def refuse_task(function: object) -> None:
    """Raise InvalidPolicy for a function that is a task already."""
    if isinstance(function, Task):
        cure = "leave out @app.task above it, or write @app.cron above @app.task"
        raise InvalidPolicy(f"{function.name} is a task already: {cure}.")
