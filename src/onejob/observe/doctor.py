"""The doctor: examines a store and its jobs, and gives advice."""

from __future__ import annotations

from collections.abc import Collection

from onejob.core.holds import holding, lapsed
from onejob.core.job import TERMINAL, Job
from onejob.core.text import number_of
from onejob.engine.engine import Engine
from onejob.engine.presence import read_workers
from onejob.engine.secrets import fingerprint_of, last_other, read_fingerprints
from onejob.errors import OnejobError
from onejob.stores.contract import Finding, FullStore, Guarantees
from onejob.stores.queries import Listed, Overdue, Stranded
from onejob.tasks.registry import Registry

LOOKED_AT = 10_000  # holds, the newest


async def examine(engine: Engine, registry: Registry) -> list[Finding]:
    """Examine the store and its jobs; an app without tasks does not know which tasks there should be."""
    store, namespace = engine.store, engine.namespace
    unique_tasks = {name for name, task in registry.tasks.items() if task.unique is not None}
    findings = await store.examine()
    try:
        findings.insert(0, report_guarantees(store.guarantees))
        schema = store.schema()
        if schema.found == schema.known:
            findings += [await count_stranded(store, namespace), await count_overstayed(store, namespace)]
            findings += [await count_disowned(store, namespace, unique_tasks)] if registry.tasks else []
            findings += await report_unserved(engine, registry)
            findings += await secrets(engine) if registry.tasks else []
    except OnejobError as error:
        findings.append(
            Finding("jobs", "fail", str(error), "See the lines above, then run the doctor again.")
        )
    return findings


def report_guarantees(guarantees: Guarantees) -> Finding:
    """Return what the store declares."""
    message = (
        f"{guarantees.store}: {guarantees.strength} uniqueness among {guarantees.scope}; "
        f"durability: {guarantees.durability}; not promised: {guarantees.not_promised}."
    )
    return Finding("guarantees", "ok", message)


async def count_stranded(store: FullStore, namespace: str) -> Finding:
    """Count successors whose predecessor is gone; there must be none."""
    found = await store.find(Stranded(namespace=namespace, limit=LOOKED_AT))
    if not found:
        return Finding("successors", "ok", "Every job that waits behind another has one to wait for.")
    message = f"Behind a job that is gone: {number_of(len(found), 'waiting job')}, first {found[0].id}."
    return Finding(
        "successors", "fail", message, "Run a worker, which promotes them, and report this as a bug."
    )


async def count_overstayed(store: FullStore, namespace: str) -> Finding:
    """Count ended jobs that kept a key although their policy releases it; there must be none."""
    found = await store.find(Listed(namespace=namespace, states=TERMINAL, held=True, limit=LOOKED_AT))
    wrong = [job for job in found if not holding(job, store.now()) and not lapsed(job, store.now())]
    if not wrong:
        return Finding("holds", "ok", "No ended job holds a key that its policy frees.")
    message = f"A key is kept that its policy frees, by {number_of(len(wrong), 'ended job')}: {wrong[0].id}."
    advice = "They delay no request, because their holds count as lapsed; report this as a bug."
    return Finding("holds", "fail", message, advice)


async def count_disowned(store: FullStore, namespace: str, unique_tasks: Collection[str]) -> Finding:
    """Count holds of tasks that are not registered, or not unique any more."""
    found = await store.find(Listed(namespace=namespace, held=True, limit=LOOKED_AT))
    left = [job for job in found if job.task not in unique_tasks and holding(job, store.now())]
    if not left:
        return Finding("tasks", "ok", "Every hold belongs to a task that is registered and unique.")
    holds = number_of(len(left), "hold")
    message = f"{holds} of tasks that are not registered, or no longer unique: {_names(left)}."
    return Finding(
        "tasks", "warn", message, "Register the tasks again, or release their keys: onejob release."
    )


async def report_unserved(engine: Engine, registry: Registry) -> list[Finding]:
    """Report due jobs whose task neither this app nor a live worker has."""
    now = engine.store.now()
    alive = [worker for worker in await read_workers(engine) if worker.is_alive(now)]
    if not registry.tasks and not alive:
        return []
    known = {*registry.tasks, *(task for worker in alive for task in worker.tasks)}
    due = await engine.find(Overdue(namespace=engine.namespace, by=now, limit=LOOKED_AT))
    left = [job for job in due if job.task not in known]
    if not left:
        return [Finding("due jobs", "ok", "Every due job has a task that this app or a live worker has.")]
    message = f"Neither this app nor a live worker has the task of {number_of(len(left), 'due job')}: "
    advice = "Import the modules that declare the tasks where workers start, or cancel the jobs."
    return [Finding("due jobs", "warn", f"{message}{_names(left)}.", advice)]


async def secrets(engine: Engine) -> list[Finding]:
    """Report that processes of this namespace have used another secret; nothing if no process has one."""
    seen = await read_fingerprints(engine.store, engine.namespace)
    last = last_other(seen, fingerprint_of(engine.secret), engine.store.now())
    if last is not None:
        message = (
            f"Another secret than this app's was used in this namespace, last on {last:%Y-%m-%d %H:%M} UTC."
        )
        advice = "Give all processes the same secret: with two, duplicates are not recognised."
        return [Finding("secret", "warn", message, advice)]
    if engine.secret is None:
        return []
    return [Finding("secret", "ok", "All processes of this namespace use this app's secret.")]


def _names(jobs: Collection[Job]) -> str:
    return ", ".join(sorted({job.task for job in jobs}))
