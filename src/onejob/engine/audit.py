"""The audit log: which keys were released manually, by which process and why."""

from __future__ import annotations

import getpass
import os
from datetime import datetime, timedelta
from uuid import uuid4

import msgspec

from onejob.core.job import Job
from onejob.engine.absorbed_log import hostname
from onejob.engine.engine import Engine
from onejob.stores.contract import Observation

KIND = "release"
PER_KEY = 100  # entries that a key keeps
MOST = 10_000  # entries that a namespace keeps
KEPT_FOR = timedelta(days=365)


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was released manually.

    Attributes:
        at: When it was released.
        key: The key in hexadecimal digits.
        job: The id of the job that held it.
        task: The task of that job.
        state: The state of that job.
        reason: The reason that was given; may be empty.
        user: The user of the process that released it.
        host: The machine of that process.
        process: The id of that process.
    """

    at: datetime
    key: str
    job: str
    task: str
    state: str
    reason: str
    user: str
    host: str
    process: int


async def record_release(engine: Engine, key: bytes, holder: Job, reason: str) -> None:
    """Write that a key was released."""
    now = engine.store.now()
    entry = Release(
        at=now,
        key=key.hex(),
        job=holder.id,
        task=holder.task,
        state=str(holder.state),
        reason=reason,
        user=user_name(),
        host=hostname(),
        process=os.getpid(),
    )
    data = msgspec.json.encode(entry).decode()
    row = Observation(engine.namespace, KIND, uuid4().hex, key.hex(), now, data)
    await engine.store.observe([row], PER_KEY)


async def read_releases(engine: Engine, key: str | None, limit: int) -> list[Release]:
    """Return the latest releases, of one key or of all, newest first."""
    found = await engine.store.observations(engine.namespace, KIND, subject=key, limit=limit)
    return [msgspec.json.decode(one.data, type=Release) for one in found]


async def forget_releases(engine: Engine) -> None:
    """Remove entries that are too old."""
    await engine.store.forget(engine.namespace, KIND, before=engine.store.now() - KEPT_FOR, most=MOST)


def user_name() -> str:
    """Return the user of this process; its number if it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
