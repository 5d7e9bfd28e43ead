"""Words of other job systems, and options in the place of arguments: what to write instead."""

from __future__ import annotations

from collections.abc import Iterable

from onejob.core.suggestions import nearest

METHODS = {
    **dict.fromkeys(
        ("delay", "send", "defer", "perform_async"), "{task}.enqueue_sync(…), or await {task}.enqueue(…)"
    ),
    **dict.fromkeys(("defer_async", "kiq"), "await {task}.enqueue(…)"),
    **dict.fromkeys(
        ("apply_async", "send_with_options", "configure", "schedule", "perform_in", "enqueue_in"),
        '{task}.options(delay="5s").enqueue_sync(…)',
    ),
    **dict.fromkeys(("s", "si", "signature", "message"), "{task}.call(…)"),
    **dict.fromkeys(("map", "starmap", "chunks"), "app.enqueue_many_sync([{task}.call(…), …])"),
    **dict.fromkeys(("apply", "run"), "{task}(…), which calls the function"),
    "delay_on_commit": "{task}.options(connection=…).enqueue_sync(…)",
    "enqueue_at": "{task}.options(run_at=…).enqueue_sync(…)",
    "fn": "{task}.function",
    "retry": 'raise onejob.RetryLater("5s") inside the function',
    "request": "onejob.current() inside the function",
}
"""Methods of a task elsewhere, and their names here."""

APP = {
    **dict.fromkeys(("send_task", "configure_task"), "app.task_named(name).enqueue_sync(…)"),
    **dict.fromkeys(("periodic", "periodic_task"), '@app.cron("*/5 * * * *") above @app.task'),
    **dict.fromkeys(("AsyncResult", "fetch_job"), "app.job_sync(id)"),
    **dict.fromkeys(("run", "start", "work", "worker_main"), "app.run_worker()"),
    "enqueue": "task.enqueue(…)",
    "enqueue_sync": "task.enqueue_sync(…)",
    "enqueue_in": 'task.options(delay="5s").enqueue_sync(…)',
    "enqueue_at": "task.options(run_at=…).enqueue_sync(…)",
    "autodiscover_tasks": "onejob worker shop:app --import shop.tasks, or app.include(tasks)",
    "add_tasks_from": "app.include(tasks)",
    "shared_task": "tasks = onejob.Tasks() and @tasks.task, and app.include(tasks)",
    "add_periodic_task": '@app.cron("*/5 * * * *") above @app.task, or app.schedules.add_sync(…)',
    "conf": "the options of App(…), of @app.task(…) and of app.queue(…)",
    "control": "app.cancel_sync(id), app.queues and app.activity.workers_sync()",
    "purge": "app.cancel_sync(id) for each of app.jobs_sync()",
    "actor": "@app.task",
    "retry": 'raise onejob.RetryLater("5s") inside the function',
}
"""Methods of an app elsewhere, and how to write them here."""

ADMISSION = {
    **dict.fromkeys(("id", "task_id", "job_id", "message_id"), "admission.job.id"),
    **dict.fromkeys(
        ("get", "wait", "join", "return_value", "get_result", "wait_result"),
        "admission.result_sync(timeout=…), or await admission.result(…)",
    ),
    **dict.fromkeys(
        ("status", "state", "ready", "successful", "failed", "get_status", "is_finished", "is_failed"),
        "app.job_sync(admission.job.id).state",
    ),
    **dict.fromkeys(("revoke", "cancel", "abort"), "app.cancel_sync(admission)"),
}
"""What the answers of enqueues have elsewhere, and how to write it here."""

CONTEXT = {
    **dict.fromkeys(("id", "task_id", "job_id", "message_id"), "current().job.id"),
    **dict.fromkeys(("args", "kwargs", "arguments"), "current().job.arguments"),
    **dict.fromkeys(("meta", "metadata", "headers"), "current().job.metadata"),
    **dict.fromkeys(("retries", "job_try", "retry_count"), "current().attempt"),
    **dict.fromkeys(("is_aborted", "is_cancelled", "should_stop"), "current().cancelled"),
    **dict.fromkeys(("update_state", "set_progress"), "current().progress(0.5)"),
    **dict.fromkeys(("retry", "reschedule"), 'raise onejob.RetryLater("5s")'),
    **dict.fromkeys(("reject", "discard"), "raise onejob.Discard(…)"),
    "task": "current().job.task",
    "request": "current().job",
}
"""What a running job has elsewhere, and how to write it here."""

OPTIONS = {
    **{
        name: f"{name}=…"
        for name in (
            *("after", "connection", "delay", "exclude", "expires_at", "expires_in", "key", "meta"),
            *("on_blocker_failure", "priority", "queue", "run_at", "timeout", "unique"),
        )
    },
    **dict.fromkeys(("retry", "max_retries", "retries"), "retry=Retry(attempts=…)"),
    **dict.fromkeys(("time_limit", "job_timeout", "soft_time_limit"), "timeout=…"),
    **dict.fromkeys(("task_id", "job_id"), "key=…"),
    "force": "force=True",
    "countdown": "delay=…",
    "eta": "run_at=…",
    "expires": "expires_in=…",
    "retry_backoff": "retry=Retry(base=…)",
    "at_front": "priority=…",
    "depends_on": "after=…",
}
"""Options of a call, here and elsewhere, and how to write them here."""

POLICIES = {
    **dict.fromkeys(("max_retries", "retries"), "retry=Retry(attempts=…)"),
    **dict.fromkeys(("default_retry_delay", "retry_backoff", "min_backoff"), "retry=Retry(base=…)"),
    **dict.fromkeys(("max_backoff", "retry_backoff_max"), "retry=Retry(cap=…)"),
    **dict.fromkeys(("time_limit", "soft_time_limit", "job_timeout"), "timeout=…"),
    **dict.fromkeys(("max_age", "expires"), "expires_in=…"),
    **dict.fromkeys(("lock", "queueing_lock"), "unique=Unique(key=…)"),
    "autoretry_for": "give_up_on=(…,) for errors that shall not be retried",
    "throws": "give_up_on=(…,)",
    "result_ttl": 'retention={"completed": …}',
    "failure_ttl": 'retention={"discarded": …}',
    "countdown": "delay=…",
    "queue_name": "queue=…",
    "actor_name": "name=…",
    "rate_limit": "app.queue(name, rate=…)",
    "bind": "onejob.current() inside the function",
    "concurrency": "app.queue(name, concurrency=…)",
    "cron": "@app.cron(…) above @app.task",
}
"""Options of a task elsewhere, and how to write them here."""

DECLARED = (
    "check", "delay", "expires_in", "give_up_on", "name", "partition", "priority", "process", "queue",
    "replay", "retention", "retry", "timeout", "unique",
)  # fmt: skip
"""Options of a task."""


def instead_of_policy(option: str) -> str | None:
    """Return what to write instead of an option of a task that does not exist; None if that is unknown."""
    if option in POLICIES:
        return POLICIES[option]
    if option in OPTIONS:
        return f"task.options({OPTIONS[option]}).enqueue(…) for one call"
    near = nearest(option, (*DECLARED, *POLICIES))
    return None if near is None else POLICIES.get(near, f"{near}=…")


def methods_of(task: str) -> dict[str, str]:
    """Return the methods of a task elsewhere, and what to write instead for the task of a name."""
    return {name: instead.format(task=task) for name, instead in METHODS.items()}


def unknown_options(task: str, names: Iterable[str]) -> str:
    """Return the sentence about options of a call that do not exist."""
    given = list(names)
    meant = [name if name in OPTIONS else nearest(name, OPTIONS) for name in given]
    cure = ", ".join(dict.fromkeys(OPTIONS[name] for name in meant if name is not None))
    wrong = ", ".join(f"{name}=" for name in given)
    return f"{task}.options has no {wrong}: {f'write {cure}' if cure else 'leave it out'}."


def instead_of_options(names: Iterable[str]) -> str:
    """Return the end of a sentence about arguments that are options; empty if none is."""
    found = dict.fromkeys(OPTIONS[name] for name in names if name in OPTIONS)
    return f": write .options({', '.join(found)}).enqueue(…)" if found else ""


def instead_of_retry(value: object) -> str:
    """Return what to write instead of a value that is no retry policy."""
    return "Retry(attempts=…)" if value and value is not True else "Retry.never(), or Retry(attempts=…)"
