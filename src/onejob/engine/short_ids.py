"""Ids that are not written out: a unique beginning names a job, and so does the short form of the dashboard.

A whole id is never looked up here, so it costs nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from onejob.core.job import Job
from onejob.core.text import is_name
from onejob.errors import UnknownJob
from onejob.stores.contract import Store
from onejob.stores.queries import ByPrefix

WHOLE = 36  # characters of a UUID
SHORTEST = 4
SHOWN = 5  # candidates that a refusal lists
COMPARED = 5000  # jobs that are compared with a short form at most
SHORT_FORM = re.compile(r"(.*?)(?:…|\.\.\.)([0-9a-f]{4})")  # 01a1…491c: the last four digits but four


def is_whole(job_id: object) -> bool:
    """Return whether an id needs no lookup: it is written out, or it is no text that an id can be."""
    return not is_name(job_id) or (isinstance(job_id, str) and len(job_id) >= WHOLE)


async def find_by_short_id(store: Store, namespace: str, given: str) -> Job:
    """Return the job of a namespace that a short id names.

    Raises:
        UnknownJob: No job has such an id, several have, or it is too short.
    """
    wanted = given.lower()
    form = SHORT_FORM.fullmatch(wanted)
    prefix, digits = (wanted, None) if form is None else form.groups()
    if len(prefix) < SHORTEST:
        raise UnknownJob(f"{given!r} is too short for an id: write at least its first {SHORTEST} characters.")
    most = SHOWN + 1 if digits is None else COMPARED + 1
    found = await store.find(ByPrefix(namespace=namespace, prefix=prefix, limit=most))
    if digits is not None and len(found) == most:
        raise UnknownJob(
            f"More than {COMPARED:,} jobs have an id that begins with {prefix!r}: write more than that of it."
        )
    return only([job for job in found if digits is None or job.id[-8:-4] == digits], given)


def only(found: Sequence[Job], given: str) -> Job:
    """Return the one job that was found; raise UnknownJob if there is none or another."""
    exact = [job for job in found if job.id == given]
    if len(exact or found) == 1:
        return (exact or found)[0]
    if not found:
        raise UnknownJob(
            f"No job has the id {given!r}, or one that begins so: it never existed, or it has been pruned."
        )
    listed = ", ".join(job.id for job in found[:SHOWN])
    more = " and more" if len(found) > SHOWN else ""
    raise UnknownJob(f"{given!r} is the beginning of several ids: {listed}{more}. Write more of it.")
