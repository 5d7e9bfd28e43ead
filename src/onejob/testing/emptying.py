"""Remove all that an app has stored, between tests."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from onejob.app.app import App
from onejob.core.job import Mark, alter
from onejob.core.step import NO_CHANGES, Changes, Step, View
from onejob.errors import InvalidCall, OnejobError
from onejob.stores.contract import FullStore
from onejob.stores.queries import Listed
from onejob.tasks.schedules import all_schedules, schedule_key
from onejob.testing.inside import engine_of, registry_of

AT_ONCE = 1000  # jobs that are removed in one call


async def empty(app: App, *, database: str | None = None) -> None:
    """Remove all jobs, marks, counters, observations and settings of the app's namespace.

    A store that outlives the process is emptied only if you name it, and only while no worker runs on it, so
    that a test run with the wrong URL does not remove real jobs.

    Args:
        app: The app.
        database: The last part of the store's URL: the name of the file or of the database, or the number of
            the Redis database. The memory store needs none.

    Raises:
        InvalidCall: The store has another name, or a worker runs on it.

    Examples:
        >>> await empty(app, database="shop_test")
    """
    engine = engine_of(app)
    if engine.store.guarantees.store != "memory":
        refuse_other_database(app, database)
        await refuse_live_workers(app)
    engine.counters.flush()
    schedules = await all_schedules(engine, registry_of(app))
    await remove_jobs(engine.store, engine.namespace)
    await unmark(engine.store, [schedule_key(engine, one.name) for one in schedules])
    await engine.store.clear(engine.namespace)


def empty_sync(app: App, *, database: str | None = None) -> None:
    """Blocking variant of `empty`."""
    engine_of(app).run_sync(empty(app, database=database))


def refuse_other_database(app: App, database: str | None) -> None:
    """Raise InvalidCall unless the caller names the store of the app."""
    name = urlsplit(app.url).path.rstrip("/").rpartition("/")[2]
    if database is None:
        raise InvalidCall(
            f"This removes every job of {name or 'the store'}: to confirm it, write empty(app, "
            f'database="{name}"), or give tests an app with memory://.'
        )
    if database != name:
        raise InvalidCall(f"The app's store is {name!r}, not {database!r}: nothing was removed.")


async def refuse_live_workers(app: App) -> None:
    """Raise InvalidCall if a worker runs on the app's store."""
    now = engine_of(app).store.now()
    alive = [worker.name for worker in await app.activity.workers() if worker.is_alive(now)]
    if alive:
        raise InvalidCall(f"Worker {alive[0]} runs on this store: stop it first. Nothing was removed.")


async def remove_jobs(store: FullStore, namespace: str) -> None:
    """Remove the jobs of a namespace and the marks of their keys."""
    while jobs := await store.find(Listed(namespace=namespace, limit=AT_ONCE)):
        for answer in await store.apply([Step(_remove, job.id) for job in jobs]):
            if isinstance(answer, OnejobError):
                raise answer


def _remove(view: View) -> Changes[None]:
    """Remove a job, whatever its state, and the mark of its key."""
    if view.job is None:
        return NO_CHANGES
    freed = alter(view.job, stand=None)  # so that stores which index holders forget it, too
    return Changes(None, updates=(freed,), deletes=(freed.id,), mark=_drop_job(view.mark))


async def unmark(store: FullStore, keys: Sequence[bytes]) -> None:
    """Remove the marks of keys; that of a schedule says when it last ticked."""
    await store.apply([Step(_unmark, key=key) for key in keys])


def _unmark(view: View) -> Changes[None]:
    return Changes(None, mark=_drop_job(view.mark))


def _drop_job(mark: Mark | None) -> Mark | None:
    """Return a mark without a job, which a store drops."""
    return None if mark is None else msgspec.structs.replace(mark, job="", prior_version=None, prior_job=None)
