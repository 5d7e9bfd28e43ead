"""The engine: the only way to a store for tasks, workers and the app.

`apply`, `lease` and `admit` write steps and do their follow-up work (`follow_up`), and every read and every
step is confined to the engine's namespace: a job of another namespace is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec

from onejob.core.decide import Request, Verdict
from onejob.core.job import Job
from onejob.core.leasing import Lease
from onejob.core.step import Step, View
from onejob.core.text import is_name, one_line
from onejob.engine.absorbed_log import KEPT_FOR
from onejob.engine.counters import AbsorbedCounters
from onejob.engine.decided import Caller
from onejob.engine.dependants import Ask, reachable_chains
from onejob.engine.events import Event, RunStep, ends_of, events_of, events_of_requests, starts_of, watch
from onejob.engine.follow_up import concerns_no_other, follow_up
from onejob.engine.hooks import Hooks
from onejob.engine.portal import Portal, refuse_running_loop
from onejob.engine.recorded_requests import RequestRecorder
from onejob.engine.sealing import Sealer
from onejob.engine.secrets import announce_secret
from onejob.engine.short_ids import find_by_short_id, is_whole, with_whole_ids
from onejob.engine.steps import admission_step, confine, visible
from onejob.errors import BlockerCycle, ForeignConnection, InvalidCall, OnejobError, StoreError, UnknownJob
from onejob.stores.contract import FullStore, Leased, Tally, Transactions
from onejob.stores.flow import Flow, drive, drive_async
from onejob.stores.queries import Query

T = TypeVar("T")
log = logging.getLogger("onejob")

BATCH = 2000  # requests that share one commit at most
NONE: Mapping[str, Job] = {}


class Engine:
    """A store, a namespace, and what every caller of steps owes other jobs."""

    def __init__(
        self,
        store: FullStore,
        *,
        url: str = "",
        namespace: str = "",
        secret: bytes | None = None,
        sealer: Sealer | None = None,
        max_args: int = 1024 * 1024,
        records_callers: bool = True,
        records_requests: bool = True,
        log_kept_for: timedelta = KEPT_FOR,
    ) -> None:
        self.store = store
        self.url = url
        self.namespace = namespace
        self.secret = secret
        self.sealer = sealer
        self.max_args = max_args
        self.counters = AbsorbedCounters(
            store,
            records_callers=records_callers,
            make_recorder=partial(RequestRecorder, store, namespace, secret) if records_requests else None,
        )
        self.log_kept_for = log_kept_for
        self.portal = Portal()
        self.hooks = Hooks(self.portal)
        self.is_used = False  # whether steps have been applied since it was closed, or made
        self._must_announce = secret is not None

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    async def apply(self, steps: Sequence[Step[T]], connection: Any = None) -> list[T | OnejobError]:
        """Apply steps and do their follow-up work; with `connection`, inside the caller's transaction."""
        asked = self._confine(steps)
        answers = await self._write(asked, NONE, connection)
        if self.hooks.registered and (found := events_of(asked, answers)):
            if isinstance(asked[0], RunStep):
                await self.hooks.fire_later(found)
            else:
                await self.hooks.fire(found, connection)
        return answers

    def apply_sync(self, steps: Sequence[Step[T]], connection: Any = None) -> list[T | OnejobError]:
        """Blocking variant of `apply`."""
        asked = self._confine(steps)
        answers = self._write_sync(asked, NONE, connection)
        if self.hooks.registered:
            self.hooks.fire_sync(events_of(asked, answers), connection)
        return answers

    def _confine(self, steps: Sequence[Step[Any]]) -> list[Step[Any]]:
        """Return steps that see only this namespace, watched if there are hooks; admissions need neither."""
        self.is_used = True
        confined = [confine(step, self.namespace) for step in steps]
        return watch(confined) if self.hooks.registered else confined

    async def _write(self, asked: Sequence[Step[Any]], own: Mapping[str, Job], connection: Any) -> list[Any]:
        if connection is None:
            answers = await self.store.apply(asked)
        else:
            answers = await self.transactions().apply_within(connection, asked)
        if connection is None and all(map(concerns_no_other, asked, answers)):
            return answers
        flow = follow_up(asked, answers, self.namespace, own, committed=connection is None)
        return await self.run_flow(flow, connection)

    def _write_sync(self, asked: Sequence[Step[Any]], own: Mapping[str, Job], connection: Any) -> list[Any]:
        if connection is None:
            answers = self.store.apply_sync(asked)
        else:
            answers = self.transactions().apply_within_sync(connection, asked)
        if connection is None and all(map(concerns_no_other, asked, answers)):
            return answers
        flow = follow_up(asked, answers, self.namespace, own, committed=connection is None)
        return self.run_flow_sync(flow, connection)

    async def lease(self, wanted: Lease, after: Sequence[Step[Any]] = ()) -> Leased:
        """Apply the steps `after`, which free capacity, start due jobs, and do the follow-up work."""
        if self.hooks.registered:
            return await self._lease_reported(wanted, after)
        leased = await self.store.lease(wanted, self._confine(after))
        answers = await self._follow_up(after, leased.answers) if after else []
        return Leased(answers, leased.jobs, leased.next_due)

    async def _lease_reported(self, wanted: Lease, after: Sequence[Step[Any]]) -> Leased:
        """Lease, and call hooks with how runs ended, and which jobs started or ended instead of starting."""
        noted: dict[str, Job] = {}
        watched = replace(wanted, on_end=lambda job: noted.update({job.id: job}))
        leased = await self.store.lease(watched, self._confine(after))
        answers = await self._follow_up(after, leased.answers) if after else []
        ended = await self._written_ends(noted) if noted else []
        await self.hooks.fire_later([*events_of(after, answers), *ends_of(ended), *starts_of(leased.jobs)])
        return Leased(answers, leased.jobs, leased.next_due)

    async def _written_ends(self, noted: Collection[str]) -> list[Job]:
        """Return the jobs that ended instead of starting: the store may have decided again about one.

        If it does not answer, no hook is called for them: an error would lose the jobs that were just leased.
        """
        try:
            found = await self.get(list(noted))
        except StoreError as error:
            log.warning("hooks are not told which jobs ended instead of starting: %s", error)
            return []
        return [job for job in found if job is not None and job.is_terminal]

    async def follow_up(self, steps: Sequence[Step[Any]], answers: list[Any]) -> list[Any]:
        """Do the follow-up work of steps that were committed in a handler's own transaction."""
        followed = await self._follow_up(steps, answers)
        if self.hooks.registered:
            await self.hooks.fire_later(events_of(steps, followed))
        return followed

    async def _follow_up(self, steps: Sequence[Step[Any]], answers: list[Any]) -> list[Any]:
        if all(map(concerns_no_other, steps, answers)):
            return answers
        return await self.run_flow(follow_up(steps, answers, self.namespace, NONE, committed=True))

    # ── admission ─────────────────────────────────────────────────────────────────────────────────

    async def admit(
        self,
        requests: Sequence[Request],
        connection: Any = None,
        own: Mapping[str, Job] = NONE,
        caller: Caller | None = None,
    ) -> list[Verdict | OnejobError]:
        """Decide about requests in order, and do the follow-up work.

        Args:
            requests: What to admit.
            connection: The caller's connection, to admit them inside its transaction.
            own: Jobs by chain that the caller has at hand, perhaps of its own open transaction.
            caller: The line that made the requests, for the log; None to find it.

        Returns:
            One verdict per request; an error for a request that could not be decided.
        """
        tracing = self.hooks.tracing
        if tracing is None:
            return await self._admit(requests, connection, own, caller)
        with tracing.send(requests) as sending:
            verdicts = await self._admit(sending.requests, connection, own, caller)
            sending.decided(verdicts)
            return verdicts

    async def _admit(
        self, requests: Sequence[Request], connection: Any, own: Mapping[str, Job], caller: Caller | None
    ) -> list[Verdict | OnejobError]:
        if self._must_announce and connection is None:
            await self.announce_secret()
        if any(map(names_chains, requests)):
            requests = await self.run_flow(with_reaches(requests, own, self.namespace), connection)
        self.is_used = True
        verdicts: list[Verdict | OnejobError] = []
        for part in parts_of(requests, connection):
            steps = [admission_step(request, self.sealer) for request in part]
            answers = await self._write(steps, own, connection)
            if connection is not None and (tallies := self.counters.tallies(steps, answers, caller)):
                await self.transactions().count_within(connection, tallies)
            self.counters.note(steps, answers, caller, in_transaction=connection is not None)
            if self.hooks.registered:
                await self.hooks.fire(events_of_requests(steps, answers), connection)
            verdicts += answers
        return verdicts

    def admit_sync(
        self, requests: Sequence[Request], connection: Any = None, own: Mapping[str, Job] = NONE
    ) -> list[Verdict | OnejobError]:
        """Blocking variant of `admit`."""
        tracing = self.hooks.tracing
        if tracing is None:
            return self._admit_sync(requests, connection, own)
        with tracing.send(requests) as sending:
            verdicts = self._admit_sync(sending.requests, connection, own)
            sending.decided(verdicts)
            return verdicts

    def _admit_sync(
        self, requests: Sequence[Request], connection: Any, own: Mapping[str, Job]
    ) -> list[Verdict | OnejobError]:
        if self._must_announce and connection is None:
            self.portal.run(self.announce_secret())
        if any(map(names_chains, requests)):
            requests = self.run_flow_sync(with_reaches(requests, own, self.namespace), connection)
        self.is_used = True
        verdicts: list[Verdict | OnejobError] = []
        for part in parts_of(requests, connection):
            steps = [admission_step(request, self.sealer) for request in part]
            answers = self._write_sync(steps, own, connection)
            if connection is not None and (tallies := self.counters.tallies(steps, answers)):
                self.transactions().count_within_sync(connection, tallies)
            self.counters.note(steps, answers, in_transaction=connection is not None)
            if self.hooks.registered:
                self.hooks.fire_sync(events_of_requests(steps, answers), connection)
            verdicts += answers
        return verdicts

    async def announce_secret(self) -> None:
        """Log a warning, once, if other processes use another secret in this namespace."""
        self._must_announce = False
        await announce_secret(self.store, self.namespace, self.secret)

    async def refuse_cycle(self, job: Job, continuation: Job) -> None:
        """Raise BlockerCycle if a continuation would wait for its own chain through other chains."""
        if job.chain_id in await self.run_flow(reachable_chains(continuation.awaits, NONE)):
            raise BlockerCycle(f"{continuation.task} would wait for its own chain, {job.chain_id}.")

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """Return jobs by id, in input order; None for one that is unknown."""
        return self._own(await self.store.get(ids))

    async def job(self, job_id: str) -> Job:
        """Return one job by its id or a unique beginning of it; raise UnknownJob if there is none."""
        if not is_whole(job_id):
            return await self.run_flow(find_by_short_id(self.namespace, job_id))
        [job] = await self.get([job_id]) if is_name(job_id) else [None]
        if job is None:
            raise unknown_job(job_id)
        return job

    async def whole_ids(self, ids: Sequence[str]) -> list[str]:
        """Return ids of which some may be short, written out; raise UnknownJob for one that names no job."""
        return [one_line(job_id) if is_whole(job_id) else (await self.job(job_id)).id for job_id in ids]

    def whole_ids_sync(self, ids: Sequence[str]) -> list[str]:
        """Blocking variant of `whole_ids`."""
        return [*map(one_line, ids)] if all(map(is_whole, ids)) else self.portal.run(self.whole_ids(ids))

    async def tails(self, chains: Sequence[str]) -> list[Job | None]:
        """Return the last job of each chain, in input order; None for one that is unknown."""
        return self._own(await self.store.tails([*map(one_line, chains)]))

    async def find(self, query: Query) -> list[Job]:
        """Return the jobs that a query names."""
        return await self.store.find(query)

    async def look(self, key: bytes) -> View:
        """Return the jobs and the mark of a key."""
        return visible(await self.store.look(key), self.namespace)

    def _own(self, jobs: Iterable[Job | None]) -> list[Job | None]:
        return [job if job is not None and job.namespace == self.namespace else None for job in jobs]

    # ── running flows ─────────────────────────────────────────────────────────────────────────────

    async def run_flow(self, flow: Flow[T], connection: Any = None) -> T:
        """Run a flow that yields `Ask`; its steps are applied on the caller's connection, if there is one."""
        found: list[Event] = []

        async def answer(ask: Any) -> list[Any]:
            match ask.verb:
                case "apply":
                    steps = watch(ask.given) if self.hooks.registered else ask.given
                    if connection is None:
                        answers = await self.store.apply(steps)
                    else:
                        answers = await self.transactions().apply_within(connection, steps)
                    found.extend(events_of(steps, answers) if self.hooks.registered else ())
                    return answers
                case "count" if connection is not None:
                    await self.transactions().count_within(connection, ask.given)
                    return []
                case _:
                    return await self._answer(ask)

        result = await drive_async(flow, answer)
        if found:
            await self.hooks.fire(found, connection)
        return result

    def run_flow_sync(self, flow: Flow[T], connection: Any = None) -> T:
        """Blocking variant of `run_flow`."""
        found: list[Event] = []

        def answer(ask: Any) -> list[Any]:
            match ask.verb:
                case "apply":
                    steps = watch(ask.given) if self.hooks.registered else ask.given
                    if connection is None:
                        answers = self.store.apply_sync(steps)
                    else:
                        answers = self.transactions().apply_within_sync(connection, steps)
                    found.extend(events_of(steps, answers) if self.hooks.registered else ())
                    return answers
                case "count" if connection is not None:
                    self.transactions().count_within_sync(connection, ask.given)
                    return []
                case "count":
                    return self._count(ask.given)
                case _:
                    return self.portal.run(self._answer(ask))

        result = drive(flow, answer)
        if found:
            self.hooks.fire_sync(found, connection)
        return result

    async def _answer(self, ask: Ask) -> list[Any]:
        match ask.verb:
            case "get":
                return await self.get(ask.given)
            case "tails":
                return await self.tails(ask.given)
            case "find":
                return await self.find(ask.given)
            case "look":
                return [await self.look(ask.given)]
            case "count":
                return self._count(ask.given)
            case "apply":
                return await self.store.apply(ask.given)

    def _count(self, tallies: Iterable[Tally]) -> list[Any]:
        for tally in tallies:
            self.counters.count(tally)
        return []

    def transactions(self) -> Transactions:
        """Return the store as one that can join a transaction; raise ForeignConnection if it cannot."""
        if not isinstance(self.store, Transactions):
            name = self.store.guarantees.store
            raise ForeignConnection(f"The {name} store has no transactions: leave connection= out.")
        return self.store

    def run_sync(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine from blocking code; raise InvalidCall in the thread of a running event loop."""
        try:
            refuse_running_loop(getattr(coroutine, "__qualname__", "The call"))
        except InvalidCall:
            coroutine.close()
            raise
        return self.portal.run(coroutine)

    # ── closing ───────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        """Write the counters and close the store; using the engine again reopens it."""
        self.is_used = False
        self.counters.flush()
        await self.store.close()
        self.portal.close()

    def close_sync(self) -> None:
        """Blocking variant of `close`."""
        self.is_used = False
        self.counters.flush()
        self.portal.run(self.store.close())
        self.portal.close()

    def close_when_dropped(self) -> None:
        """Close the store also if the engine is only dropped; for a store that no other engine uses."""
        weakref.finalize(self, close_dropped, self.counters, self.store, self.portal).atexit = False


def close_dropped(counters: AbsorbedCounters, store: FullStore, portal: Portal) -> None:
    """Close a store whose engine is gone, in a thread: this is called wherever garbage is collected."""

    def close() -> None:
        with contextlib.suppress(Exception, asyncio.CancelledError):  # no caller is left to tell
            counters.flush()
            asyncio.run(store.close())
        portal.close()  # last: its loop has connections, too

    with contextlib.suppress(RuntimeError):  # the interpreter ends
        threading.Thread(target=close, name="onejob closes a store", daemon=True).start()


def with_reaches(requests: Sequence[Request], own: Mapping[str, Job], namespace: str) -> Flow[list[Request]]:
    """Return requests with whole ids, and with all chains that their blockers wait for."""
    asked: list[Request] = []
    for request in (yield from with_whole_ids(requests, namespace)):
        blocked = request.job.blockers is not None
        asked.append((yield from with_reach(request, own)) if blocked else request)
    return asked


def unknown_job(job_id: str) -> UnknownJob:
    """Return the error for an id that no job of the namespace has."""
    return UnknownJob(f"No job has the id {job_id!r}: it never existed, or it has been pruned.")


def with_reach(request: Request, own: Mapping[str, Job]) -> Flow[Request]:
    """Return a request with all chains that its blockers wait for, by which cycles are found.

    No job waits for a request that takes no other job's place: it needs no reading if the chains are at hand.
    """
    chains = request.job.awaits
    if request.policy is None and own.keys() >= set(chains):
        return request
    reaches = yield from reachable_chains(chains, own)
    return msgspec.structs.replace(request, reaches=reaches)


def names_chains(request: Request) -> bool:
    """Return whether a request names chains, which it waits for or which do not count as holders."""
    return request.job.blockers is not None or bool(request.excludes)


def parts_of(requests: Sequence[Request], connection: Any) -> Iterable[Sequence[Request]]:
    """Return requests in parts that share a commit; those of a caller's transaction are one part."""
    whole = connection is not None or len(requests) <= BATCH
    return [requests] if whole else batches(requests, BATCH)


def batches(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Split a sequence into parts of at most `size`."""
    return (things[start : start + size] for start in range(0, len(things), size))
