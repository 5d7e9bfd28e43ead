"""Words of other job systems, and options in the place of arguments: what to write instead."""

from __future__ import annotations

from collections.abc import Iterable

METHODS = {
    "delay": "{task}.enqueue_sync(…), or await {task}.enqueue(…)",
    "send": "{task}.enqueue_sync(…), or await {task}.enqueue(…)",
    "defer": "{task}.enqueue_sync(…), or await {task}.enqueue(…)",
    "defer_async": "await {task}.enqueue(…)",
    "apply_async": '{task}.options(delay="5s").enqueue_sync(…)',
    "send_with_options": '{task}.options(delay="5s").enqueue_sync(…)',
    "configure": '{task}.options(delay="5s").enqueue_sync(…)',
    "schedule": '{task}.options(delay="5s").enqueue_sync(…)',
    "delay_on_commit": "{task}.options(connection=…).enqueue_sync(…)",
    "kiq": "await {task}.enqueue(…)",
    "apply": "{task}(…), which calls the function",
    "s": "{task}.call(…)",
    "si": "{task}.call(…)",
    "signature": "{task}.call(…)",
}
"""Methods of a task elsewhere, and their names here."""

OPTIONS = {
    "delay": "delay=…",
    "run_at": "run_at=…",
    "priority": "priority=…",
    "queue": "queue=…",
    "unique": "unique=…",
    "key": "key=…",
    "meta": "meta=…",
    "retry": "retry=Retry(attempts=…)",
    "timeout": "timeout=…",
    "force": "force=True",
    "connection": "connection=…",
    "expires_at": "expires_at=…",
    "expires_in": "expires_in=…",
    "after": "after=…",
    "countdown": "delay=…",
    "eta": "run_at=…",
    "expires": "expires_in=…",
    "max_retries": "retry=Retry(attempts=…)",
    "retries": "retry=Retry(attempts=…)",
    "retry_backoff": "retry=Retry(base=…)",
    "time_limit": "timeout=…",
    "job_timeout": "timeout=…",
    "soft_time_limit": "timeout=…",
    "at_front": "priority=…",
    "depends_on": "after=…",
    "task_id": "key=…",
    "job_id": "key=…",
}
"""Options of a call, here and elsewhere, and how to write them here."""

POLICIES = {
    "max_retries": "retry=Retry(attempts=…)",
    "retries": "retry=Retry(attempts=…)",
    "default_retry_delay": "retry=Retry(base=…)",
    "retry_backoff": "retry=Retry(base=…)",
    "autoretry_for": "give_up_on=(…,) for errors that shall not be retried",
    "throws": "give_up_on=(…,)",
    "time_limit": "timeout=…",
    "soft_time_limit": "timeout=…",
    "job_timeout": "timeout=…",
    "max_age": "expires_in=…",
    "min_backoff": "retry=Retry(base=…)",
    "max_backoff": "retry=Retry(cap=…)",
    "retry_backoff_max": "retry=Retry(cap=…)",
    "result_ttl": 'retention={"completed": …}',
    "failure_ttl": 'retention={"discarded": …}',
    "countdown": "delay=…",
    "expires": "expires_in=…",
    "queue_name": "queue=…",
    "actor_name": "name=…",
    "rate_limit": "app.queue(name, rate=…)",
    "bind": "onejob.current() inside the function",
}
"""Options of a task elsewhere, and how to write them here."""


def instead_of_policy(option: str) -> str | None:
    """Return what to write instead of an option of a task that does not exist; None if that is unknown."""
    if option in POLICIES:
        return POLICIES[option]
    return f"task.options({OPTIONS[option]}).enqueue(…) for one call" if option in OPTIONS else None


def instead_of_method(task: str, name: str) -> str | None:
    """Return what to write instead of a method that other systems have."""
    found = METHODS.get(name)
    return None if found is None else found.format(task=task)


def unknown_options(task: str, names: Iterable[str]) -> str:
    """Return the sentence about options of a call that do not exist."""
    given = list(names)
    cure = ", ".join(dict.fromkeys(OPTIONS[name] for name in given if name in OPTIONS))
    wrong = ", ".join(f"{name}=" for name in given)
    return f"{task}.options has no {wrong}: {f'write {cure}' if cure else 'leave it out'}."


def instead_of_options(names: Iterable[str]) -> str:
    """Return the end of a sentence about arguments that are options; empty if none is."""
    found = dict.fromkeys(OPTIONS[name] for name in names if name in OPTIONS)
    return f": write .options({', '.join(found)}).enqueue(…)" if found else ""
