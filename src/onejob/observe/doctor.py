"""The doctor: looks at a store and at the jobs in it, and says what to do about what it finds."""

from __future__ import annotations

from collections.abc import Collection

from onejob.errors import OnejobError
from onejob.job import TERMINAL, Job
from onejob.lifecycle import holding, lapsed
from onejob.stores.contract import Filter, Finding, Guarantees, Store

LOOKED_AT = 10_000  # holds, the newest


async def examine(store: Store, namespace: str, unique_tasks: Collection[str] | None) -> list[Finding]:
    """Look at everything; without `unique_tasks` nobody knows which tasks there should be."""
    findings = await store.examine()
    try:
        findings.insert(0, declared(store.guarantees))
        schema = store.schema()
        if schema.found == schema.known:
            findings += [await stranded(store), await overstayed(store)]
            findings += [await disowned(store, namespace, unique_tasks)] if unique_tasks is not None else []
    except OnejobError as error:
        findings.append(Finding("jobs", "fail", str(error), "See the lines above, then look again."))
    return findings


def declared(guarantees: Guarantees) -> Finding:
    """Repeat what the store promises."""
    message = (
        f"{guarantees.store}: {guarantees.strength} uniqueness among {guarantees.scope}; "
        f"durability: {guarantees.durability}; not promised: {guarantees.not_promised}."
    )
    return Finding("guarantees", "ok", message)


async def stranded(store: Store) -> Finding:
    """Count successors whose predecessor is gone: there must be none."""
    found = await store.find(Filter(stranded=True, limit=LOOKED_AT))
    if not found:
        return Finding("successors", "ok", "Every job that waits behind another has one to wait for.")
    message = f"{len(found)} jobs wait behind one that is gone, the first is {found[0].id}."
    return Finding(
        "successors", "fail", message, "Run a worker, which promotes them, and report this as a bug."
    )


async def overstayed(store: Store) -> Finding:
    """Count ended jobs that kept a key although their policy frees it: there must be none."""
    found = await store.find(Filter(states=TERMINAL, held=True, limit=LOOKED_AT))
    wrong = [job for job in found if not holding(job, store.now()) and not lapsed(job, store.now())]
    if not wrong:
        return Finding("holds", "ok", "No ended job holds a key that its policy frees.")
    message = f"{len(wrong)} ended jobs keep a key that their policy frees, the first is {wrong[0].id}."
    advice = "They hold nobody up, for their holds count as lapsed; report this as a bug."
    return Finding("holds", "fail", message, advice)


async def disowned(store: Store, namespace: str, unique_tasks: Collection[str]) -> Finding:
    """Count holds that no task of the app would make any more."""
    found = await store.find(Filter(namespace=namespace, held=True, limit=LOOKED_AT))
    left = [job for job in found if job.task not in unique_tasks and holding(job, store.now())]
    if not left:
        return Finding("tasks", "ok", "Every hold belongs to a task that is registered and unique.")
    message = (
        f"{len(left)} holds belong to tasks that are not registered, or no longer unique: {_names(left)}."
    )
    return Finding("tasks", "warn", message, "Register the tasks again, or free their keys: onejob release.")


def _names(jobs: Collection[Job]) -> str:
    return ", ".join(sorted({job.task for job in jobs}))
