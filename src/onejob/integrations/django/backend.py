"""A backend for Django's Tasks framework: `django.tasks` of Django 6, or the package `django-tasks`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.db import close_old_connections, connections
from django.utils.module_loading import import_string

from onejob import App, Job, State, Task, current
from onejob.errors import InvalidCall, InvalidPolicy, UnknownJob
from onejob.integrations.django import get_app

try:
    from django.tasks import task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued
except ImportError:
    try:
        from django_tasks import task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued
    except ImportError:
        BaseTaskBackend = object  # Django 5 without django-tasks: there are no backends to register

BLOCKING, AWAITED = "django.tasks", "django.tasks.async"
"""The onejob tasks that run plain and async functions of Django's tasks."""

STATUS = {
    State.SCHEDULED: "READY",
    State.AVAILABLE: "READY",
    State.PENDING: "READY",
    State.RETRYABLE: "READY",
    State.ACTIVE: "RUNNING",
    State.COMPLETED: "SUCCESSFUL",
    State.CANCELLED: "FAILED",
    State.DISCARDED: "FAILED",
}


class OnejobBackend(BaseTaskBackend):
    """Enqueues Django's tasks as jobs of the app that the setting ONEJOB_APP names.

    `"OPTIONS": {"database": "default"}` enqueues in the transaction of that database, if one is open.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def enqueue(self, task: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a task, and return its result, which is not ready yet."""
        self.validate_task(task)
        args, kwargs = list(args), dict(kwargs)
        check_call(task, args, kwargs)
        runner = get_app().task_named(AWAITED if iscoroutinefunction(task.func) else BLOCKING)
        chosen = runner.options(
            queue=task.queue_name,
            priority=task.priority,
            run_at=task.run_after,
            connection=self._connection(),
        )
        call = {"path": task.module_path, "args": args, "kwargs": kwargs, "backend": self.alias}
        result = self._result(task, chosen.enqueue_sync(**call).job)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result of a job of this backend."""
        app = get_app()
        try:
            job = app.job_sync(result_id)
        except UnknownJob:
            raise TaskResultDoesNotExist(result_id) from None
        arguments = app.reveal(job).arguments
        if job.task not in {BLOCKING, AWAITED} or arguments.get("backend") != self.alias:
            raise TaskResultDoesNotExist(result_id)
        task = import_string(arguments["path"])
        return self._result(task.using(priority=job.priority, queue_name=job.queue), job)

    def _connection(self) -> Any:
        """Return the database in whose open transaction to enqueue; None for an enqueue of its own."""
        name = self.options.get("database")
        return connections[name] if name and connections[name].in_atomic_block else None

    def _result(self, task: Any, job: Job) -> Any:
        job = get_app().reveal(job)
        arguments = job.arguments
        result = TaskResult(
            task=task,
            id=job.id,
            status=TaskResultStatus[STATUS[job.state]],
            enqueued_at=job.created_at,
            started_at=job.started_at,
            last_attempted_at=job.started_at,
            finished_at=job.finished_at,
            args=arguments["args"],
            kwargs=arguments["kwargs"],
            backend=self.alias,
            errors=[error_of(failure) for failure in job.failures],
            worker_ids=[job.worker or ""] * job.attempt,  # Django counts attempts by them
        )
        if job.result is not None:
            object.__setattr__(result, "_return_value", json.loads(job.result))  # as Django's backends do
        return result

    def run_arguments(self, job: Job, arguments: Mapping[str, Any]) -> tuple[Any, list[Any]]:
        """Return the task of a running job, and its positional arguments."""
        task = import_string(arguments["path"])
        context = [TaskContext(task_result=self._result(task, job))] if task.takes_context else []
        return task, [*context, *arguments["args"]]


# ── arguments ─────────────────────────────────────────────────────────────────────────────────────


def check_call(task: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Raise InvalidCall for arguments that do not fit the function of a task, or are no JSON values."""
    twin = as_declared(task.func, without_context=task.takes_context)
    twin.call(*args, **kwargs).check()
    for place, value in [*enumerate(args), *kwargs.items()]:
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise InvalidCall(
                f"{task.module_path}: argument {place!r}: {error}: write a JSON value, such as str(…)."
            ) from None


@cache
def as_declared(function: Callable[..., Any], *, without_context: bool) -> Task[..., Any]:
    """Return a task of an app of its own that checks arguments by a function's parameters; it never runs."""

    def checked(*args: Any, **kwargs: Any) -> None: ...

    signature = inspect.signature(function)
    named = list(signature.parameters.values())[1 if without_context else 0 :]
    checked.__name__, checked.__module__ = function.__name__, function.__module__
    checked.__wrapped__ = function  # type: ignore[attr-defined] # annotations are read in its module
    checked.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
    checked.__annotations__ = {one.name: one.annotation for one in named if one.annotation is not one.empty}
    try:
        return App("memory://").task(checked)
    except InvalidPolicy:  # annotations that cannot be read: Django takes them
        checked.__annotations__ = {}
        return App("memory://").task(checked)


def error_of(failure: Mapping[str, Any]) -> Any:
    """Return a failed attempt as Django shows it."""
    kind = failure["type"]
    path = kind if "." in kind else f"builtins.{kind}"
    return TaskError(exception_class_path=path, traceback=failure["traceback"] or failure["message"])


def register_backends(app: App) -> None:
    """Declare the queues of all backends of this class, and the tasks that run their jobs."""
    if BaseTaskBackend is object or not getattr(settings, "TASKS", None):
        return
    ours = [task_backends[alias] for alias in settings.TASKS]
    queues = {queue for backend in ours if isinstance(backend, OnejobBackend) for queue in backend.queues}
    for queue in queues:
        app.queue(queue)
    if queues and BLOCKING not in app.tasks:
        app.task(name=BLOCKING)(run_blocking)
        app.task(name=AWAITED)(run_awaited)


def run_blocking(path: str, args: list[Any], kwargs: dict[str, Any], backend: str) -> Any:
    """Run a plain function of a Django task; check its thread's database connections before and after."""
    close_old_connections()
    try:
        task, positional = task_backends[backend].run_arguments(current().job, {"path": path, "args": args})
        return task.func(*positional, **kwargs)
    finally:
        close_old_connections()


async def run_awaited(path: str, args: list[Any], kwargs: dict[str, Any], backend: str) -> Any:
    """Run an async function of a Django task."""
    task, positional = task_backends[backend].run_arguments(current().job, {"path": path, "args": args})
    return await task.func(*positional, **kwargs)
