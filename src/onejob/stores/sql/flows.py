"""What a SQL store does, without doing it: generators that yield statements and receive rows.

An engine drives a whole flow inside one write transaction: SQLite on its writer thread, PostgreSQL with
await, a caller's own connection in the caller's thread.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from onejob.job import Changes, Job, Trait, View
from onejob.lifecycle import mature, rank, start, too_late
from onejob.limits import Rate
from onejob.stores.book import Book, attempt
from onejob.stores.contract import Counts, Filter, Lease, Step, Tally
from onejob.stores.sql.rows import (
    MICROSECOND,
    STATES,
    Row,
    insertion,
    instant,
    micros,
    read_job,
    read_mark,
    read_tally,
    revision,
    write_mark,
)

T = TypeVar("T")
MATURED_AT_ONCE = 1000
LOOKED_PAST = 30  # jobs of crowded partitions at the head of a line, before the others are asked for
FOLDED_AT_ONCE = 1000
EARLIEST = (-(2**62), "")  # before all times and ids


class Ask(NamedTuple):
    """One statement by name; `many` runs it once per row of parameters."""

    name: str
    parameters: Sequence[Any] = ()
    many: bool = False


Flow = Generator[Ask, list[Row], T]
Plan = Callable[[datetime], Flow[Any]]
"""Makes the flow that is to be driven, once the time is known."""

Ledger = list[tuple[str, Any]]
UPDATES = frozenset({"update_job", "start_job", "complete_job"})  # the id is last in their rows
INSERTS = frozenset({"insert_job", "insert_plain_job"})  # and first in these


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────


def apply(steps: Sequence[Step], now: datetime) -> Flow[list[Any]]:
    """Read what the steps name, run them in order, write what they changed."""
    book, ledger = Book(), Ledger()
    yield from load(book, steps)
    answers = [book.run(step, now, partial(enter, book, ledger)) for step in steps]
    yield from write(ledger)
    return answers


def settle(step: Step, now: datetime) -> Flow[Changes]:
    """Do the same for one step, and tell what it changed."""
    book, ledger = Book(), Ledger()
    yield from load(book, [step])
    changes = attempt(step, book.view(step, now))
    enter(book, ledger, changes)
    yield from write(ledger)
    return changes


def foresee(step: Step, now: datetime) -> Flow[Changes]:
    """Tell what a step would change."""
    book = Book()
    yield from load(book, [step])
    return attempt(step, book.view(step, now))


def is_simple(step: Step) -> bool:
    """Tell whether a step is settled by who stands for its key, if it has one, and by nothing else."""
    return not step.marks and step.job_id is None and step.queue is None


def shown(key: bytes, rows: Sequence[Row], now: datetime) -> View:
    """Show who stands for a key, by their rows."""
    holder = successor = None
    for job in map(read_job, rows):
        if job.held_key == key:
            holder = job
        else:
            successor = job
    return View(now, None, holder, successor)


def load(book: Book, steps: Sequence[Step]) -> Flow[None]:
    """Read the jobs and keys that steps name into the book."""
    if ids := {step.job_id for step in steps if step.job_id is not None}:
        yield from load_jobs(book, ids)
    keys: dict[bytes, bool] = {}  # and whether the mark must be shown
    for step in steps:
        if step.key is not None:
            keys[step.key] = step.marks or keys.get(step.key, False)
    # Whatever its own policy, another policy of the key may have marked a job.
    keys |= dict.fromkeys((job.key for job in book.jobs.values() if job.key is not None), True)
    yield from load_standing(book, keys)
    if marks := [key for key, marked in keys.items() if marked]:
        yield from load_marks(book, marks)
    yield from load_depths(book, steps)


def load_standing(book: Book, keys: Collection[bytes]) -> Flow[None]:
    """Read who stands for keys; of those whose holders are in the book already, the successors."""
    if known := [key for key in keys if key in book.held]:
        yield from load_successors(book, known)
    if unknown := [key for key in keys if key not in book.held]:
        yield from load_keys(book, unknown)


def load_depths(book: Book, steps: Sequence[Step]) -> Flow[None]:
    """Count the jobs that wait in the queues which steps name."""
    for queue in {step.queue for step in steps if step.queue is not None}:
        [[depth]] = yield Ask("depth", queue)
        book.depths[queue] = depth


def load_jobs(book: Book, ids: Collection[str]) -> Flow[None]:
    """Read jobs by id."""
    missing = [job_id for job_id in ids if job_id not in book.jobs]
    if missing:
        one = (
            Ask("job", missing)
            if len(missing) == 1
            else Ask("jobs", (msgspec.json.encode(missing).decode(),))
        )
        for row in (yield one):
            book.put(read_job(row))


def load_keys(book: Book, keys: Sequence[bytes]) -> Flow[None]:
    """Read holders and successors of keys."""
    if keys:
        one = (
            Ask("standing", keys) if len(keys) == 1 else Ask("standing_for_all", (b"".join(keys), len(keys)))
        )
        for row in (yield one):
            if row[0] not in book.jobs:
                book.put(read_job(row))


def load_successors(book: Book, keys: Sequence[bytes]) -> Flow[None]:
    """Read the successors of keys whose holders are in the book already."""
    if keys:
        for row in (yield Ask("successors_for_all", (b"".join(keys), len(keys)))):
            if row[0] not in book.jobs:
                book.put(read_job(row))


def load_marks(book: Book, keys: Sequence[bytes]) -> Flow[None]:
    """Read the marks of keys, and the jobs that they name."""
    if keys:
        for row in (yield Ask("marks", (b"".join(keys), len(keys)))):
            book.note(read_mark(row))
    yield from load_jobs(book, {mark.job for mark in book.marks.values()})


def needs_mark(job: Job) -> bool:
    """Tell whether the job's policy remembers the newest request of its key."""
    return job.version is not None or bool(job.traits & Trait.NEWEST_WINS)


def enter(book: Book, ledger: Ledger, changes: Changes) -> None:
    """Add a step's changes to what will be written."""
    for job in changes.updates:
        ledger.append(revision(book.jobs.get(job.id), job))
        ledger += waits(book.jobs.get(job.id), job)
    for job in changes.inserts:
        ledger.append(insertion(job))
        if job.blockers is not None:
            ledger += waits(None, job)
    for job_id in changes.deletes:
        ledger.append(("delete_job", (job_id,)))
        ledger += waits(book.jobs.get(job_id), None)
    if changes.mark is not None:
        mark = changes.mark
        ledger.append(("write_mark", write_mark(mark)) if mark.job else ("drop_mark", (mark.key,)))


def waits(old: Job | None, new: Job | None) -> Ledger:
    """List what changes in the table of who waits for a chain, which is the jobs' blockers turned round."""
    before, after = old and old.blockers, new and new.blockers
    named = new or old
    if before == after or named is None:
        return []
    gone: Ledger = [("drop_waits", (named.id,))] if before else []
    return gone + ([("insert_waits", (named.id, after))] if after else [])


def write(ledger: Ledger) -> Flow[None]:
    """Write the ledger in its order; neighbours of one kind go together."""
    for name, entries in groupby(arranged(ledger), key=itemgetter(0)):
        rows = [row for _, row in entries]
        yield Ask(name, rows[0]) if len(rows) == 1 else Ask(name, rows, many=True)


def arranged(ledger: Ledger) -> Ledger:
    """Let inserts come after updates, if no job is written twice: whoever takes a key still finds it free."""
    updates = [entry for entry in ledger if entry[0] in UPDATES]
    inserts = [entry for entry in ledger if entry[0] in INSERTS]
    written = {row[-1] for _, row in updates} | {row[0] for _, row in inserts}
    return updates + inserts if len(written) == len(ledger) else ledger


# ── leasing ───────────────────────────────────────────────────────────────────────────────────────


def lease(wanted: Lease, now: datetime) -> Flow[list[Job]]:
    """Make due jobs available, then start the best of them."""
    yield from ripen(now)
    return (yield from start_best(wanted, now, partial(begin, wanted=wanted, now=now)))


def turn(steps: Sequence[Step], wanted: Lease, now: datetime) -> Flow[tuple[list[Any], list[Job]]]:
    """Run steps, then start what they make room for."""
    answers = yield from apply(steps, now)
    return answers, (yield from lease(wanted, now))


def start_best(
    wanted: Lease,
    now: datetime,
    begin: Callable[[Sequence[Job]], Flow[list[Job]]],
    before: Sequence[Job] = (),
) -> Flow[list[Job]]:
    """Start the best of what is due, until there is no room or nothing left."""
    started = list(before)
    while len(started) < wanted.total:
        candidates = yield from due(wanted, started, now)
        if not candidates:
            break
        begun = yield from begin(candidates)
        yield from note_starts(begun, wanted, now)
        started += begun
    return started


def ripen(now: datetime) -> Flow[None]:
    """Make scheduled and retryable jobs available when their time has come."""
    rows = yield Ask("timed_due", (micros(now), MATURED_AT_ONCE))
    book, ledger = Book(), Ledger()
    for row in rows:
        enter(book, ledger, mature(View(now, read_job(row))))
    yield from write(ledger)


def due(wanted: Lease, started: Sequence[Job], now: datetime) -> Flow[list[Job]]:
    """Read the best available jobs, as many as each queue has room for."""
    found: list[Job] = []
    for queue in wanted.queues:
        room = yield from room_in(queue, wanted, started, now)
        if room > 0 and queue in wanted.shares:
            found += yield from fair_share(queue, room, wanted)
        elif room > 0:
            found += yield from first_in_line(queue, room, wanted)
    return best(found, wanted.total - len(started), wanted)


def first_in_line(queue: str, room: int, wanted: Lease) -> Flow[list[Job]]:
    """Read the best available jobs of a queue."""
    tasks = names(sorted(wanted.tasks))
    rows = yield Ask("available_in_queue", (wanted.namespace, queue, tasks, room))
    return [read_job(row) for row in rows]


def fair_share(queue: str, room: int, wanted: Lease) -> Flow[list[Job]]:
    """Read the best available jobs of a queue whose partitions have room.

    Most often they stand at the head of the line; if a crowded partition fills that, the others are asked
    for one by one, so that nobody has to read through the crowd.
    """
    most, ahead = wanted.shares[queue], 2 * room + LOOKED_PAST
    rows = yield Ask("active_in_shares", (wanted.namespace, queue))
    taken: dict[str, int] = {name: number for name, number in rows}  # noqa: C416 - a row is a sequence
    line = yield from first_in_line(queue, ahead, wanted)
    if len(found := with_room(line, taken, most)[:room]) == room or len(line) < ahead:
        return found
    crowded = names(name for name, number in taken.items() if number >= most)
    surplus = sum(number for number in taken.values() if number < most)
    given = (wanted.namespace, queue, names(sorted(wanted.tasks)), crowded, most, room + surplus)
    rows = yield Ask("available_in_shares", given)
    return with_room([read_job(row) for row in rows], taken, most)[:room]


def with_room(line: Iterable[Job], active: Mapping[str, int], most: int) -> list[Job]:
    """Keep those jobs whose partition has room for them and for those before them."""
    taken, kept = Counter(active), list[Job]()
    for job in line:
        if not job.partition or taken[job.partition] < most:
            kept.append(job)
            taken[job.partition or ""] += 1
    return kept


def offers(wanted: Lease) -> list[Ask]:
    """Ask for the best available jobs of queues, as many as their limits allow."""
    return [
        offer(queue, min(room, wanted.total), wanted) for queue, room in wanted.queues.items() if room > 0
    ]


def offer(queue: str, room: int, wanted: Lease) -> Ask:
    """Ask for the best available jobs of one queue."""
    given = (wanted.namespace, queue, names(sorted(wanted.tasks)), room)
    if queue in wanted.limits:
        return Ask("available_in_limit", (*given, wanted.limits[queue]))
    return Ask("available_in_queue", given)


def best(found: list[Job], room: int, wanted: Lease) -> list[Job]:
    """Choose the best of what several queues offer; one queue offers its own in order."""
    return found if len(found) <= room and len(wanted.queues) == 1 else heapq.nsmallest(room, found, key=rank)


def room_in(queue: str, wanted: Lease, started: Sequence[Job], now: datetime) -> Flow[int]:
    """Count how many more jobs of a queue may start."""
    taken = sum(job.queue == queue for job in started)
    room = min(wanted.queues[queue] - taken, wanted.total - len(started))
    if queue in wanted.limits and room > 0:
        [[active]] = yield Ask("active_in_queue", (wanted.namespace, queue))
        room = min(room, wanted.limits[queue] - active)
    if queue in wanted.rates and room > 0:
        rate = wanted.rates[queue]
        yield Ask("forget_starts", (wanted.namespace, queue, micros(now - rate.per)))
        [[begun]] = yield Ask("starts_in_queue", (wanted.namespace, queue))
        room = min(room, rate.times - begun)
    return room


def note_starts(begun: Sequence[Job], wanted: Lease, now: datetime) -> Flow[None]:
    """Write down when jobs of queues with a rate have started."""
    for job in begun:
        if job.queue in wanted.rates:
            yield Ask("insert_start", (job.namespace, job.queue, micros(job.started_at or now)))


def begin(candidates: Sequence[Job], wanted: Lease, now: datetime) -> Flow[list[Job]]:
    """Start the candidates, best first, up to one that lets its successor in: that may be better."""
    book, ledger = Book(), Ledger()
    for job in candidates:
        book.put(job)
    fenced = [job.key for job in candidates if job.key is not None and may_let_go(job)]
    yield from load_keys(book, fenced)
    yield from load_marks(book, fenced)
    started = start_in(book, candidates, wanted, now, partial(enter, book, ledger))
    yield from write(ledger)
    return started


def start_in(
    book: Book, candidates: Sequence[Job], wanted: Lease, now: datetime, record: Callable[[Changes], None]
) -> list[Job]:
    """Start candidates in the book, best first, up to one that ends or that lets its successor in.

    Whoever comes next may be better than the next candidate. Neighbours that are too late end together.
    """
    act = partial(start, worker=wanted.worker, lease=wanted.duration)
    started: list[Job] = []
    late = False
    for job in candidates:
        if late and not too_late(job, now):
            break
        waiting = len(book.nexts)
        leased = book.run(Step(act, job.id), now, record)
        started.extend([leased] if leased is not None else [])
        late = leased is None and too_late(job, now)
        if not late and (leased is None or len(book.nexts) < waiting):
            break
    return started


def may_let_go(job: Job) -> bool:
    """Tell whether starting this job may free its key or end it."""
    return needs_mark(job) or bool(job.traits & Trait.RELEASES_AT_START) or job.expires_at is not None


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def look(key: bytes, now: datetime) -> Flow[View]:
    """Show who stands for a key."""
    book = Book()
    yield from load_keys(book, [key])
    yield from load_marks(book, [key])
    return book.view(Step(lambda _: Changes(), key=key), now)


def get(ids: Sequence[str]) -> Flow[list[Job | None]]:
    """Read jobs by id."""
    book = Book()
    yield from load_jobs(book, set(ids))
    return [book.jobs.get(job_id) for job_id in ids]


def tails(chains: Sequence[str]) -> Flow[list[Job | None]]:
    """Read the last job of each chain."""
    rows = yield Ask("tails", (names(chains),))
    last = {job.chain_id: job for job in map(read_job, rows)}
    return [last.get(chain) for chain in chains]


def settings(namespace: str, kind: str) -> Flow[dict[str, bytes]]:
    """Read what was decided at run time."""
    rows = yield Ask("settings", (namespace, kind))
    return {name: bytes(value) for name, value in rows}


def put_setting(namespace: str, kind: str, name: str, value: bytes | None) -> Flow[None]:
    """Write one such decision, or take it back."""
    given = (namespace, kind, name)
    yield Ask("drop_setting", given) if value is None else Ask("put_setting", (*given, value))


def find(wanted: Filter) -> Flow[list[Job]]:
    """List jobs, by the statement that has an index for what is asked."""
    rows = yield question(wanted)
    return [job for job in map(read_job, rows) if wanted.namespace in {None, job.namespace}]


def question(wanted: Filter) -> Ask:
    """Choose the statement for a filter."""
    if wanted.key is not None:
        given = (wanted.key, names(wanted.states) if wanted.states else None, wanted.queue, wanted.task)
        return Ask("find_by_key", (*given, wanted.held, wanted.newest_first, wanted.limit, wanted.offset))
    if wanted.leased_until is not None:
        return Ask("find_expired", (micros(wanted.leased_until), wanted.limit))
    if wanted.late_by is not None:
        return Ask("find_late", (micros(wanted.late_by), wanted.limit, wanted.offset))
    if wanted.ended_before is not None:
        return ended(wanted, wanted.ended_before)
    if wanted.returns_by is not None:
        whose = (wanted.namespace, wanted.task, micros(wanted.returns_by))
        return Ask("find_returning", (*whose, wanted.limit, wanted.offset))
    if wanted.stranded:
        return Ask("find_stranded", (wanted.limit,))
    if wanted.awaits:
        chains = names(wanted.awaits)
        return Ask("find_awaiting", (chains, wanted.newest_first, wanted.limit, wanted.offset))
    if wanted.blocked:
        return Ask("find_blocked", (wanted.newest_first, wanted.limit, wanted.offset))
    if wanted.newest_first and wanted == Filter(
        namespace=wanted.namespace, limit=wanted.limit, offset=wanted.offset
    ):
        return Ask("find_newest", (wanted.namespace, wanted.limit, wanted.offset))
    return Ask(
        "find",
        (
            wanted.namespace,
            names(wanted.states) if wanted.states else None,
            wanted.queue,
            wanted.task,
            wanted.held,
            wanted.chain_id,
            wanted.newest_first,
            wanted.limit,
            wanted.offset,
        ),
    )


def ended(wanted: Filter, before: datetime) -> Ask:
    """Ask for what has ended, by when it did."""
    [state] = wanted.states
    end = (micros(before), "")
    beyond = None if wanted.beyond is None else (micros(wanted.beyond[0]), wanted.beyond[1])
    rest = (wanted.task, names(wanted.besides), wanted.limit, wanted.offset)
    if wanted.newest_first:
        return Ask("find_ended_newest", (wanted.namespace, str(state), *min(end, beyond or end), *rest))
    return Ask("find_ended", (wanted.namespace, str(state), end[0], *(beyond or EARLIEST), *rest))


def names(some: Iterable[str]) -> str:
    """Write names as a JSON list, as statements read it."""
    return msgspec.json.encode([str(name) for name in some]).decode()


def counts(namespace: str) -> Flow[Counts]:
    """Count jobs and the keys that wait."""
    rows = yield Ask("counts", (namespace,))
    [[waiting]] = yield Ask("keys_waiting", (namespace,))
    return Counts({(queue, task, STATES[state]): number for queue, task, state, number in rows}, waiting)


def tally(tallies: Sequence[Tally], now: datetime) -> Flow[None]:
    """Add to the counters of absorbed requests."""
    rows = [(t.namespace, t.task, t.outcome, t.job_id, t.count, micros(now)) for t in tallies]
    yield Ask("tally", rows, many=True)


def tallies(namespace: str) -> Flow[list[Tally]]:
    """Read the counters of absorbed requests."""
    rows = yield Ask("tallies", (namespace,))
    return [read_tally(row) for row in rows]


def orphans(namespace: str) -> Flow[list[Row]]:
    """Read some counters whose jobs are gone."""
    rows = yield Ask("orphan_tallies", (namespace, FOLDED_AT_ONCE))
    return rows


def fold(counters: Sequence[Row]) -> Flow[None]:
    """Add counters to those of no job."""
    for counter in counters:
        yield Ask("fold_tally", counter)
    yield Ask("drop_tally", counters, many=True)


def next_due(namespace: str, rates: Mapping[str, Rate] | None, now: datetime) -> Flow[datetime | None]:
    """Tell when the next timed job is due, or a queue may start one again."""
    [[run_at]] = yield Ask("next_due", (namespace,))
    times = [] if run_at is None else [run_at]
    for queue, rate in (rates or {}).items():
        given = (namespace, queue, micros(now - rate.per), rate.times - 1)
        for [at] in (yield Ask("decisive_start", given)):
            times.append(at + rate.per // MICROSECOND)
    return instant(min(times, default=None))


def anything_due(wanted: Lease, now: datetime) -> Flow[bool]:
    """Tell whether leasing is worth a write transaction."""
    given: tuple[Any, ...] = (wanted.namespace, micros(now))
    if not wanted.limited:
        [[found]] = yield Ask("anything_due", given)
        return bool(found)
    limits = {queue: wanted.limits.get(queue) for queue, room in wanted.queues.items() if room > 0}
    [[found]] = yield Ask("anything_startable", (*given, msgspec.json.encode(limits).decode()))
    return bool(found)


def drive(flow: Flow[T], run: Callable[[Ask], list[Row]]) -> T:
    """Run a flow to its end with a function that runs statements."""
    try:
        ask = next(flow)
        while True:
            ask = flow.send(run(ask))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
