"""`app.dead`: list, group and replay dead letters."""

from __future__ import annotations

import builtins
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, TypedDict, Unpack

from onejob.app.values import read_count, refuse_no_name
from onejob.core.decide import Verdict
from onejob.core.durations import Duration, duration
from onejob.core.job import Job, State
from onejob.core.replay import replay
from onejob.core.step import Step
from onejob.engine.engine import Engine, batches
from onejob.errors import InvalidCall, OnejobError, UnknownJob
from onejob.stores.queries import Ended
from onejob.tasks.admission import Admission, JobLike, id_of
from onejob.tasks.blocking import blocking
from onejob.tasks.edit import edit_job
from onejob.tasks.options import Options
from onejob.tasks.registry import Registry
from onejob.tasks.request import RequestBuilder

PAGE = 500
AT_ONCE = 100  # dead letters that share a commit
LONGEST = 200  # characters of a message by which dead letters are grouped

VARYING = (  # parts of a message that differ between dead letters with the same cause
    (re.compile(r"""(?<!\w)(["'])(?:(?!\1).)*\1(?!\w)"""), "'…'"),
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE), "#"),
    (re.compile(r"\b(?:0x[0-9a-f]+|(?=[0-9a-f]*\d)[0-9a-f]{4,})\b", re.IGNORECASE), "#"),
    (re.compile(r"\d+(?:[.,:]\d+)*[a-z]*\b|\d+", re.IGNORECASE), "#"),
    (re.compile(r"\s+"), " "),
)


class DeadFilter(TypedDict, total=False):
    """Filters for dead letters; all that are given must match.

    Attributes:
        task: The name of the task.
        queue: The name of the queue.
        error: The type of the last error, such as "TimeoutError".
        message: A part of the message of the last error.
        older_than: Dead for at least this long.
        newer_than: Dead for at most this long.
    """

    task: str | None
    queue: str | None
    error: str | None
    message: str | None
    older_than: Duration | None
    newer_than: Duration | None


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead letters of one task that ended with the same error.

    Attributes:
        task: The name of the task.
        error: The type of the error.
        message: The error's message, with "#" for numbers and ids and "'…'" for quoted text.
        count: How many dead letters the group has.
        first_at: When the first of them died.
        last_at: When the last of them died.
        example: The id of the newest.
    """

    task: str
    error: str
    message: str
    count: int
    first_at: datetime
    last_at: datetime
    example: str


class DeadLetters:
    """The dead letters of an app: `app.dead`.

    Every method that takes filters accepts `task`, `queue`, `error` (the type of the last error), `message`
    (a part of its message), `older_than` and `newer_than`; all that are given must match.
    """

    def __init__(self, engine: Engine, registry: Registry) -> None:
        self._engine = engine
        self._registry = registry

    async def list(self, *, limit: int = 100, **filters: Unpack[DeadFilter]) -> builtins.list[Job]:
        """Return dead letters, newest first.

        Args:
            limit: How many to return at most.
            **filters: Which dead letters, see `DeadLetters`.
        """
        found: list[Job] = []
        page = max(min(read_count(limit), PAGE), 1)
        async for some in self._find(filters, page):
            found += some
            if len(found) >= limit:
                break
        return found[:limit]

    async def groups(
        self, *, limit: int | None = None, **filters: Unpack[DeadFilter]
    ) -> builtins.list[DeadGroup]:
        """Return dead letters grouped by task, type of error and message, the largest group first.

        Args:
            limit: How many dead letters to group at most, the newest; all if left out.
            **filters: Which dead letters, see `DeadLetters`.
        """
        groups: dict[tuple[str, str, str], DeadGroup] = {}
        seen = 0
        page = PAGE if limit is None else max(min(read_count(limit), PAGE), 1)
        async for some in self._find(filters, page):
            add_to_groups(groups, some if limit is None else some[: limit - seen])
            seen += len(some)
            if limit is not None and seen >= limit:
                break
        return sorted(groups.values(), key=lambda one: (-one.count, one.task, one.error, one.message))

    async def ids(self, **filters: Unpack[DeadFilter]) -> builtins.list[str]:
        """Return the ids of all dead letters that match, newest first.

        Args:
            **filters: Which dead letters, see `DeadLetters`.
        """
        return [job.id async for some in self._find(filters) for job in some]

    async def replay(self, job_id: JobLike, *, args: Mapping[str, Any] | None = None) -> Admission[Any]:
        """Replay a dead letter, perhaps with other arguments.

        Args:
            job_id: The dead letter, or its id.
            args: Arguments to change. They must not change the key or the version.

        Returns:
            The admission: created, or kept or stale, which leave the dead letter where it is.

        Raises:
            UnknownJob: No job has this id, or several ids begin with it.
            InvalidCall: The job is no dead letter, or `args` do not fit its task or would change its key.
        """
        [job_id] = await self._engine.whole_ids([id_of(job_id)])
        [answer] = await self.replay_many([job_id], args=args)
        if isinstance(answer, OnejobError):
            raise answer
        if answer is None:
            job = await self._engine.job(job_id)
            raise InvalidCall(f"Job {job_id} is {job.state}, so it cannot be replayed.")
        return answer

    replay_sync = blocking(replay)

    async def replay_many(
        self, ids: Sequence[JobLike], *, args: Mapping[str, Any] | None = None
    ) -> builtins.list[Admission[Any] | OnejobError | None]:
        """Replay dead letters in one commit.

        Args:
            ids: The dead letters, or their ids.
            args: Arguments to change in each of them.

        Returns:
            One answer per id: the admission, None if the job is no dead letter, or the error of an edit that
            is not allowed.
        """
        written = [await self._written_out(one) for one in ids]
        act = replay if args is None else partial(replay, edit=partial(self._edit, dict(args)))
        answers = await self._engine.apply([Step(act, job_id) for job_id in written])
        return [self._admission(answer) for answer in answers]

    async def _written_out(self, one: JobLike) -> str:
        """Return the id of a job; what names none stays as it is."""
        try:
            [job_id] = await self._engine.whole_ids([id_of(one)])
        except UnknownJob:
            return id_of(one)
        return job_id

    async def replay_all(
        self, *, limit: int = 1000, args: Mapping[str, Any] | None = None, **filters: Unpack[DeadFilter]
    ) -> builtins.list[Admission[Any]]:
        """Replay all dead letters that match, in batches; of two with one key, the newer gets the key.

        Args:
            limit: How many to replay at most.
            args: Arguments to change in each of them.
            **filters: Which dead letters, see `DeadLetters`.

        Raises:
            InvalidCall: `args` do not fit a dead letter, or would change its key; earlier ones stay replayed.
        """
        ids = [job.id for job in await self.list(limit=limit, **filters)]
        admissions: list[Admission[Any]] = []
        for some in batches(ids, AT_ONCE):
            for answer in await self.replay_many(some, args=args):
                if isinstance(answer, OnejobError):
                    raise answer
                admissions += [] if answer is None else [answer]
        return admissions

    list_sync = blocking(list)  # noqa: A003 - the method
    groups_sync = blocking(groups)
    ids_sync = blocking(ids)
    replay_many_sync = blocking(replay_many)
    replay_all_sync = blocking(replay_all)

    def _edit(self, args: dict[str, Any], job: Job) -> Job:
        task = self._registry.task(job.task)
        return edit_job(RequestBuilder(self._engine, self._registry, task, Options()), job, args)

    def _admission(self, answer: Verdict | OnejobError | None) -> Admission[Any] | OnejobError | None:
        if not isinstance(answer, Verdict):
            return answer
        return Admission(self._engine, self._registry, answer)

    async def _find(self, filters: DeadFilter, page: int = PAGE) -> AsyncIterator[builtins.list[Job]]:
        """Yield the dead letters that match, a page at a time, newest first."""
        if unknown := filters.keys() - DeadFilter.__annotations__:
            known = ", ".join(DeadFilter.__annotations__)
            raise InvalidCall(f"Dead letters have no filter {min(unknown)!r}: write one of {known}.")
        refuse_no_name(filters.get("task"), "task")
        refuse_no_name(filters.get("queue"), "queue")
        now, after = self._engine.store.now(), None
        older, newer = filters.get("older_than"), filters.get("newer_than")
        since = None if newer is None else now - duration(newer)
        while True:
            query = Ended(
                namespace=self._engine.namespace,
                state=State.DISCARDED,
                task=filters.get("task"),
                before=None if older is None else now - duration(older),
                after=after,
                limit=page,
            )
            found = await self._engine.find(query)
            yield [job for job in found if matches(job, filters, since)]
            if len(found) < page or (ends := found[-1].finished_at) is None or (since and ends < since):
                return
            after = (ends, found[-1].id)


def matches(job: Job, filters: DeadFilter, since: datetime | None) -> bool:
    """Return whether a dead letter matches the filters that the store does not apply."""
    if job.is_tombstone or (since is not None and (job.finished_at or since) < since):
        return False
    queue, wanted, part = filters.get("queue"), filters.get("error"), filters.get("message")
    if queue is not None and job.queue != queue:
        return False
    if wanted is None and part is None:
        return True
    error, message = last_error(job)
    return wanted in {None, error} and (part is None or part in message)


def last_error(job: Job) -> tuple[str, str]:
    """Return the type and the message of a job's last error; a job that never ran has only a reason."""
    if not job.failures:
        return "", job.reason or ""
    last: Mapping[str, Any] = job.failures[-1]
    return str(last["type"]), str(last["message"])


# ── groups ────────────────────────────────────────────────────────────────────────────────────────


def add_to_groups(groups: dict[tuple[str, str, str], DeadGroup], letters: Iterable[Job]) -> None:
    """Add dead letters to their groups; they must come newest first."""
    for letter in letters:
        error, message = last_error(letter)
        name = (letter.task, error, generalise(message))
        groups[name] = enlarge(groups.get(name), name, letter)


def generalise(message: str) -> str:
    """Return a message without the parts that differ between dead letters with the same cause."""
    for pattern, instead in VARYING:
        message = pattern.sub(instead, message)
    return message.strip()[:LONGEST]


def enlarge(group: DeadGroup | None, name: tuple[str, str, str], letter: Job) -> DeadGroup:
    """Return a group with one more dead letter."""
    assert letter.finished_at is not None  # it is dead
    if group is None:
        return DeadGroup(*name, 1, letter.finished_at, letter.finished_at, letter.id)
    return replace(group, count=group.count + 1, first_at=letter.finished_at)
