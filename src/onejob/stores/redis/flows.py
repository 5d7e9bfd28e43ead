"""What the store does, without doing it: generators that yield questions and receive answers.

A step is decided here, on what was seen, and written by the `swap` script only if that is still so. What was
seen may be a guess: a new request guesses that nobody stands for its key, the end of a run that nothing has
changed since its start. A wrong guess costs one more round, for the script answers with what is there.
"""

from __future__ import annotations

import random
import struct
from collections import Counter as Tally
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from operator import itemgetter
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec

from onejob.errors import AdmissionBusy, OnejobError
from onejob.job import TERMINAL, UNSTARTED, WAITING, Changes, Job, Mark, State, Trait, View
from onejob.lifecycle import mature, start, too_late
from onejob.stores.book import Book
from onejob.stores.contract import Lease, Step
from onejob.stores.redis import layout
from onejob.stores.redis.layout import TIMED, Bucket, Command, Counter, frame, micros
from onejob.stores.redis.offers import Offers, fits, told
from onejob.stores.redis.records import REVISION, Seen, read_job, read_mark, write_job, write_mark

T = TypeVar("T")

WRITTEN, BEFORE, FULL = 1, 2, 3  # what `swap` answers, besides what is there
MOSTLY, FADING = 0.75, 0.9  # when to look before guessing that a key is free, and how soon that is forgotten
FIRST, AGAIN = b"0", b"1"  # whether a script was sent before
DEPTHS = (b"0", b"1", b"2")  # how much of a key is shown
WRITING = frozenset({"admit", "swap"})  # scripts that must know that
GROUPS = 100  # in one script at most: the server does nothing else meanwhile
MATURED_AT_ONCE = 1000
TURN, TURN_USED = 5000, 4000  # milliseconds for which a turn is given, and within which it is used
CLAIM = timedelta(seconds=5)  # how long a job is set aside for one who decides whether to start it
REMEMBERED = 10_000  # runs whose last sight is kept, to guess by

COMMANDS = {"HSET": 1, "HDEL": 2, "ZADD": 3, "ZREM": 4}  # as `swap` knows them
RINGING = TERMINAL | TIMED | {State.AVAILABLE}  # states that somebody may wait for


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One question to a bucket: a script by name, or a plain command."""

    bucket: int
    words: list[Any] | tuple[Any, ...]
    script: str | None = None
    keys: tuple[bytes, ...] = ()

    def again(self) -> Ask:
        """Make the same question, for when nobody knows whether it came through."""
        if self.script not in WRITING:
            return self
        return msgspec.structs.replace(self, words=(AGAIN, *self.words[1:]))


Flow = Generator["Ask | Iterable[Ask]", Any, T]
"""Yields one question and receives its answer, or several and a list of answers."""

Clock = Callable[[], datetime]


# ── what was seen ─────────────────────────────────────────────────────────────────────────────────


class Sight(msgspec.Struct, eq=False):
    """Jobs and a key as they were seen, or are guessed to be."""

    jobs: dict[str, Seen] = msgspec.field(default_factory=dict)
    held: str | None = None
    next: str | None = None
    mark: bytes | None = None
    place: Bucket | None = None
    actual: bool = False  # whether the store has shown it

    def view(self, step: Step, now: datetime) -> View:
        """Show a step what it names, as `Book.view` does."""
        job = None if step.job_id is None else self.job(step.job_id)
        if (step.key if job is None else job.key) is None:
            return View(now, job)
        holder = None if self.held is None else self.job(self.held)
        successor = None if self.next is None else self.job(self.next)
        if self.mark is None:
            return View(now, job, holder, successor)
        mark = read_mark(self.mark)
        return View(now, job, holder, successor, mark, self.job(mark.job))

    def job(self, job_id: str) -> Job | None:
        """Give a job that was seen."""
        seen = self.jobs.get(job_id)
        return None if seen is None else seen.job

    def book(self) -> Book:
        """Make the working copy, for steps that must see what others before them change."""
        book = Book()
        for seen in self.jobs.values():
            book.put(seen.job)
        if self.mark is not None:
            book.note(read_mark(self.mark))
        return book

    def revision(self, job_id: str | None) -> bytes:
        """Tell the revision that a job is expected to have."""
        seen = None if job_id is None else self.jobs.get(job_id)
        return b"-" if seen is None else seen.revision

    def pointer(self, job_id: str | None) -> bytes:
        """Tell who is expected to stand for the key, and in which revision."""
        return framed(None if job_id is None else job_id.encode()) + self.revision(job_id)


def framed(text: bytes | None) -> bytes:
    """Write text with its length, as the script does."""
    return b"-" if text is None else b"%d:%b" % (len(text), text)


def read_sight(place: Bucket, reply: Sequence[Any]) -> Sight:
    """Read what the script has shown."""
    records, held, holder, following, successor, mark, marked = reply
    jobs: dict[str, Seen] = {}
    for record in (*records, holder, successor, marked):
        if record is not None:
            seen = read_job(record)
            jobs.setdefault(seen.job.id, seen)
    return Sight(jobs, held and held.decode(), following and following.decode(), mark, place, actual=True)


NONE: Mapping[Any, Any] = MappingProxyType({})
NOTHING = Sight()  # never changed: what a request guesses
UNSEEN = (b"", b"----", b"-----")  # what the script writes where nothing is, by how much is shown


def new_revision() -> bytes:
    """Make a revision that no other write has."""
    return random.getrandbits(8 * REVISION).to_bytes(REVISION, "big")


class Memory:
    """What was last seen of jobs that run here, so that the next step can guess."""

    __slots__ = ("_sights",)

    def __init__(self) -> None:
        self._sights: dict[str, Sight] = {}

    def recall(self, job_id: str) -> Sight | None:
        """Tell what a job looked like, once: whoever uses a guess learns the truth."""
        return self._sights.pop(job_id, None)

    def keep(self, job_id: str, sight: Sight) -> None:
        """Remember what a job looks like; the oldest memories fade."""
        self._sights[job_id] = sight
        if len(self._sights) > REMEMBERED:
            self._sights.pop(next(iter(self._sights)), None)


# ── where flows work ──────────────────────────────────────────────────────────────────────────────


class Ground:
    """The buckets, the clock, what is remembered, and what to say when something is due."""

    def __init__(self, prefix: str, buckets: int, clock: Clock, patience: float) -> None:
        self.prefix = prefix
        self.buckets = [Bucket(prefix, number) for number in range(buckets)]
        self.clock = clock
        self.patience = patience  # seconds in which a step must win its race
        self.channel = f"{prefix}:bell".encode()
        self.voice = random.randbytes(8).hex().encode()  # noqa: S311 - a label
        self.memory = Memory()
        self.offers = Offers()
        self.absorbed = 0.0  # how many of the last requests were duplicates, as a share

    def home(self, token: bytes | str) -> Bucket:
        """Tell the bucket of a key, or of a job by its id."""
        return self.buckets[layout.number(token) % len(self.buckets) if len(self.buckets) > 1 else 0]


# ── groups: steps that share a key or a job ───────────────────────────────────────────────────────


def depth_of(step: Step) -> int:
    """Tell how much of its key a step must be shown: nothing, who stands for it, or its mark too."""
    return 0 if step.alone else 2 if step.marks or step.job_id is not None else 1


class Group:
    """Steps on one key or one job, which are decided together and written together."""

    __slots__ = ("answers", "depth", "depths", "ids", "key", "limits", "open", "rates", "sight", "steps")

    def __init__(self, key: bytes | None) -> None:
        self.key = key
        self.ids: tuple[str, ...] = ()
        self.steps: tuple[tuple[int, Step], ...] = ()
        self.depth = 0
        self.sight = NOTHING
        self.limits: tuple[tuple[bytes, int, int], ...] = ()  # counter, limit, and what is to be added
        self.rates: Mapping[bytes, int] = NONE  # set of starts, and how many it may have
        self.open: tuple[str, str] | None = None  # a queue that must not be paused, after its namespace
        self.depths: dict[tuple[str, str], int] | None = None  # of the queues that steps name
        self.answers: Sequence[Any] = ()

    def add(self, position: int, step: Step) -> None:
        """Take in a step."""
        self.steps += ((position, step),)
        if step.job_id is not None and step.job_id not in self.ids:
            self.ids += (step.job_id,)
        self.depth = max(self.depth, depth_of(step))

    def show(self, sight: Sight) -> None:
        """Take in what was seen of one more of the jobs."""
        if len(self.ids) < 2:  # noqa: PLR2004 - the first one
            self.sight = sight
        else:
            actual = self.sight.actual and sight.actual
            self.sight = Sight(
                self.sight.jobs | sight.jobs, sight.held, sight.next, sight.mark, sight.place, actual
            )

    def expected(self) -> bytes:
        """Write what is expected to be there, as the script writes what is."""
        sight = self.sight
        if sight is NOTHING:
            return UNSEEN[self.depth if self.key is not None else 0]
        parts = [sight.revision(job_id) for job_id in self.ids]
        if self.depth > 0 and self.key is not None:
            parts += [sight.pointer(sight.held), sight.pointer(sight.next)]
            if self.depth > 1:
                parts.append(framed(sight.mark))
        return b"".join(parts)


class Trace(msgspec.Struct, frozen=True):
    """By what a write is known when it is answered, and what there will then be to see."""

    place: Bucket
    revision: bytes = b""
    after: Sight | None = None


class Plan(msgspec.Struct, frozen=True):
    """What deciding a group has come to: what to write, and what will be left of it."""

    trace: Trace
    fresh: Sequence[bytes] = ()
    commands: Sequence[Command] = ()
    counters: Sequence[tuple[Counter, int]] = ()
    rings: bool = False


def decide(group: Group, ground: Ground, now: datetime) -> Plan:
    """Run a group's steps on what was seen, and collect what must be written."""
    return plan_of(group, run(group, now), ground)


def decide_in_order(groups: Sequence[Group], ground: Ground, now: datetime) -> dict[Group, Plan]:
    """Decide groups whose steps compete for places in a queue: whoever comes first gets the last one."""
    books = {group: group.sight.book() for group in groups}
    changes: dict[Group, list[Changes]] = {group: [] for group in groups}
    answers: dict[Group, list[Any]] = {group: [] for group in groups}
    steps = [(position, step, group) for group in groups for position, step in group.steps]
    for _, step, group in sorted(steps, key=itemgetter(0)):
        book = books[group]
        book.depths = group.depths or {}
        answers[group].append(book.run(step, now, changes[group].append))
    for group in groups:
        group.answers = answers[group]
    return {group: plan_of(group, changes[group], ground) for group in groups}


def plan_of(group: Group, changes: Sequence[Changes], ground: Ground) -> Plan:
    """Collect what must be written."""
    sight = group.sight
    if sight is NOTHING and len(changes) == 1 and is_entry(changes[0]):
        [job] = changes[0].inserts
        return insertion(job, changes[0].mark, ground.home(job.key or job.id))
    written: dict[str, Job | None] = {}
    mark = None
    for one in changes:
        for job in (*one.updates, *one.inserts):
            written[job.id] = job
        for job_id in one.deletes:
            written[job_id] = None
        mark = one.mark or mark
    place = sight.place or ground.home(group.key or next(iter(written), ""))
    return compare(group, written, mark, place) if written or mark else Plan(Trace(place))


def run(group: Group, now: datetime) -> list[Changes]:
    """Run a group's steps, and tell what they change; several of them on a copy that follows along."""
    changes: list[Changes] = []
    if len(group.steps) > 1:
        book = group.sight.book()
        group.answers = [book.run(step, now, changes.append) for _, step in group.steps]
    else:
        [(_, step)] = group.steps
        changes.append(act(step, group.sight.view(step, now)))
        group.answers = [changes[0].answer]
    return changes


def act(step: Step, view: View) -> Changes:
    """Run one step; a refusal changes nothing and is the answer."""
    try:
        return step.act(view)
    except OnejobError as refusal:
        return Changes(refusal)


def is_entry(changes: Changes) -> bool:
    """Tell whether all that is to be written is one new job, which waits for nobody of its key."""
    if len(changes.inserts) != 1 or changes.updates or changes.deletes:
        return False
    [job] = changes.inserts
    return job.state in WAITING and job.next_key is None


def insertion(job: Job, mark: Mark | None, place: Bucket) -> Plan:
    """Write a job where nothing is."""
    name = job.id.encode()
    commands: list[Command] = [("HSET", place.jobs, name, write_job(job, new_revision()))]
    if job.held_key is not None:
        commands.append(("HSET", place.held, job.held_key, name))
    if mark is not None and mark.job:
        commands.append(("HSET", place.marks, mark.key, write_mark(mark)))
    commands += [("ZADD", index, *entry) for index, entry in layout.entries(place, job, name).items()]
    counters = [(counter, 1) for counter in layout.counters(place, job)]
    return Plan(Trace(place), (name,), commands, counters, job.state in RINGING)


def compare(group: Group, written: Mapping[str, Job | None], mark: Mark | None, place: Bucket) -> Plan:
    """Collect what must be written to get from what was seen to this."""
    sight, revision = group.sight, new_revision()
    commands: list[Command] = []
    counted: dict[Counter, int] = {}
    fresh, rings = [], False
    for job_id, job in written.items():
        old, name = sight.job(job_id), job_id.encode()
        if job is old:
            continue
        if job is None:
            commands.append(("HDEL", place.jobs, name))
        else:
            commands.append(("HSET", place.jobs, name, write_job(job, revision)))
            rings = rings or job.state in RINGING
        if old is None:
            fresh.append(name)
        commands += layout.moves(place, old, job, name)
        recount(place, old, job, counted)
    after = then(group, written, mark, revision, place)
    if group.key is not None:
        turn(commands, place.held, group.key, (sight.held, after.held))
        turn(commands, place.next, group.key, (sight.next, after.next))
        turn(commands, place.marks, group.key, (sight.mark, after.mark))
    counters = [one for one in counted.items() if one[1]]
    trace = Trace(place, revision, after if group.ids else None)
    return Plan(trace, fresh, commands, counters, rings)


def recount(place: Bucket, old: Job | None, new: Job | None, counted: dict[Counter, int]) -> None:
    """Add what a change does to the counters."""
    for job, by in ((old, -1), (new, 1)):
        if job is not None:
            for counter in layout.counters(place, job):
                counted[counter] = counted.get(counter, 0) + by


def then(
    group: Group, written: Mapping[str, Job | None], mark: Mark | None, revision: bytes, place: Bucket
) -> Sight:
    """Tell what there will be to see when all is written; what was not shown stays as it is."""
    sight = group.sight
    after = Sight(dict(sight.jobs), sight.held, sight.next, sight.mark, place)
    if group.depth > 0:
        after.held = None if after.held in written else after.held
        after.next = None if after.next in written else after.next
    if group.depth > 1 and mark is not None:
        after.mark = write_mark(mark) if mark.job else None  # one without a job is dropped
    for job_id, job in written.items():
        if job is None:
            after.jobs.pop(job_id, None)
            continue
        if job is not sight.job(job_id):
            after.jobs[job_id] = Seen(revision, job)
        if group.depth > 0 and job.held_key is not None:
            after.held = job_id
        if group.depth > 0 and job.next_key is not None:
            after.next = job_id
    return after


def turn(commands: list[Command], name: bytes, key: bytes, values: tuple[Any, Any]) -> None:
    """Write what a key has in a hash, or take it away, if it has changed."""
    old, new = values
    if new is None and old is not None:
        commands.append(("HDEL", name, key))
    elif new != old:
        commands.append(("HSET", name, key, new.encode() if isinstance(new, str) else new))


# ── applying ──────────────────────────────────────────────────────────────────────────────────────


def apply(steps: Sequence[Step], ground: Ground) -> Flow[list[Any]]:
    """Decide steps in order and write what they change."""
    if len(steps) == 1 and steps[0].job_id is None and steps[0].queue is None:
        return admit(steps[0], ground)
    return apply_together(steps, ground)


def apply_together(steps: Sequence[Step], ground: Ground) -> Flow[list[Any]]:
    """Apply steps; those on one key or job are one group."""
    groups = yield from arrange(steps, ground)
    queues = {step.queue for step in steps if step.queue is not None}
    if queues:
        yield from see_first(groups, ground)
    yield from commit(groups, ground, queues)
    answers: list[Any] = [None] * len(steps)
    for group in groups:
        for (position, _), answer in zip(group.steps, group.answers, strict=True):
            answers[position] = answer
    return answers


def see_first(groups: Sequence[Group], ground: Ground) -> Flow[None]:
    """See who stands for keys, where a wrong guess would take a place in a queue from somebody else."""
    unseen = [(group, group.key) for group in groups if group.sight is NOTHING and group.key is not None]
    asks = [standing(key, group.depth, ground.home(key)) for group, key in unseen]
    replies = (yield asks) if asks else []
    for (group, key), reply in zip(unseen, replies, strict=True):
        group.sight = read_sight(ground.home(key), reply)


def count_waiting(queues: Collection[tuple[str, str]], ground: Ground) -> Flow[dict[tuple[str, str], int]]:
    """Count the jobs that wait in queues."""
    waiting = dict.fromkeys(queues, 0)
    for reply in (yield [Ask(place.number, ("HGETALL", place.counts)) for place in ground.buckets]):
        for name, number in zip(reply[::2], reply[1::2], strict=True):
            namespace, queue, _task, state, _held = msgspec.json.decode(name)
            if (namespace, queue) in waiting and state in UNSTARTED:
                waiting[namespace, queue] += int(number)
    return waiting


def admit(step: Step, ground: Ground) -> Flow[list[Any]]:
    """Apply one request, the shortest way: as if nobody stood for its key, unless somebody mostly does."""
    sight = NOTHING
    if step.key is not None and ground.absorbed > MOSTLY:
        place = ground.home(step.key)
        sight = read_sight(place, (yield standing(step.key, depth_of(step), place)))
    if not (sight.held or sight.next or sight.mark):
        changes = act(step, View(ground.clock()))
        if not is_entry(changes):
            return (yield from apply_together([step], ground))
        ask = entry(step, changes, ground)
        reply = yield ask
        if isinstance(reply, int):
            ground.absorbed *= FADING
            return [changes.answer]
        sight = read_sight(ground.buckets[ask.bucket], reply)
    changes = act(step, sight.view(step, ground.clock()))
    if changes.updates or changes.inserts or changes.deletes or changes.mark:
        return (yield from meet(step, sight, ground))
    ground.absorbed = ground.absorbed * FADING + (1 - FADING)
    return [changes.answer]


def standing(key: bytes, depth: int, place: Bucket) -> Ask:
    """Ask who stands for a key."""
    return Ask(place.number, (FIRST, key, DEPTHS[depth]), "admit", place.standing)


def entry(step: Step, changes: Changes, ground: Ground) -> Ask:
    """Ask for a new job to be written if nobody stands for its key."""
    [job], mark = changes.inserts, changes.mark
    place, name = ground.home(job.key or job.id), job.id.encode()
    [(_, counter)] = layout.counters(place, job)
    entries = layout.entries(place, job, name)
    record = write_job(job, new_revision())
    words = [
        FIRST,
        step.key or b"",
        DEPTHS[depth_of(step)],
        name,
        record,
        b"0" if job.held_key is None else b"1",
        b"" if mark is None or not mark.job else write_mark(mark),
        counter,
        ground.channel,
        ground.voice + told(record, job) if job.state in RINGING else b"",
    ]
    for standing in entries.values():
        words += standing
    return Ask(place.number, words, "admit", (*place.standing, place.counts, *entries))


def meet(step: Step, sight: Sight, ground: Ground) -> Flow[list[Any]]:
    """Decide a request on who stands for its key, and write that."""
    group = Group(step.key)
    group.add(0, step)
    group.sight = sight
    yield from commit([group], ground)
    return list(group.answers)


def arrange(steps: Sequence[Step], ground: Ground) -> Flow[list[Group]]:
    """Bring together the steps that share a key or a job; look up jobs that are not remembered."""
    ids = dict.fromkeys(step.job_id for step in steps if step.job_id is not None)
    sights = {job_id: sight for job_id in ids if (sight := ground.memory.recall(job_id)) is not None}
    if len(sights) < len(ids):
        sights |= yield from look_up([job_id for job_id in ids if job_id not in sights], ground)
    groups: dict[Any, Group] = {}
    for position, step in enumerate(steps):
        sight = None if step.job_id is None else sights[step.job_id]
        seen = None if step.job_id is None or sight is None else sight.jobs.get(step.job_id)
        key = seen.job.key if seen is not None else step.key
        group = groups.setdefault(key or step.job_id or position, Group(key))
        group.add(position, step)
        if sight is not None:
            group.show(sight)
    return list(groups.values())


def look_up(ids: Sequence[str], ground: Ground) -> Flow[dict[str, Sight]]:
    """See jobs and who stands for their keys; one that is not where its id says is looked for everywhere."""
    found = dict((yield from look_in([(ground.home(job_id), job_id) for job_id in ids], ground)))
    astray = [job_id for job_id, sight in found.items() if job_id not in sight.jobs]
    if astray and len(ground.buckets) > 1:
        everywhere = [(place, job_id) for job_id in astray for place in ground.buckets]
        shown = yield from look_in(everywhere, ground)
        found |= {job_id: sight for job_id, sight in shown if job_id in sight.jobs}
    return found


def look_in(wanted: Sequence[tuple[Bucket, str]], ground: Ground) -> Flow[list[tuple[str, Sight]]]:
    """See jobs in the buckets that are named."""
    found: list[tuple[str, Sight]] = []
    asks = []
    for place in ground.buckets:
        ids = [job_id for home, job_id in wanted if home is place]
        found += [(job_id, Sight(place=place)) for job_id in ids]
        for first in range(0, len(ids), GROUPS):
            script = Script(place, ground)
            for job_id in ids[first : first + GROUPS]:
                script.look(job_id)
            asks.append(script.ask())
    replies = yield asks
    shown = [answer for reply in replies for answer in reply]
    return [
        (job_id, read_sight(sight.place, reply))
        for (job_id, sight), reply in zip(found, shown, strict=True)
        if sight.place is not None
    ]


def commit(groups: Sequence[Group], ground: Ground, queues: Collection[tuple[str, str]] = ()) -> Flow[None]:
    """Decide and write groups until each has been written as it was decided, or patience ends.

    They are shown how many jobs wait in `queues`.
    """
    left, ends = groups, monotonic() + ground.patience
    while left:
        if queues:  # anew each time, for what was tried in vain is not there
            depths = yield from count_waiting(queues, ground)
            for group in left:
                group.depths = depths
        sent: list[tuple[Group, Trace]] = []
        asks = scripts(left, ground, sent)
        if (first := next(asks, None)) is None:
            return
        if len(left) <= GROUPS and len(ground.buckets) == 1:  # so that was all
            replies = [(yield first)]
        else:
            replies = yield chain((first,), asks)
        answers = (answer for reply in replies for answer in reply)
        left = [
            group
            for (group, trace), answer in zip(sent, answers, strict=True)
            if not settled(group, trace, answer, ground)
        ]
        if left and monotonic() > ends:
            give_up(left)
            return


def scripts(groups: Sequence[Group], ground: Ground, sent: list[tuple[Group, Trace]]) -> Iterator[Ask]:
    """Decide groups and tell the script, a part at a time: the server writes one while we decide the next."""
    now = ground.clock()
    ready = decide_in_order(groups, ground, now) if groups[0].depths is not None else {}
    for some in partitioned(groups, ground):
        script = None
        for group in some:
            plan = ready.get(group) or decide(group, ground, now)
            if plan.commands or not group.sight.actual:
                sent.append((group, plan.trace))
                script = script or Script(plan.trace.place, ground)
                script.add(group, plan)
        if script is not None:
            yield script.ask()


def partitioned(groups: Sequence[Group], ground: Ground) -> Iterator[Sequence[Group]]:
    """Part groups into what one script takes: some of one bucket."""
    if len(ground.buckets) == 1:
        shares = [groups]
    else:
        homes: dict[Any, list[Group]] = {}
        for group in groups:  # a job without a key is placed by the id that it will have, so it goes alone
            place = group.sight.place or (group.key and ground.home(group.key))
            homes.setdefault(place or group, []).append(group)
        shares = list(homes.values())
    for share in shares:
        for first in range(0, len(share), GROUPS):
            yield share[first : first + GROUPS]


def settled(group: Group, trace: Trace, reply: Any, ground: Ground) -> bool:
    """Tell whether a group is done; if not, it now knows what is there."""
    if reply == FULL:
        group.answers = [None for _ in group.steps]
        return True
    if reply not in {WRITTEN, BEFORE} if isinstance(reply, int) else not was_ours(trace, reply):
        group.sight = read_sight(trace.place, reply)
        return False
    remember(group, trace.after or group.sight, ground)
    return True


def remember(group: Group, after: Sight, ground: Ground) -> None:
    """Keep what is now to be seen of jobs that run, for whoever takes the next step on them."""
    for job_id in group.ids:
        seen = after.jobs.get(job_id)
        if seen is not None and seen.job.state is State.ACTIVE:
            ground.memory.keep(job_id, after)


def was_ours(trace: Trace, reply: Sequence[Any]) -> bool:
    """Tell whether this very write was done before, and only its answer was lost."""
    if not trace.revision:
        return False
    shown = (*reply[0], reply[2], reply[4])
    return any(record is not None and record[:REVISION] == trace.revision for record in shown)


def give_up(groups: Iterable[Group]) -> None:
    """Answer steps that others kept overtaking."""
    for group in groups:
        busy = AdmissionBusy("The key changes hands faster than this request can be settled: try again.")
        group.answers = [busy for _ in group.steps]


class Script:
    """A call of `swap` in the making: every key, list and counter is named once, and then known by number."""

    __slots__ = ("_counters", "_ground", "_lists", "_numbers", "_place", "_runs", "_words")

    def __init__(self, place: Bucket, ground: Ground) -> None:
        self._place = place
        self._ground = ground
        self._numbers = dict(place.numbers)
        self._lists: dict[tuple[str, bytes], int] = {}
        self._counters: dict[Counter, int] = {}
        self._runs: list[int] = []
        self._words: list[bytes] = []

    def add(self, group: Group, plan: Plan) -> None:
        """Write a plan, if what it relies on is still so."""
        words = [group.key or b"", group.expected(), *map(str.encode, group.ids), *plan.fresh]
        limits = self._limits(group) if group.limits or group.rates or group.open else ()
        words += limits
        counters: list[int] = []
        for counter, by in plan.counters:
            counters += (self._counter(counter), by)
        lists, writes = self._lists, []
        for command in plan.commands:
            slot = command[:2]
            writes.append(lists.get(slot) or lists.setdefault(slot, len(lists) + 1))
            words += command[2:]
        for name in group.rates:
            for job in self._begun(group, name):
                writes.append(self._list("ZADD", name))
                words += (b"%d" % micros(job.started_at or job.run_at), start_of(job))
        counts = (len(group.ids), len(plan.fresh), len(limits) // 3, plan.rings, len(plan.counters))
        self._add(words, (group.depth, *counts, *counters, *writes))

    def look(self, job_id: str) -> None:
        """Show a job, and who stands for its key."""
        self._add([b"", b"?", job_id.encode()], (2, 1, 0, 0, 0, 0))

    def _add(self, words: list[bytes], numbers: tuple[int, ...]) -> None:
        self._runs += (1 + len(numbers) + len(words), len(words), *numbers, *map(len, words))
        self._words += words

    def _limits(self, group: Group) -> list[bytes]:
        limits: list[int] = []
        for queue, most, by in group.limits:
            limits += (self._counter((self._place.active, queue)) if queue else 0, most, by)
        for name, most in group.rates.items():
            limits += (-self._list("ZADD", name), most, len(self._begun(group, name)))
        words = [b"%d" % number for number in limits]
        if group.open is not None:
            paused = self._number(self._place.paused(group.open[0]))
            words += (b"paused", b"%d" % paused, group.open[1].encode())
        return words

    def _number(self, name: bytes) -> int:
        return self._numbers.get(name) or self._numbers.setdefault(name, len(self._numbers) + 1)

    def _begun(self, group: Group, name: bytes) -> list[Job]:
        """List the jobs that a group starts and that a set of starts counts: one key may be in two queues."""
        jobs = [answer for answer in group.answers if isinstance(answer, Job)]
        return [job for job in jobs if self._place.starts(job.namespace, job.queue) == name]

    def _list(self, command: str, name: bytes) -> int:
        return self._lists.setdefault((command, name), len(self._lists) + 1)

    def _counter(self, counter: Counter) -> int:
        return self._counters.get(counter) or self._counters.setdefault(counter, len(self._counters) + 1)

    def ask(self) -> Ask:
        """Make the question."""
        numbers, head = self._numbers, [len(self._lists)]
        for command, name in self._lists:
            head += (COMMANDS[command], self._number(name))
        head.append(len(self._counters))
        head += [numbers[name] for name, _ in self._counters]
        fields = [field for _, field in self._counters]
        head += map(len, fields)
        plan = (len(head), *head, *self._runs)
        said = (struct.pack(f"<{len(plan)}i", *plan), b"".join(fields + self._words))
        words = (FIRST, self._ground.channel, self._ground.voice, *said)
        return Ask(self._place.number, words, "swap", tuple(numbers))


# ── leasing ───────────────────────────────────────────────────────────────────────────────────────


class Claim(msgspec.Struct, frozen=True):
    """A job that is set aside for us, and what was seen of it then."""

    name: bytes
    member: bytes
    job: Job
    sight: Sight

    @property
    def looks(self) -> tuple[str, bytes]:
        """Which job it was, and in which revision: jobs written together share theirs."""
        return self.job.id, self.sight.revision(self.job.id)


def lease(wanted: Lease, ground: Ground) -> Flow[list[Job]]:
    """Start what was offered; or make due jobs available, then start the best of them."""
    if (record := ground.offers.take(wanted)) is not None and (
        accepted := (yield from accept(read_job(record), wanted, ground))
    ):
        return accepted
    limited = [queue for queue in wanted.limited if wanted.queues[queue] > 0]
    if len(ground.buckets) == 1 or not limited:
        started = yield from lease_within(wanted, Rooms(wanted.queues), ground)
    else:
        started = yield from lease_in_turn(wanted, limited, ground)
    if not started:
        ground.offers.expect(wanted)
    return started


def accept(offered: Seen, wanted: Lease, ground: Ground) -> Flow[list[Job]]:
    """Start a job that somebody has just made, guessing that nothing has happened to it since."""
    job, place = offered.job, ground.home(offered.job.key or offered.job.id)
    if not fits(job, wanted):
        return []
    group = Group(job.key)
    group.add(0, Step(partial(start, worker=wanted.worker, lease=wanted.duration), job.id))
    group.sight = Sight({job.id: offered}, None if job.held_key is None else job.id, place=place)
    group.open = (job.namespace, job.queue)
    yield from commit([group], ground)
    return [answer for answer in group.answers if isinstance(answer, Job)]


class Rooms(NamedTuple):
    """How many jobs queues may give; in a turn also how many run of each partition, and when that ends."""

    queues: Mapping[str, int]
    running: Mapping[bytes, int] = NONE
    deadline: int | None = None

    def after(self, started: Sequence[Job]) -> Rooms:
        """Tell what is left when jobs have been started."""
        if not started:
            return self
        begun = Tally(job.queue for job in started)
        left = {queue: most - begun[queue] for queue, most in self.queues.items() if most > begun[queue]}
        if self.deadline is None:  # the server counts
            return self._replace(queues=left)
        shares = (layout.share(job.namespace, job.queue, job.partition) for job in started if job.partition)
        return self._replace(queues=left, running=Tally(self.running) + Tally(shares))


def lease_within(wanted: Lease, rooms: Rooms, ground: Ground) -> Flow[list[Job]]:
    """Start due jobs, as many as the queues have room for."""
    started: list[Job] = []
    ripen, last = MATURED_AT_ONCE, ("", b"")
    while len(started) < wanted.total:
        rest = wanted.total - len(started)
        left = rooms.after(started)
        ripe, claims = yield from claim(wanted, left, (rest, ripen), ground)
        if ripe:
            yield from apply([Step(mature, job_id) for job_id in ripe], ground)
            ripen = 0
            continue
        if len(ground.buckets) > 1:
            claims = best(claims, left, wanted, rest)
        if not claims or claims[0].looks == last:  # the best one cannot be started now
            break
        begun, again = yield from begin(claims, wanted, rooms.deadline, ground)
        started += begun
        last = claims[0].looks
        if not again:
            break
    return started


def best(claims: Sequence[Claim], rooms: Rooms, wanted: Lease, rest: int) -> list[Claim]:
    """Keep the best of what several buckets have given."""
    left, running, kept = dict(rooms.queues), Tally(rooms.running), list[Claim]()
    for one in claims:
        queue, share = one.job.queue, share_of(one.job, wanted)
        if (
            len(kept) < rest
            and left.get(queue, 0) > 0
            and (share is None or running[share] < wanted.shares[queue])
        ):
            left[queue] -= 1
            running[share or b""] += 1
            kept.append(one)
    return kept


def share_of(job: Job, wanted: Lease) -> bytes | None:
    """Name the counter of the partition whose share a job takes, if its queue has shares."""
    if job.queue not in wanted.shares or not job.partition:
        return None
    return layout.share(job.namespace, job.queue, job.partition)


def lease_in_turn(wanted: Lease, limited: Collection[str], ground: Ground) -> Flow[list[Job]]:
    """Start jobs of limited queues that lie in several buckets: one worker at a time, who counts them first.

    A start is refused once the turn has ended, so that nobody who was held up goes on from an old count.
    """
    place, me = ground.buckets[0], random.randbytes(8)  # noqa: S311 - a label
    keys = (place.beside("turn", wanted.namespace), place.beside("turn wanted", wanted.namespace))
    words = [me, TURN, ground.channel, ground.voice]
    [time] = yield [Ask(place.number, words, "turn", keys)]
    if time is None:
        others = {queue: room for queue, room in wanted.queues.items() if queue not in limited}
        return (yield from lease_within(wanted, Rooms(others), ground))
    queues, running = dict(wanted.queues), (yield from running_everywhere(ground))
    for queue in limited:
        active = running[frame(wanted.namespace, queue)]
        queues[queue] = min(queues[queue], wanted.limits.get(queue, active + queues[queue]) - active)
    yield from reserve(me, queues, wanted, ground)
    deadline = int(time[0]) * 1_000_000 + int(time[1]) + TURN_USED * 1000
    started = yield from lease_within(wanted, Rooms(queues, running, deadline), ground)
    yield from return_unused(me, queues, started, wanted, ground)
    yield [Ask(place.number, [me, 0, *words[2:]], "turn", keys)]
    return started


def running_everywhere(ground: Ground) -> Flow[Tally[bytes]]:
    """Count the active jobs of all queues and partitions over all buckets."""
    running: Tally[bytes] = Tally()
    for reply in (yield [Ask(place.number, ("HGETALL", place.active)) for place in ground.buckets]):
        for name, number in zip(reply[::2], reply[1::2], strict=True):
            running[name] += int(number)
    return running


def reserve(me: bytes, queues: dict[str, int], wanted: Lease, ground: Ground) -> Flow[None]:
    """Note starts before they are made, as many as there may be: whoever dies then has started less."""
    place, now = ground.buckets[0], ground.clock()
    for queue in wanted.rates.keys() & queues.keys():
        rate, name = wanted.rates[queue], place.starts(wanted.namespace, queue)
        _, begun = yield [
            Ask(place.number, ("ZREMRANGEBYSCORE", name, "-inf", micros(now - rate.per))),
            Ask(place.number, ("ZCARD", name)),
        ]
        queues[queue] = min(queues[queue], rate.times - begun, wanted.total)
        noted = [word for i in range(queues[queue]) for word in (micros(now), b"%b%d" % (me, i))]
        if noted:
            yield [Ask(place.number, ("ZADD", name, *noted))]


def return_unused(
    me: bytes, queues: Mapping[str, int], started: Sequence[Job], wanted: Lease, ground: Ground
) -> Flow[None]:
    """Take back the notes of starts that were not made, and write down when the others were."""
    place = ground.buckets[0]
    for queue in wanted.rates.keys() & queues.keys():
        name, begun = place.starts(wanted.namespace, queue), [job for job in started if job.queue == queue]
        unused = [b"%b%d" % (me, i) for i in range(len(begun), queues[queue])]
        asks = [Ask(place.number, ("ZREM", name, *unused))] if unused else []
        asks += [
            Ask(place.number, ("ZADD", name, "XX", micros(job.started_at), b"%b%d" % (me, i)))
            for i, job in enumerate(begun)
            if job.started_at is not None
        ]
        if asks:
            yield asks


def start_of(job: Job) -> bytes:
    """Name a start so that no other has the same name."""
    return b"%b:%d" % (job.id.encode(), job.token)


def claim(
    wanted: Lease, rooms: Rooms, most: tuple[int, int], ground: Ground
) -> Flow[tuple[list[str], list[Claim]]]:
    """Set the best available jobs aside, or tell which must be made available first."""
    asks = [claim_ask(place, wanted, rooms, most, ground) for place in ground.buckets]
    replies = (yield asks) if len(asks) > 1 else [(yield asks[0])]
    ripe = [job_id.decode() for ids, _ in replies for job_id in ids]
    claims = [
        read_claim(ask, place, answer)
        for ask, place, (_, answers) in zip(asks, ground.buckets, replies, strict=True)
        for answer in answers
        if answer[2] is not None
    ]
    if len(ground.buckets) > 1:
        claims.sort(key=lambda one: one.member)
    return ripe, claims


def claim_ask(place: Bucket, wanted: Lease, rooms: Rooms, most: tuple[int, int], ground: Ground) -> Ask:
    """Ask one bucket for its best available jobs."""
    now, tasks, alone = ground.clock(), sorted(wanted.tasks), len(ground.buckets) == 1
    # Of several buckets nobody knows which have the best jobs, so they are only looked at: whoever loses the
    # race for one looks again.
    words: list[Any] = [micros(now), micros(now + CLAIM) if alone else "", *most]
    words.append(random.randbytes(layout.PARTITION))  # noqa: S311 - anywhere will do
    names = [*place.fixed, place.timed, place.paused(wanted.namespace)]
    for queue, own in rooms.queues.items():
        counter, rate = frame(wanted.namespace, queue), wanted.rates.get(queue) if alone else None
        words += [queue, counter, own, wanted.limits.get(queue, ""), wanted.shares.get(queue, "")]
        words += ["", ""] if rate is None else [rate.times, micros(now - rate.per)]
        elsewhere = known_of(counter, rooms.running) if queue in wanted.shares else []
        words += [len(tasks), len(elsewhere) // 2, *elsewhere]
        names += [] if rate is None else [place.starts(wanted.namespace, queue)]
        for task in tasks:
            names.append(place.due(wanted.namespace, queue, task))
            names += [place.shared(wanted.namespace, queue, task)] if queue in wanted.shares else []
    return Ask(place.number, words, "claim", tuple(names))


def known_of(counter: bytes, running: Mapping[bytes, int]) -> list[Any]:
    """List how many jobs run of each partition of a queue, where that is known."""
    first = counter + b":"
    return [
        word
        for name, number in running.items()
        if name.startswith(first)
        for word in (name[len(first) :], number)
    ]


def read_claim(ask: Ask, place: Bucket, answer: Sequence[Any]) -> Claim:
    """Read one claimed job."""
    index, member, record, held, holder, following, successor, mark = answer
    reply = ([record], held, holder, following, successor, mark, None)
    sight = read_sight(place, reply)
    return Claim(ask.keys[index - 1], member, next(iter(sight.jobs.values())).job, sight)


def let_go(claims: Sequence[Claim]) -> Flow[None]:
    """Give claimed jobs back to whoever asks next."""
    asks = [
        Ask(one.sight.place.number, ("ZADD", one.name, "XX", 0, one.member))
        for one in claims
        if one.sight.place is not None
    ]
    if asks:
        yield asks


def begin(
    claims: Sequence[Claim], wanted: Lease, deadline: int | None, ground: Ground
) -> Flow[tuple[list[Job], bool]]:
    """Start claimed jobs, best first, up to one that lets its successor in: that may be better."""
    act = partial(start, worker=wanted.worker, lease=wanted.duration)
    steps = [Step(act, one.job.id) for one in claims]
    last = first_to_let_go(claims, steps, ground.clock())
    groups: dict[Any, Group] = {}
    for position, one in enumerate(claims[: last + 1]):
        group = groups.setdefault(one.job.key or one.job.id, Group(one.job.key))
        group.add(position, steps[position])
        group.show(one.sight)
        if one.job.queue in wanted.limits:
            limit(group, frame(wanted.namespace, one.job.queue), wanted.limits[one.job.queue])
        if (share := share_of(one.job, wanted)) is not None:
            limit(group, share, wanted.shares[one.job.queue])
        if one.job.queue in wanted.rates and deadline is None:
            place = ground.buckets[0]
            name = place.starts(wanted.namespace, one.job.queue)
            group.rates = {**group.rates, name: wanted.rates[one.job.queue].times}
        if deadline is not None and one.job.queue in wanted.limited:
            group.limits += ((b"", deadline, 0),)
    yield from commit(list(groups.values()), ground)
    answers = {
        position: answer
        for group in groups.values()
        for (position, _), answer in zip(group.steps, group.answers, strict=True)
    }
    begun = [answer for _, answer in sorted(answers.items()) if isinstance(answer, Job)]
    left = [one for position, one in enumerate(claims) if not isinstance(answers.get(position), Job)]
    if left:
        yield from let_go(left)
    return begun, bool(left)


def limit(group: Group, counter: bytes, most: int) -> None:
    """Let a group start one more job of a queue, if that has room."""
    before = sum(by for name, _, by in group.limits if name == counter)
    others = tuple(one for one in group.limits if one[0] != counter)
    group.limits = (*others, (counter, most, before + 1))


def first_to_let_go(claims: Sequence[Claim], steps: Sequence[Step], now: datetime) -> int:
    """Find the first job whose start ends it or lets another in; else the last.

    Of those that are too late, neighbours end together.
    """
    for position, one in enumerate(claims):
        if too_late(one.job, now):
            if position + 1 == len(claims) or not too_late(claims[position + 1].job, now):
                return position
        elif may_let_go(one.job):
            book = one.sight.book()
            waiting = len(book.nexts)
            if book.run(steps[position], now, forget) is None or len(book.nexts) < waiting:
                return position
    return len(claims) - 1


def forget(_changes: Changes) -> None:
    """Record nothing: this is only a look ahead."""


def may_let_go(job: Job) -> bool:
    """Tell whether starting this job may free its key or end it."""
    leaves = bool(job.traits & (Trait.NEWEST_WINS | Trait.RELEASES_AT_START))
    return leaves or job.version is not None or job.expires_at is not None
