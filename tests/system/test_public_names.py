"""The names that users write are promises: changing them is a decision, not an accident."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

import onejob
from onejob import Admission, App, Call, Chain, Context, Job, Task, Worker
from onejob.app.activity import Activity
from onejob.app.dead_letters import DeadLetters
from onejob.app.maintenance import Maintenance
from onejob.app.queues import Queues
from onejob.app.schedules import Schedules
from onejob.tasks.groups import CallChain, Group, Members

NAMES = [
    "AbsorbedCount",
    "AbsorbedRequest",
    "Admission",
    "AdmissionBusy",
    "Advice",
    "AesGcmCodec",
    "App",
    "Call",
    "Cancel",
    "Chain",
    "Codec",
    "Context",
    "DeadFilter",
    "DeadGroup",
    "Difference",
    "Discard",
    "Duplicate",
    "Event",
    "Explanation",
    "Finding",
    "Guarantees",
    "Job",
    "Moved",
    "OnejobError",
    "Outcome",
    "Percentiles",
    "Pruned",
    "QueueStatus",
    "Recent",
    "RecentEvent",
    "Release",
    "Replay",
    "Retry",
    "RetryLater",
    "Schedule",
    "ScheduleStatus",
    "Searched",
    "Snooze",
    "State",
    "Stats",
    "Task",
    "Tasks",
    "Times",
    "Timings",
    "Unique",
    "Why",
    "Worker",
    "WorkerEvent",
    "WorkerStatus",
    "batch",
    "chain",
    "current",
    "duration",
    "group",
    "instrument_opentelemetry",
    "instrument_prometheus",
    "instrument_sentry",
    "log_formatter",
    "render_metrics",
    "report_commits",
    "rough",
    "spell",
    "unique",
]

VISIBLE: dict[type, set[str]] = {
    App: {
        *("task", "cron", "include", "queue", "on", "task_named", "tasks", "url", "namespace", "guarantees"),
        *("enqueue_many", "job", "jobs", "reveal", "cancel", "delete", "reschedule", "run_now"),
        *("holds", "is_holding", "absorbed", "release", "chain", "chains"),
        *("stats", "doctor", "worker", "run_worker", "close", "dead", "queues", "schedules", "maintenance"),
        *("activity", "why"),
    },
    Activity: {"absorbed", "held", "advice", "recent", "releases", "search", "workers"},
    DeadLetters: {"list", "groups", "ids", "replay", "replay_many", "replay_all"},
    Queues: {"list", "next_start", "pause", "resume", "paused"},
    Schedules: {"all", "get", "list", "add", "pause", "resume", "remove"},
    Maintenance: {"sweep", "prune", "replay_due", "health", "schema", "migrate", "migration_sql", "move_to"},
    Task: {
        *("name", "function", "enqueue", "enqueue_quietly", "call", "step", "call_from", "accepts"),
        *("explain", "pending", "options", "schema"),
    },
    Call: {"check", "dimensions", "enqueue", "explain", "key"},
    Admission: {
        *("outcome", "job", "holder", "deduplicated", "reason", "payload_differs", "refusal", "depth"),
        *("shadow", "chain", "key", "guarantees", "result", "covered", "as_dict"),
    },
    Chain: {"id", "chain_ids", "last", "status", "jobs", "dependants", "result", "cancel", "delete"},
    CallChain: {"enqueue"},
    Group: {"enqueue"},
    Members: {"admissions", "callbacks", "chain_ids", "results"},
    Context: {
        *("attempt", "job", "cancelled", "deadline", "blockers", "progress", "continue_with"),
        *("is_latest", "release", "transaction", "returns", "state"),
    },
}

NEVER_BLOCKING = {  # coroutines without a blocking variant, and why
    (Worker, "run"),  # App.run_worker: it needs a loop of its own, and signals
}


def is_coroutine(function: object) -> bool:
    """Return whether calling a method gives a coroutine; `enqueue` returns one that notices being dropped."""
    returned = getattr(function, "__annotations__", {}).get("return", "")
    return inspect.iscoroutinefunction(function) or str(returned).startswith("Coroutine[")


PAIRS = [
    (owner, name)
    for owner in (*VISIBLE, Worker)
    for name, value in vars(owner).items()
    if name[0] != "_" and is_coroutine(value) and (owner, name) not in NEVER_BLOCKING
]


def test_the_public_names_are_these() -> None:
    assert onejob.__all__ == NAMES
    assert all(hasattr(onejob, name) for name in NAMES)


@pytest.mark.parametrize("owner", VISIBLE, ids=lambda owner: owner.__name__)
def test_nothing_internal_is_visible(owner: type) -> None:
    found = {name for name in {*dir(owner), *attributes_set(owner)} if not name.startswith("_")}
    assert {name.removesuffix("_sync") for name in found} == VISIBLE[owner]


def test_a_job_has_no_internal_methods() -> None:
    methods = {name for name, value in vars(Job).items() if callable(value) or isinstance(value, property)}
    assert {name for name in methods if not name.startswith("_")} == {
        *("arguments", "metadata", "failures", "as_dict", "awaits", "due_since", "returns_at"),
        *(
            "is_blocked",
            "is_holder",
            "is_sealed",
            "is_successor",
            "is_superseded",
            "is_terminal",
            "is_tombstone",
        ),
    }


def attributes_set(owner: type) -> set[str]:
    """Return the attributes that the methods of a class set."""
    return set(re.findall(r"^ +self\.(\w+)(?:: [^=]+)? = ", inspect.getsource(owner), re.MULTILINE))


def test_the_names_of_the_testing_kit_are_these() -> None:
    from onejob import testing

    coroutines = {name for name in testing.__all__ if inspect.iscoroutinefunction(getattr(testing, name))}
    assert coroutines == {
        *("assert_deduplicated", "assert_enqueued", "assert_not_enqueued", "assert_single_admission"),
        *("drain", "empty"),
    }
    others = {"Clock", "MemoryStore", "inline", "moving_clock"}
    assert set(testing.__all__) == coroutines | {f"{name}_sync" for name in coroutines} | others
    for name in coroutines:
        blocking = getattr(testing, f"{name}_sync")
        assert shape(blocking) == shape(getattr(testing, name))
        assert blocking.__doc__ == f"Blocking variant of `{name}`."


def test_the_app_has_at_most_thirty_public_methods() -> None:
    methods = {name for name in VISIBLE[App] if inspect.isfunction(vars(App).get(name))}
    assert 20 < len(methods) <= 30


def test_every_error_has_one_root() -> None:
    from onejob import errors

    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(found) > 20
    assert all(issubclass(kind, onejob.OnejobError) for kind in found)
    assert all(kind.__doc__ for kind in found)


@pytest.mark.parametrize(("owner", "name"), PAIRS, ids=lambda value: getattr(value, "__name__", value))
def test_a_blocking_variant_has_the_same_signature(owner: type, name: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)
    blocking: Callable[..., Any] = getattr(owner, f"{name}_sync")
    assert not is_coroutine(blocking)
    assert shape(blocking) == shape(original)
    assert blocking.__doc__ == f"Blocking variant of `{name}`."


def shape(function: Callable[..., Any]) -> tuple[list[tuple[Any, ...]], object]:
    """Return what a method takes and returns, as annotations are written."""
    signature = inspect.signature(function)
    parameters = [(p.name, p.kind, p.default, p.annotation) for p in signature.parameters.values()]
    returned = str(signature.return_annotation)
    return parameters, returned.removeprefix("Coroutine[Any, Any, ").removesuffix(
        "]" if returned.startswith("Coroutine[") else ""
    )


def test_every_blocking_method_has_an_async_one() -> None:
    found = {(owner, name) for owner in VISIBLE for name in vars(owner) if name.endswith("_sync")}
    assert {(owner, f"{name}_sync") for owner, name in PAIRS} == found
    assert len(found) > 40


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_described(name: str) -> None:
    thing = getattr(onejob, name)
    assert (thing.__doc__ or "").strip()
    if not inspect.isclass(thing) or issubclass(thing, Exception | str):
        return
    for attribute, value in vars(thing).items():
        if not attribute.startswith("_") and (callable(value) or isinstance(value, property)):
            assert (inspect.getdoc(value) or "").strip(), f"{name}.{attribute}"


def test_a_task_keeps_the_signature_of_its_function() -> None:
    app = App("memory://")

    @app.task
    async def send(customer_id: int, *, note: str = "") -> str:
        """Send an invoice."""
        return f"{customer_id} {note}"

    assert getattr(send, "__name__", None) == "send"
    assert send.__doc__ == "Send an invoice."
    assert list(inspect.signature(send).parameters) == ["customer_id", "note"]
    assert get_type_hints(send.function)["return"] is str
