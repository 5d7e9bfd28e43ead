"""Chains, groups and batches: work that is more than one job.

A chain is a list of jobs that share the first one's id. It grows by `current().continue_with(…)`, or it is
written down beforehand with `chain(…)`. What runs side by side is a `group(…)`; a `batch(…)` is a group that
is followed by something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from onejob.admission import LOOK_AGAIN, Admission, refuse_deadlock, result_of, seconds
from onejob.continuing import written
from onejob.decide import Request
from onejob.errors import InvalidCall, ResultGone, UnknownJob
from onejob.job import Job, State, Trait, alter
from onejob.lifecycle import phase
from onejob.schedule import Duration
from onejob.stores.contract import Filter

if TYPE_CHECKING:
    from onejob.app import App
    from onejob.tasks import Call

R = TypeVar("R")


# ── a chain that is there ─────────────────────────────────────────────────────────────────────────


class Chain(Generic[R]):
    """A chain by its id: how it stands, and what it comes to."""

    __slots__ = ("_app", "id")

    def __init__(self, app: App, chain_id: str) -> None:
        self._app = app
        self.id = chain_id

    def __repr__(self) -> str:
        """Name the chain."""
        return f"<Chain {self.id}>"

    @property
    def chain_ids(self) -> list[str]:
        """The chains that one waits for who waits for this."""
        return [self.id]

    async def last(self) -> Job:
        """Read the job that the chain has come to."""
        [tail] = await self._app.store.tails([self.id])
        if tail is None:
            raise UnknownJob(f"No chain has the id {self.id!r}: it never existed, or it has been pruned.")
        return tail

    async def status(self) -> State:
        """Tell how the chain stands: once it has started it is active until its last job ends."""
        return phase(await self.last())

    async def jobs(self) -> list[Job]:
        """List the jobs of the chain, first to last."""
        found: list[Job] = []
        while page := await self._app.store.find(
            Filter(chain_id=self.id, offset=len(found), limit=500, newest_first=False)
        ):
            found += page
        return sorted(found, key=lambda job: job.chain_index)

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the chain's end, and return what its last job returned.

        Raises JobFailed, JobCancelled, ResultGone, WouldDeadlock or TimeoutError.
        """
        async with asyncio.timeout(seconds(timeout)):
            tail = await self._ended()
        task = self._app.tasks.get(tail.task)
        return cast("R", result_of(self._app, tail, task.signature.returns if task else Any))

    async def _ended(self) -> Job:
        chain_id = self.id
        while True:
            seen = self._app.store.pulse()
            [tail] = await self._app.store.tails([chain_id])
            if tail is None:
                raise ResultGone(f"Chain {chain_id} has been removed, and its result with it.")
            if not tail.is_terminal:
                refuse_deadlock(tail)
            if tail.superseded_by is not None:
                chain_id = tail.superseded_by
            elif tail.is_terminal:
                return tail
            else:
                await self._app.store.wait(LOOK_AGAIN, seen)

    async def cancel(self, *, reason: str = "cancelled") -> Job:
        """End the chain where it stands: no job of it starts any more; a running one is told to stop."""
        while True:
            tail = await self.last()
            job = await self._app.cancel(tail.id, reason=reason)
            if not job.is_terminal or (await self.last()).id == job.id:
                return job

    async def delete(self) -> int:
        """Remove a chain that has ended; refused while other jobs wait for it. Answer how many jobs went."""
        if not (await self.last()).is_terminal:
            raise InvalidCall(f"Chain {self.id} has not ended: cancel it first.")
        jobs = await self.jobs()
        for job in reversed(jobs):
            await self._app.delete(job.id)
        return len(jobs)

    def result_sync(self, timeout: Duration | None = None) -> R:
        """Do `result` from blocking code."""
        return self._app.portal.run(self.result(timeout))

    def status_sync(self) -> State:
        """Do `status` from blocking code."""
        return self._app.portal.run(self.status())


# ── a chain that is written down ──────────────────────────────────────────────────────────────────


class Sequel(Generic[R]):
    """Calls that run one after the other; each takes the result before it as its first open argument."""

    __slots__ = ("_calls",)

    def __init__(self, calls: Sequence[Call[Any]]) -> None:
        if not calls:
            raise InvalidCall("chain() has no calls: write chain(first.call(1), second.call()).")
        self._calls = list(calls)

    async def enqueue(self, *, connection: Any = None) -> Admission[Any]:
        """Enqueue the first call; the others follow when it has completed."""
        first = self._first(connection)
        return await first.task.app.admit(first.task, self._request(first), first.task.connection)

    def enqueue_sync(self, *, connection: Any = None) -> Admission[Any]:
        """Do `enqueue` from blocking code."""
        first = self._first(connection)
        return first.task.app.admit_now(first.task, self._request(first), first.task.connection)

    def _first(self, connection: Any) -> Call[Any]:
        first = self._calls[0]
        if connection is None:
            return first
        return type(first)(first.task.options(connection=connection), first.args, first.kwargs)

    def _request(self, first: Call[Any]) -> Request:
        later = [written(call) for call in self._calls[1:]]
        following = msgspec.json.encode(later) if later else None
        request = first.request()
        return msgspec.structs.replace(request, job=alter(request.job, following=following))


def chain(*calls: Call[Any]) -> Sequel[Any]:
    """Write a chain down, to be enqueued: each call takes the result of the one before it."""
    return Sequel(calls)


# ── side by side ──────────────────────────────────────────────────────────────────────────────────


class Members(Generic[R]):
    """Jobs that were enqueued together: await them all, or name them in after=."""

    __slots__ = ("admissions", "callbacks")

    def __init__(self, admissions: Sequence[Admission[R]], callbacks: dict[str, Admission[Any]]) -> None:
        self.admissions = list(admissions)
        self.callbacks = callbacks

    @property
    def chain_ids(self) -> list[str]:
        """The chains that one waits for who waits for these."""
        return [admission.job.chain_id for admission in self.admissions]

    async def results(self, timeout: Duration | None = None) -> list[R]:
        """Wait for all of them, and return what each chain returned, in order."""
        async with asyncio.timeout(seconds(timeout)):
            return list(await asyncio.gather(*(one.chain.result() for one in self.admissions)))


class Group(Generic[R]):
    """Calls that run side by side."""

    __slots__ = ("_callbacks", "_calls")

    def __init__(self, calls: Iterable[Call[R]], callbacks: dict[str, Call[Any]] | None = None) -> None:
        self._calls = list(calls)
        self._callbacks = callbacks or {}
        if not self._calls:
            raise InvalidCall("A group has at least one call: write group(send.call(1), send.call(2)).")

    async def enqueue(self, *, connection: Any = None) -> Members[R]:
        """Enqueue all of them, then what follows."""
        app = self._calls[0].task.app
        admissions = await app.enqueue_many(self._calls, connection=connection, awaited=bool(self._callbacks))
        calls = self._following(admissions)
        followers = await app.enqueue_many(calls, connection=connection) if calls else []
        return Members(admissions, dict(zip(self._callbacks, followers, strict=True)))

    def enqueue_sync(self, *, connection: Any = None) -> Members[R]:
        """Do `enqueue` from blocking code."""
        app = self._calls[0].task.app
        admissions = app.enqueue_many_sync(self._calls, connection=connection, awaited=bool(self._callbacks))
        calls = self._following(admissions)
        followers = app.enqueue_many_sync(calls, connection=connection) if calls else []
        return Members(admissions, dict(zip(self._callbacks, followers, strict=True)))

    def _following(self, admissions: Sequence[Admission[R]]) -> list[Call[Any]]:
        return [
            type(call)(call.task.following(admissions, WAYS[name]), call.args, call.kwargs)
            for name, call in self._callbacks.items()
        ]


WAYS = {
    "on_success": Trait.NONE,
    "on_failure": Trait.AFTER_ALL | Trait.AFTER_FAILURE,
    "on_complete": Trait.AFTER_ALL,
}


def group(*calls: Call[R]) -> Group[R]:
    """Put calls together that are to run side by side."""
    return Group(calls)


def batch(
    *calls: Call[R],
    on_success: Call[Any] | None = None,
    on_failure: Call[Any] | None = None,
    on_complete: Call[Any] | None = None,
) -> Group[R]:
    """Put calls together with what follows them.

    `on_success` runs when all have completed, `on_failure` when all have ended and some did not complete,
    `on_complete` when all have ended.
    """
    given = {"on_success": on_success, "on_failure": on_failure, "on_complete": on_complete}
    return Group(calls, {name: call for name, call in given.items() if call is not None})
