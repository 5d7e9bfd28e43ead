"""The registry: the tasks, queues, schedules and lifespan that an app has declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from onejob.core.decide import merge_payloads
from onejob.core.job import Job
from onejob.core.leasing import Queue
from onejob.core.runs import Merge
from onejob.errors import InvalidPolicy, MergeFailed, UnknownQueue, UnknownTask
from onejob.tasks.declaration import Declaration
from onejob.tasks.schedule import Schedule

Lifespan = Callable[[], AbstractAsyncContextManager[Mapping[str, Any] | None]]
"""Return what is open while a worker runs; the mapping that it yields is `current().state`."""


class Registry:
    """Declarations of tasks, queues and schedules by name."""

    def __init__(self, lifespan: Lifespan | None = None) -> None:
        self.lifespan = lifespan
        self.tasks: dict[str, Declaration] = {}
        self.queues: dict[str, Queue] = {"default": Queue(name="default")}
        self.schedules: dict[str, Schedule] = {}

    def add_task(self, declared: Declaration) -> None:
        """Add a task and its queue; raise InvalidPolicy if another task has its name."""
        if declared.name in self.tasks:
            raise InvalidPolicy(f"Two tasks are named {declared.name!r}: give one of them another name=.")
        self.queues.setdefault(declared.queue, Queue(name=declared.queue))
        self.tasks[declared.name] = declared

    def refuse_included(self, name: str, function: Callable[..., Any]) -> None:
        """Raise InvalidPolicy if the app has this very task already."""
        if name in self.tasks and self.tasks[name].function is function:
            raise InvalidPolicy(f"{name} is included already: call app.include(…) once.")

    def add_queue(self, declared: Queue) -> None:
        """Add a queue; raise InvalidPolicy if it was declared with other limits."""
        before = self.queues.get(declared.name)
        if before not in {None, Queue(name=declared.name), declared}:
            raise InvalidPolicy(
                f"queue({declared.name!r}) is declared twice with different limits: keep one of them."
            )
        self.queues[declared.name] = declared

    def task(self, name: str) -> Declaration:
        """Return a task's declaration; raise UnknownTask if none has that name."""
        try:
            return self.tasks[name]
        except KeyError:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise UnknownTask(
                f"No task is named {name!r}; registered: {known}: import the module that declares it, on the "
                "command line with --import."
            ) from None

    def queue(self, name: str) -> Queue:
        """Return a queue; raise UnknownQueue if none has that name."""
        try:
            return self.queues[name]
        except KeyError:
            known = ", ".join(sorted(self.queues))
            raise UnknownQueue(
                f"No queue is named {name!r} (known: {known}): declare it with app.queue({name!r})."
            ) from None

    def returns(self, task: str) -> Any:
        """Return the type that a task declares for its result; Any if the task is not registered."""
        return self.tasks[task].signature.returns if task in self.tasks else Any

    def merge_of(self, task: str) -> Merge | None:
        """Return the function that merges payloads of a task; None if the task is not registered."""
        return self.merge if task in self.tasks else None

    def merge(self, older: Job, newer: Job) -> Job:
        """Return the newer job with the older payload merged into its own, by the newer job's task."""
        task = self.tasks.get(newer.task)
        if task is None or task.unique is None or task.unique.merge is None:
            raise MergeFailed(f"{newer.task} was enqueued with a merge that is not the task's own.")
        return merge_payloads(older, newer, task.unique)
