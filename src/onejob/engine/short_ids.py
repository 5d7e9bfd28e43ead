"""Ids that are not written out: a unique beginning names a job, and so does the short form of the dashboard.

A whole id is never looked up here, so it costs nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from onejob.core.blockers import begin_arrivals, encode_chains
from onejob.core.decide import Request
from onejob.core.job import Job, alter
from onejob.core.text import is_name
from onejob.engine.dependants import Ask
from onejob.errors import UnknownJob
from onejob.stores.flow import Flow
from onejob.stores.queries import ByPrefix

WHOLE = 36  # characters of a UUID
SHORTEST = 4
SHOWN = 5  # candidates that a refusal lists
COMPARED = 5000  # jobs that are compared with a short form at most
SHORT_FORM = re.compile(r"(.*?)(?:…|\.\.\.)([0-9a-f]{4})")  # 01a1…491c: the last four digits but four


def is_whole(job_id: object) -> bool:
    """Return whether an id needs no lookup: it is written out, or it is no text that an id can be."""
    return not is_name(job_id) or (isinstance(job_id, str) and len(job_id) >= WHOLE)


def find_by_short_id(namespace: str, given: str) -> Flow[Job]:
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
    found = yield Ask("find", ByPrefix(namespace=namespace, prefix=prefix, limit=most))
    if digits is not None and len(found) == most:
        raise UnknownJob(
            f"More than {COMPARED:,} jobs have an id that begins with {prefix!r}: write more than that of it."
        )
    return only([job for job in found if digits is None or job.id[-8:-4] == digits], given)


def with_whole_ids(requests: Sequence[Request], namespace: str) -> Flow[list[Request]]:
    """Return requests with the ids of `after=` and `exclude=` written out; raise UnknownJob for unknown ones.

    A short id is looked up among committed jobs, also for a request in the caller's transaction.
    """
    named = [name for request in requests for name in (*request.job.awaits, *request.excludes)]
    found: dict[str, str] = {}
    for name in dict.fromkeys(named):
        if not is_whole(name):
            found[name] = (yield from find_by_short_id(namespace, name)).chain_id
    return [write_out(request, found) for request in requests] if found else list(requests)


def write_out(request: Request, found: Mapping[str, str]) -> Request:
    """Return a request with the chains that short ids name."""
    chains = list(dict.fromkeys(found.get(name, name) for name in request.job.awaits))
    excludes = frozenset(found.get(name, name) for name in request.excludes)
    if chains:
        job = alter(request.job, blockers=encode_chains(chains), arrived=begin_arrivals(chains))
        request = msgspec.structs.replace(request, job=job)
    return msgspec.structs.replace(request, excludes=excludes)


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
