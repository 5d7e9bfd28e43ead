"""What the PostgreSQL store asks its database, without asking: generators that yield batches of statements.

A batch is sent together and answered together. Admission hopes first: whatever turns out to be new, or a
duplicate that changes nothing, is settled by one statement. Ends of runs hope that their jobs are still as
they were started. All else is decided under locks: lock whoever stands for the keys, read in the next
statement (one that waited would still see the past), decide, write.

Locks are taken in one order, so that nobody waits for somebody who waits for them: the jobs that are named
(whoever they wait behind first), then running holders, then whoever else stands for a key, then marks; by id
or key within each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

from onejob.errors import OnejobError
from onejob.job import Changes, Job, Mark, View
from onejob.lifecycle import mature
from onejob.stores.book import Book, attempt
from onejob.stores.contract import Lease, Step, Tally
from onejob.stores.sql import flows
from onejob.stores.sql.flows import FOLDED_AT_ONCE, MATURED_AT_ONCE, Ask, Flow, may_let_go, start_in
from onejob.stores.sql.postgres.records import (
    CHANGED,
    WHOLE,
    array,
    read_record,
    record_of_completion,
    record_of_mark,
    record_of_new,
    record_of_tally,
    starts_of,
    update_of,
)
from onejob.stores.sql.postgres.starts import Start, Starts
from onejob.stores.sql.rows import Row, is_plain, micros, read_job, read_mark, write_plain

T = TypeVar("T")
Talk = Generator[Sequence[Ask], list[list[Row]], T]
Now = Callable[[], datetime]


class Moved(Exception):
    """A key changed hands between locking and reading: lock again."""


class Rises(Exception):
    """These running jobs will be written, so they must be locked against everybody."""

    def __init__(self, ids: Collection[str]) -> None:
        super().__init__(ids)
        self.ids = frozenset(ids)


class Later:
    """The answer of a step that could not be settled yet."""


LATER = Later()


class Settled(NamedTuple):
    """What was decided under locks, and what is to be written before they are let go."""

    answers: list[Any]
    writes: list[Ask]


class Patience(NamedTuple):
    """How long to wait for another transaction, and whether to leave out jobs that one has locked."""

    milliseconds: int
    skips_locked: bool = False

    @property
    def text(self) -> str:
        """Write it as the setting `lock_timeout`, where 0 would mean for ever."""
        return str(max(self.milliseconds, 1))


def one_by_one(flow: Flow[T]) -> Talk[T]:
    """Carry on a flow that asks one statement at a time."""
    try:
        ask = next(flow)
        while True:
            [rows] = yield [ask]
            ask = flow.send(rows)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def together(*talks: Talk[None]) -> Talk[None]:
    """Carry on talks side by side: what they ask at the same time makes one batch."""
    asked = [(talk, asks) for talk in talks if (asks := next(talk, None)) is not None]
    while asked:
        answers = iter((yield [ask for _, asks in asked for ask in asks]))
        going = [(talk, answered(talk, [next(answers) for _ in asks])) for talk, asks in asked]
        asked = [(talk, asks) for talk, asks in going if asks is not None]


def answered(talk: Talk[None], answers: list[list[Row]]) -> Sequence[Ask] | None:
    """Answer a talk and hear what it asks next; None if that was all."""
    try:
        return talk.send(answers)
    except StopIteration:
        return None


def preceded(before: Sequence[Ask], talk: Talk[T]) -> Talk[T]:
    """Carry on a talk whose first batch follows statements that nobody needs the answers of."""
    try:
        asks = next(talk)
        answers = (yield [*before, *asks])[len(before) :]
        while True:
            answers = yield talk.send(answers)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


# ── admission, hoping ─────────────────────────────────────────────────────────────────────────────


def admit(steps: Sequence[Step], now: datetime, before: Sequence[Ask] = ()) -> Talk[tuple[list[Any], bool]]:
    """Insert what is new, answer what changes nothing; LATER stands for all else. Tell if a job is new.

    `before` is said first, in the same transaction.
    """
    hopes = dict(hopeful(steps, now))
    if not hopes:
        return answer_all(steps, now, hopes, {})
    jobs = [hope.inserts[0] for hope in hopes.values()]
    plain = len(jobs) == 1 and is_plain(jobs[0])
    rows = (yield [*before, plain_insertion(jobs[0]) if plain else insertion(jobs)])[-1]
    if not rows and len(hopes) == len(steps):
        return [hope.answer for hope in hopes.values()], True
    return answer_all(steps, now, hopes, refusal(jobs[0], rows) if plain else refusals(jobs, rows))


def plain_insertion(job: Job) -> Ask:
    """Ask for one job to be inserted, if its key is free."""
    return Ask("admit_plain", write_plain(job))


def insertion(jobs: Sequence[Job]) -> Ask:
    """Do the same for many."""
    return Ask("admit", (array(map(record_of_new, jobs)),))


def refusal(job: Job, rows: Sequence[Row]) -> dict[str, list[Job]]:
    """Read who stood in a plain job's way, if it was not inserted."""
    return {job.id: [read_job(row) for row in rows if row[0] is not None]} if rows else {}


def refusals(jobs: Sequence[Job], rows: Sequence[Row]) -> dict[str, list[Job]]:
    """Read who stood in the way of jobs that were not inserted, and those of them that were there before."""
    own = {job.id: job for job in jobs}
    return {
        job_id: [own[job_id]] if there else [read_record(record) for record in standing if record is not None]
        for job_id, *standing, there in rows
    }


def answer_all(
    steps: Sequence[Step], now: datetime, hopes: Mapping[int, Changes], refused: Mapping[str, Sequence[Job]]
) -> tuple[list[Any], bool]:
    """Answer each step by what became of its hope, or of those before it."""
    book, unseen = Book(), set[bytes | None]()
    made = {index: take_in(book, unseen, hope, refused) for index, hope in hopes.items()}
    answers: list[Any] = []
    for index, step in enumerate(steps):
        if made.get(index):
            answers.append(hopes[index].answer)
        elif needs_locks(step, unseen) or (answer := foresee(book, step, now)) is LATER:
            answers.append(LATER)
            unseen.add(step.key)  # so that what comes after it comes after it
        else:
            answers.append(answer)
    return answers, any(made.values())


def take_in(
    book: Book, unseen: set[bytes | None], hope: Changes, refused: Mapping[str, Sequence[Job]]
) -> bool:
    """Take a job into the book, or those who stood in its way; tell whether it is there.

    `unseen` takes the keys that changed hands meanwhile, so that nobody was seen to stand for them.
    """
    [job] = hope.inserts
    found = refused.get(job.id)
    if found is None or any(other.id == job.id for other in found):  # by an earlier try, of unknown end
        book.put(job)
        return True
    for other in found:
        book.put(other)
    if not found:
        unseen.add(job.key)
    return False


def hopeful(steps: Sequence[Step], now: datetime) -> Iterator[tuple[int, Changes]]:
    """Yield what the first step of each key would do if nobody stood for that key: make one job."""
    seen: set[bytes | None] = set()
    for index, step in enumerate(steps):
        if not needs_locks(step, seen):
            try:
                changes = step.act(View(now))
            except OnejobError:
                changes = Changes()
            if len(changes.inserts) == 1 and not changes.updates and changes.mark is None:
                yield index, changes
        if step.key is not None:
            seen.add(step.key)


def needs_locks(step: Step, keys: Collection[bytes | None]) -> bool:
    """Tell whether a step reads more than one statement shows, or comes after one that must wait."""
    return step.job_id is not None or step.marks or step.key in keys or step.queue is not None


def foresee(book: Book, step: Step, now: datetime) -> Any:
    """Answer a step that changes nothing; LATER if it would write."""
    wrote: list[Changes] = []
    answer = book.run(step, now, wrote.append)
    return LATER if any(changes.updates or changes.inserts or changes.mark for changes in wrote) else answer


# ── ends of runs, hoping ──────────────────────────────────────────────────────────────────────────


class End(NamedTuple):
    """What a run comes to if nobody has touched its job since it was started, by which transaction."""

    answer: Any
    job: Job
    transaction: str


def foreseen(steps: Sequence[Step], starts: Starts, now: datetime) -> dict[int, End]:
    """Foresee the ends of runs that were started here, but of none that may come after a step on its key."""
    ends: dict[int, End] = {}
    keys: set[bytes | None] = set()
    all_known = True  # whether the keys of all steps so far are
    for index, step in enumerate(steps):
        start = starts.take(step.job_id)
        all_known = all_known and (start is not None or step.job_id is None)
        key = step.key if start is None else start.job.key
        if start is not None and all_known and key not in keys and (end := foreseen_end(step, start, now)):
            ends[index] = end
        if key is not None:
            keys.add(key)
    return ends


def foreseen_end(step: Step, start: Start, now: datetime) -> End | None:
    """Let a step act on a job as it was started; None if it is no plain end, or if others have a say."""
    job = start.job
    if step.alone or job.key != job.held_key or flows.needs_mark(job):
        return None
    changes = attempt(step, View(now, job, None if job.key is None else job))
    if len(changes.updates) != 1 or changes.inserts or changes.deletes or changes.mark is not None:
        return None
    [ended] = changes.updates
    return End(changes.answer, ended, start.transaction) if update_of(job, ended) == "complete_job" else None


def end(ends: Iterable[End]) -> Talk[set[str]]:
    """Write the ends that have come as foreseen, in one batch, and tell whose they are."""
    alike: dict[tuple[str, datetime | None], list[Job]] = {}
    for end in ends:
        alike.setdefault((end.transaction, end.job.finished_at), []).append(end.job)
    _, _, *written, _ = yield [
        Ask("begin"),
        Ask("lock_untouched", (array(job.id for jobs in alike.values() for job in jobs),)),
        *(completion(jobs, finished_at, transaction) for (transaction, finished_at), jobs in alike.items()),
        Ask("commit"),
    ]
    return {job_id for rows in written for (job_id,) in rows}


def completion(jobs: Sequence[Job], finished_at: datetime | None, transaction: str) -> Ask:
    """Ask for jobs to be completed that one transaction has started, if nobody has touched them since."""
    ids = array(job.id for job in jobs)
    results = array(None if job.result is None else job.result.decode() for job in jobs)
    return Ask("complete_untouched", (ids, results, finished_at and micros(finished_at), transaction))


# ── deciding under locks ──────────────────────────────────────────────────────────────────────────


def settle(steps: Sequence[Step], now: Now, patience: Patience, rises: Collection[str] = ()) -> Talk[Settled]:
    """Lock and read what the steps name, run them in order; LATER stands for those whose job is locked.

    The time is read after the locks were waited for: whoever had them may have made what we see now.
    """
    book, shared = Book(), set[str]()
    yield from load(book, shared, steps, patience, rises)
    later = (yield from left_out(book, steps)) if patience.skips_locked else ()
    draft, moment = Draft(book), now()
    answers = [
        LATER if index in later else book.run(step, moment, draft.enter) for index, step in enumerate(steps)
    ]
    if rising := shared & draft.touched:
        raise Rises(rising)
    return Settled(answers, draft.asks())


def left_out(book: Book, steps: Sequence[Step]) -> Talk[set[int]]:
    """Find the steps whose job is not there, or locked by somebody, and those that come after on its key."""
    absent = {step.job_id for step in steps if step.job_id is not None} - book.jobs.keys()
    if not absent:
        return set()
    [rows] = yield [Ask("keys_of", (array(absent),))]
    keys: dict[str, bytes | None] = {job_id: job.key for job_id, job in book.jobs.items()}
    keys |= {job_id: key for job_id, key in rows}  # noqa: C416 - a row is no pair to the type checker
    later, waited_for = set[int](), set[bytes]()
    for index, step in enumerate(steps):
        key = step.key if step.job_id is None else keys.get(step.job_id)
        if step.job_id in absent or key in waited_for:
            later.add(index)
            waited_for |= set() if key is None else {key}
    return later


def load(
    book: Book, shared: set[str], steps: Sequence[Step], patience: Patience, rises: Collection[str]
) -> Talk[None]:
    """Lock and read jobs and keys; `shared` takes those that were locked only against their end."""
    alone = {step.job_id for step in steps if step.job_id is not None and step.alone}
    named = {step.job_id for step in steps if step.job_id is not None and not step.alone} | set(rises)
    skipped = named - set(rises) if patience.skips_locked else set()  # who rises is needed, so waited for
    yield from load_jobs(book, "lock_jobs_alone", alone - named)
    yield from load_jobs(book, "lock_free_jobs", skipped)
    if waited_for := named - skipped:
        yield [Ask("lock_predecessors", (array(waited_for),))]
    yield from load_jobs(book, "lock_jobs", waited_for)
    keys = {book.jobs[job_id].key for job_id in named if job_id in book.jobs}
    keys |= {step.key for step in steps if not step.alone}
    yield from load_keys(book, shared, named, {key for key in keys if key is not None})
    if any(step.queue is not None for step in steps):
        yield from one_by_one(flows.load_depths(book, steps))


def load_jobs(book: Book, lock: str, ids: Collection[str]) -> Talk[None]:
    """Lock jobs by a statement that also gives them as they are then."""
    if ids:
        [rows] = yield [Ask(lock, (array(ids),))]
        for row in rows:
            book.put(read_job(row))


def load_keys(book: Book, shared: set[str], locked: Collection[str], keys: Collection[bytes]) -> Talk[None]:
    """Lock and read whoever else stands for keys, and their marks; `locked` are locked against everybody."""
    held = {key for key in keys if book.held.get(key) in locked}
    others = [key for key in keys if key not in held]
    yield from together(
        load_standing(book, shared, others), load_successors(book, held), load_marks(book, keys)
    )


def load_successors(book: Book, keys: Collection[bytes]) -> Talk[None]:
    """Lock and read who waits behind holders that are locked, so that nobody else can come to wait there."""
    if keys:
        [rows] = yield [Ask("lock_successors", joined(keys))]
        for row in rows:
            book.put(read_job(row))


def load_standing(book: Book, shared: set[str], keys: Collection[bytes]) -> Talk[None]:
    """Lock and read whoever else stands for keys."""
    if not keys:
        return
    mine = set(book.jobs)
    given = joined(keys)
    holders, others, standing = yield [
        Ask("lock_holders", given),
        Ask("lock_standing", given),
        Ask("standing_besides", (*given, array(mine))),
    ]
    shared |= {row[0] for row in holders} - mine
    locked = shared | {row[0] for row in others}
    if any(row[0] not in locked for row in standing):
        raise Moved
    for row in standing:
        book.put(read_job(row))


def load_marks(book: Book, keys: Collection[bytes]) -> Talk[None]:
    """Lock and read the marks of keys, and the jobs that they name."""
    if not keys:
        return
    [rows] = yield [Ask("lock_marks", joined(keys))]
    for row in rows:
        book.note(read_mark(row))
    if rows:
        [named] = yield [Ask("jobs", (array({mark.job for mark in book.marks.values()} - book.jobs.keys()),))]
        for row in named:
            book.put(read_job(row))


def joined(keys: Collection[bytes]) -> tuple[bytes, int]:
    """Write keys as statements take them."""
    return b"".join(keys), len(keys)


class Draft:
    """What steps have changed in all: the end counts, not the way there."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._before: dict[str, Job | None] = {}
        self._after: dict[str, Job | None] = {}
        self._marked = frozenset(book.marks)
        self._marks: dict[bytes, Mark] = {}

    @property
    def touched(self) -> set[str]:
        """The jobs that will be written."""
        return set(self._after)

    def enter(self, changes: Changes) -> None:
        """Add a step's changes, before the book has them."""
        for job in (*changes.updates, *changes.inserts):
            self._before.setdefault(job.id, self._book.jobs.get(job.id))
            self._after[job.id] = job
        for job_id in changes.deletes:
            self._before.setdefault(job_id, self._book.jobs.get(job_id))
            self._after[job_id] = None
        if changes.mark is not None:
            self._marks[changes.mark.key] = changes.mark

    def asks(self) -> list[Ask]:
        """Write it in an order in which no key has two holders: who lets go, who takes, who is new."""
        gone = [job_id for job_id, job in self._after.items() if job is None and self._before[job_id]]
        kept = [(self._before[job.id], job) for job in self._after.values() if job is not None]
        changed = [(old, new) for old, new in kept if old is not None]
        return [
            *([Ask("delete_job", (array(gone),))] if gone else []),
            *updates([(old, new) for old, new in changed if not gains(old, new)]),
            *updates([(old, new) for old, new in changed if gains(old, new)]),
            *some("insert_job", [WHOLE(new) for old, new in kept if old is None]),
            *self._mark_asks(),
        ]

    def _mark_asks(self) -> Iterator[Ask]:
        kept = [mark for mark in self._marks.values() if mark.job]
        yield from some("insert_mark", [record_of_mark(m) for m in kept if m.key not in self._marked])
        yield from some("update_mark", [record_of_mark(m) for m in kept if m.key in self._marked])
        yield from some("drop_mark", [record_of_mark(m) for m in self._marks.values() if not m.job])


def gains(old: Job, new: Job) -> bool:
    """Tell whether a job takes a key, or a place behind one, that it did not have."""
    return (new.held_key is not None and new.held_key != old.held_key) or (
        new.next_key is not None and new.next_key != old.next_key
    )


def updates(pairs: Sequence[tuple[Job, Job]]) -> Iterator[Ask]:
    """Write changed jobs, each by the narrowest statement."""
    changed: dict[str, list[Job]] = {}
    for old, new in pairs:
        changed.setdefault(update_of(old, new), []).append(new)
    for given in starts_of(changed.get("start_job", ())):
        yield Ask("start_job", given)
    yield from some("complete_job", [record_of_completion(job) for job in changed.get("complete_job", ())])
    yield from some("update_job", [CHANGED(job) for job in changed.get("update_job", ())])


def some(name: str, records: Sequence[Any]) -> Iterator[Ask]:
    """Ask a statement for records, if there are any."""
    if records:
        yield Ask(name, (array(records),))


# ── leasing ───────────────────────────────────────────────────────────────────────────────────────


def turn(  # noqa: PLR0917 - the first three are bound beforehand
    steps: Sequence[Step],
    wanted: Lease,
    starts: Starts,
    now: Now,
    patience: Patience,
    rises: Collection[str] = (),
) -> Talk[Settled]:
    """Settle steps, and start what they make room for. Queues are locked first, as by whoever leases."""
    answers, writes = yield from preceded(queue_locks(wanted), settle(steps, now, patience, rises))
    [jobs], begun = yield from preceded(writes, lease(wanted, starts, now))
    return Settled([answers, jobs], begun)


def queue_locks(wanted: Lease) -> list[Ask]:
    """Lock the queues from which starts must be counted."""
    return [Ask("lock_queue", (wanted.namespace, queue)) for queue in wanted.limited]


def lease(wanted: Lease, starts: Starts, now: Now) -> Talk[Settled]:
    """Make due jobs available, then start the best that nobody else is about to start."""
    timed_due = Ask("timed_due", (micros(now()), MATURED_AT_ONCE))
    start = partial(begin, wanted=wanted, now=now)
    locks = queue_locks(wanted)
    counted = bool(wanted.shares or wanted.rates)
    # As is usual, nothing becomes due by time, and only active jobs must be counted: all in one batch.
    answers = yield [*locks, timed_due, *([] if counted else flows.offers(wanted)), Ask("transaction_id")]
    timed, *found, [[transaction]] = answers[len(locks) :]
    candidates = flows.best([read_job(row) for rows in found for row in rows], wanted.total, wanted)
    if timed or counted:
        yield from ripen([read_job(row) for row in timed], now())
        return Settled([(yield from one_by_one(flows.start_best(wanted, now(), start)))], [])
    if not candidates:
        return Settled([[]], [])
    settled = yield from start_all(candidates, wanted, now)
    starts.note(settled.answers[0], transaction)  # should it be rolled back, no row is this transaction's
    return settled


def start_all(candidates: Sequence[Job], wanted: Lease, now: Now) -> Talk[Settled]:
    """Start candidates; if one of them made way for others, those too."""
    book, draft = yield from load_candidates(candidates)
    waiting = len(book.nexts)
    started = start_in(book, candidates, wanted, now(), draft.enter)
    if len(started) == len(candidates) and len(book.nexts) == waiting:
        return Settled([started], draft.asks())
    yield from written(draft)
    start = partial(begin, wanted=wanted, now=now)
    return Settled([(yield from one_by_one(flows.start_best(wanted, now(), start, started)))], [])


def ripen(jobs: Sequence[Job], now: datetime) -> Talk[None]:
    """Make scheduled and retryable jobs available whose time has come."""
    book = Book()
    for job in jobs:
        book.put(job)
    draft = Draft(book)
    for job in jobs:
        draft.enter(mature(View(now, job)))
    yield from written(draft)


def begin(candidates: Sequence[Job], wanted: Lease, now: Now) -> Flow[list[Job]]:
    """Start candidates, which are locked already."""
    book, draft = yield from spread(load_candidates(candidates))
    started = start_in(book, candidates, wanted, now(), draft.enter)
    yield from spread(written(draft))
    return started


def load_candidates(candidates: Sequence[Job]) -> Talk[tuple[Book, Draft]]:
    """Take candidates into a book, and lock and read whoever else their start concerns."""
    book = Book()
    for job in candidates:
        book.put(job)
    fenced = {job.key for job in candidates if job.key is not None and may_let_go(job)}
    yield from load_keys(book, set(), set(book.jobs), fenced)
    return book, Draft(book)


def written(draft: Draft) -> Talk[None]:
    """Write a draft, if there is anything in it."""
    if asks := draft.asks():
        yield asks


def spread(talk: Talk[T]) -> Flow[T]:
    """Carry on a talk one statement at a time."""
    try:
        asks = next(talk)
        while True:
            answers = []
            for ask in asks:
                rows = yield ask
                answers.append(rows)
            asks = talk.send(answers)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def tally(tallies: Sequence[Tally], now: datetime, *, apart: bool = False) -> Talk[None]:
    """Add to the counters of absorbed requests, or leave it to the next to add `apart` from them."""
    records = array(record_of_tally(one, now) for one in tallies)
    yield [Ask("tally_apart" if apart else "tally", (records,))]


def count(tallies: Sequence[Tally], now: datetime) -> Talk[Settled]:
    """Do the same in a transaction of our own."""
    yield from tally(tallies, now)
    return Settled([None], [])


def fold(namespace: str) -> Flow[int]:
    """Add some counters whose jobs are gone to those of no job, and tell how many."""
    [[number]] = yield Ask("fold_tallies", (namespace, FOLDED_AT_ONCE))
    return int(number)
