"""Chain: jobs that share the first one's id and run one after the other."""

from __future__ import annotations

from typing import Generic, TypeVar, cast

from onejob.core.durations import Duration
from onejob.core.holds import phase
from onejob.core.job import Job, State
from onejob.engine.engine import Engine
from onejob.engine.jobs import cancel_job, delete_job
from onejob.engine.short_ids import is_whole
from onejob.errors import InvalidCall, ResultGone, UnknownJob
from onejob.stores.queries import Awaiting, OfChain
from onejob.tasks.blocking import blocking
from onejob.tasks.registry import Registry
from onejob.tasks.results import (
    FIRST_LOOK,
    refuse_deadlock,
    result_of,
    wait_for_change,
    within,
)

R = TypeVar("R")


class Chain(Generic[R]):
    """Jobs that run one after the other: `admission.chain` or `app.chain(id)`.

    Attributes:
        id: The id of the chain, which is that of its first job.
    """

    __slots__ = ("_engine", "_registry", "id")

    def __init__(self, engine: Engine, registry: Registry, chain_id: str) -> None:
        self._engine = engine
        self._registry = registry
        self.id = chain_id

    def __repr__(self) -> str:
        """Return the chain's id."""
        return f"<Chain {self.id}>"

    @property
    def chain_ids(self) -> list[str]:
        """The id of this chain in a list: what a job waits for if `after=` names this chain."""
        return [self.id]

    async def _whole_id(self) -> str:
        """Return the chain's id; if it was given by the beginning of a job's id, find and keep it."""
        if not is_whole(self.id):
            self.id = (await self._engine.job(self.id)).chain_id
        return self.id

    async def last(self) -> Job:
        """Return the last job of the chain so far.

        Raises:
            UnknownJob: No chain of this namespace has the id.
        """
        [tail] = await self._engine.tails([await self._whole_id()])
        if tail is None:
            raise UnknownJob(f"No chain has the id {self.id!r}: it never existed, or it has been pruned.")
        return tail

    async def status(self) -> State:
        """Return the chain's state; from its first start until its last job ends, it is active.

        Raises:
            UnknownJob: No chain of this namespace has the id.
        """
        return phase(await self.last())

    async def jobs(self) -> list[Job]:
        """Return the jobs of the chain, first to last."""
        found: list[Job] = []
        chain_id = await self._whole_id()
        while page := await self._engine.find(
            OfChain(namespace=self._engine.namespace, chain_id=chain_id, offset=len(found), limit=500)
        ):
            found += page
        return sorted(found, key=lambda job: job.chain_index)

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the chain's end, and return what its last job returned.

        Args:
            timeout: How long to wait at most.

        Raises:
            JobFailed: Its last job failed for good.
            JobCancelled: Its last job was cancelled.
            ResultGone: The chain was pruned or deleted.
            WouldDeadlock: The chain cannot end before the present run does.
            TimeoutError: The chain did not end in time.
        """
        async with within(timeout, self._engine, self._registry, [await self._whole_id()]):
            tail = await self._wait_for_end()
        return cast("R", result_of(self._engine, tail, self._registry.returns(tail.task)))

    async def _wait_for_end(self) -> Job:
        chain_id, pause = self.id, FIRST_LOOK
        while True:
            seen = self._engine.store.position()
            [tail] = await self._engine.tails([chain_id])
            if tail is None:
                raise ResultGone(f"Chain {chain_id} has been removed, and its result with it.")
            if not tail.is_terminal:
                refuse_deadlock(tail)
            if tail.superseded_by is not None:
                chain_id = tail.superseded_by
            elif tail.is_terminal:
                return tail
            else:
                pause = await wait_for_change(self._engine, seen, pause)

    async def dependants(self, *, limit: int = 100) -> list[Job]:
        """Return the jobs that wait for the chain.

        Args:
            limit: How many to look at at most.
        """
        query = Awaiting(namespace=self._engine.namespace, chains=[await self._whole_id()], limit=limit)
        return [job for job in await self._engine.find(query) if job.state is State.PENDING]

    async def cancel(self, *, reason: str = "cancelled") -> Job:
        """Cancel the chain: no further job of it starts, and a running one is asked to stop.

        Args:
            reason: What the cancelled job keeps as its reason.

        Returns:
            The last job as it is then.
        """
        while True:
            tail = await self.last()
            job = await cancel_job(self._engine, tail.id, reason=reason)
            if not job.is_terminal or (await self.last()).id == job.id:
                return job

    async def delete(self) -> int:
        """Delete a chain that has ended; return how many jobs it had.

        Raises:
            InvalidCall: It has not ended, or other jobs wait for it.
        """
        if not (await self.last()).is_terminal:
            raise InvalidCall(f"Chain {self.id} has not ended: cancel it first.")
        jobs = await self.jobs()
        for job in reversed(jobs):
            await delete_job(self._engine, job.id)
        return len(jobs)

    result_sync = blocking(result)
    status_sync = blocking(status)
    last_sync = blocking(last)
    jobs_sync = blocking(jobs)
    dependants_sync = blocking(dependants)
    cancel_sync = blocking(cancel)
    delete_sync = blocking(delete)
