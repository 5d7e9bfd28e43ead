"""Words of other job systems, and options in the place of arguments: what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onejob.core.suggestions import nearest


def by_word(cures: Mapping[str, str]) -> dict[str, str]:
    """Return what to write instead of each word, from the words of each cure."""
    return {word: cure for cure, words in cures.items() for word in words.split()}


METHODS = by_word(
    {
        "{task}.enqueue_sync(…), or await {task}.enqueue(…)": "delay send defer perform_async",
        "await {task}.enqueue(…)": "defer_async kiq",
        '{task}.options(delay="5s").enqueue_sync(…)': (
            "apply_async send_with_options configure schedule perform_in enqueue_in"
        ),
        "{task}.call(…)": "s si signature message",
        "app.enqueue_many_sync([{task}.call(…), …])": "map starmap chunks",
        "{task}(…), which calls the function": "apply run call_local",
        "{task}.options(connection=…).enqueue_sync(…)": "delay_on_commit",
        "{task}.options(run_at=…).enqueue_sync(…)": "enqueue_at",
        "{task}.function": "fn",
        'raise onejob.RetryLater("5s") inside the function': "retry",
        "onejob.current() inside the function": "request",
    }
)
"""Methods of a task elsewhere, and their names here."""

APP = by_word(
    {
        "app.task_named(name).enqueue_sync(…)": "send_task configure_task",
        '@app.cron("*/5 * * * *") above @app.task': "periodic periodic_task schedule",
        "app.job_sync(id)": "AsyncResult fetch_job",
        "app.run_worker()": "run start work worker_main",
        "task.enqueue(…)": "enqueue enqueue_job",
        "task.enqueue_sync(…)": "enqueue_sync",
        'task.options(delay="5s").enqueue_sync(…)': "enqueue_in",
        "task.options(run_at=…).enqueue_sync(…)": "enqueue_at",
        "onejob worker shop:app --import shop.tasks, or app.include(tasks)": "autodiscover_tasks",
        "app.include(tasks)": "add_tasks_from",
        "tasks = onejob.Tasks() and @tasks.task, and app.include(tasks)": "shared_task",
        '@app.cron("*/5 * * * *") above @app.task, or app.schedules.add_sync(…)': "add_periodic_task",
        "the options of App(…), of @app.task(…) and of app.queue(…)": "conf",
        "app.cancel_sync(id), app.queues and app.activity.workers_sync()": "control",
        "app.cancel_sync(id) for each of app.jobs_sync()": "purge",
        "@app.task": "actor",
        'raise onejob.RetryLater("5s") inside the function': "retry",
    }
)
"""Methods of an app elsewhere, and how to write them here."""

ADMISSION = by_word(
    {
        "admission.job.id": "id task_id job_id message_id",
        "admission.result_sync(timeout=…), or await admission.result(…)": (
            "get wait join return_value get_result wait_result"
        ),
        "app.job_sync(admission.job.id).state": (
            "status state ready successful failed get_status is_finished is_failed"
        ),
        "app.cancel_sync(admission)": "revoke cancel abort",
    }
)
"""What the answers of enqueues have elsewhere, and how to write it here."""

CONTEXT = by_word(
    {
        "current().job.id": "id task_id job_id message_id",
        "current().job.arguments": "args kwargs arguments",
        "current().job.metadata": "meta metadata headers",
        "current().attempt": "retries job_try retry_count",
        "current().cancelled": "is_aborted is_cancelled should_stop",
        "current().progress(0.5)": "update_state set_progress",
        'raise onejob.RetryLater("5s")': "retry reschedule",
        "raise onejob.Discard(…)": "reject discard",
        "current().job.task": "task",
        "current().job": "request",
    }
)
"""What a running job has elsewhere, and how to write it here."""

OPTIONS = by_word(
    {
        "after=…": "after depends_on",
        "connection=…": "connection",
        "delay=…": "delay countdown _defer_by",
        "exclude=…": "exclude",
        "expires_at=…": "expires_at",
        "expires_in=…": "expires_in expires",
        "key=…": "key task_id job_id _job_id",
        "meta=…": "meta",
        "on_blocker_failure=…": "on_blocker_failure",
        "priority=…": "priority at_front",
        "queue=…": "queue",
        "run_at=…": "run_at eta at _defer_until",
        "timeout=…": "timeout time_limit job_timeout soft_time_limit",
        "unique=…": "unique",
        "retry=Retry(attempts=…)": "retry max_retries retries",
        "force=True": "force",
        "retry=Retry(base=…)": "retry_backoff",
    }
)
"""Options of a call, here and elsewhere, and how to write them here."""

POLICIES = by_word(
    {
        "retry=Retry(attempts=…)": "max_retries retries",
        "retry=Retry(base=…)": "default_retry_delay retry_backoff min_backoff",
        "retry=Retry(cap=…)": "max_backoff retry_backoff_max",
        "timeout=…": "time_limit soft_time_limit job_timeout",
        "expires_in=…": "max_age expires",
        "unique=Unique(key=…)": "lock queueing_lock",
        "give_up_on=(…,) for errors that shall not be retried": "autoretry_for",
        "give_up_on=(…,)": "throws",
        'retention={"completed": …}': "result_ttl",
        'retention={"discarded": …}': "failure_ttl",
        "delay=…": "countdown",
        "queue=…": "queue_name",
        "name=…": "actor_name",
        "app.queue(name, rate=…)": "rate_limit",
        "onejob.current() inside the function": "bind",
        "app.queue(name, concurrency=…)": "concurrency",
        "@app.cron(…) above @app.task": "cron",
    }
)
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
