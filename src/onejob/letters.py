"""Dead letters in number: which are meant, and which died of the same."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypedDict

from onejob.errors import InvalidCall
from onejob.job import Job, State
from onejob.schedule import Duration, duration
from onejob.stores.contract import Filter, Store

PAGE = 500
ENDLESS = datetime.max.replace(tzinfo=UTC)
LONGEST = 200  # characters of a message by which letters are grouped

UNLIKE = (  # what differs from one letter to the next although they died of the same
    (re.compile(r"""(?<!\w)(["'])(?:(?!\1).)*\1(?!\w)"""), "'…'"),
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE), "#"),
    (re.compile(r"\b(?:0x[0-9a-f]+|(?=[0-9a-f]*\d)[0-9a-f]{8,})\b", re.IGNORECASE), "#"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "#"),
    (re.compile(r"\s+"), " "),
)


class Which(TypedDict, total=False):
    """Which dead letters are meant; everything given must hold."""

    task: str | None
    queue: str | None
    error: str | None  # the type of the last error
    message: str | None  # a part of its message
    older_than: Duration | None  # dead for so long
    newer_than: Duration | None


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead letters of one task that died of the same error."""

    task: str
    error: str
    message: str  # with "#" for numbers and ids and "'…'" for what was quoted
    count: int
    first_at: datetime
    last_at: datetime
    example: str  # the id of the newest


def last_error(job: Job) -> tuple[str, str]:
    """Tell the type and the message of what ended a job; one that never ran has only a reason."""
    if not job.failures:
        return "", job.reason or ""
    last: Mapping[str, Any] = job.failures[-1]
    return str(last["type"]), str(last["message"])


def alike(message: str) -> str:
    """Take out of a message what differs from one letter to the next."""
    for pattern, instead in UNLIKE:
        message = pattern.sub(instead, message)
    return message.strip()[:LONGEST]


class Groups:
    """Letters by task and error, as they come in: the latest dead first."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str, str], DeadGroup] = {}

    def add(self, letters: Iterable[Job]) -> None:
        """Take in letters that are no newer than those before them."""
        for letter in letters:
            error, message = last_error(letter)
            named = (letter.task, error, alike(message))
            self._groups[named] = joined(self._groups.get(named), named, letter)

    def sorted(self) -> list[DeadGroup]:
        """List the groups, the largest first."""
        return sorted(self._groups.values(), key=lambda one: (-one.count, one.task, one.error, one.message))


def joined(group: DeadGroup | None, named: tuple[str, str, str], letter: Job) -> DeadGroup:
    """Add a letter to its group, which is None if it is the first."""
    assert letter.finished_at is not None  # it is dead
    if group is None:
        return DeadGroup(*named, 1, letter.finished_at, letter.finished_at, letter.id)
    return replace(group, count=group.count + 1, first_at=letter.finished_at)


async def find(store: Store, namespace: str, which: Which, page: int = PAGE) -> AsyncIterator[list[Job]]:
    """Read the letters that are meant, a page at a time, the latest dead first."""
    if unknown := which.keys() - Which.__annotations__:
        known = ", ".join(Which.__annotations__)
        raise InvalidCall(f"Dead letters are not told apart by {min(unknown)!r}: write one of {known}.")
    now, beyond = store.now(), None
    older, newer = which.get("older_than"), which.get("newer_than")
    since = None if newer is None else now - duration(newer)
    while True:
        wanted = Filter(
            namespace=namespace,
            states=frozenset({State.DISCARDED}),
            task=which.get("task"),
            ended_before=ENDLESS if older is None else now - duration(older),
            beyond=beyond,
            limit=page,
        )
        found = await store.find(wanted)
        yield [job for job in found if meant(job, which, since)]
        if len(found) < page or (ends := found[-1].finished_at) is None or (since and ends < since):
            return
        beyond = (ends, found[-1].id)


def meant(job: Job, which: Which, since: datetime | None) -> bool:
    """Tell whether a letter is one of those that are meant."""
    if job.is_tombstone or (since is not None and (job.finished_at or since) < since):
        return False
    queue, wanted, part = which.get("queue"), which.get("error"), which.get("message")
    if queue is not None and job.queue != queue:
        return False
    if wanted is None and part is None:
        return True
    error, message = last_error(job)
    return wanted in {None, error} and (part is None or part in message)
