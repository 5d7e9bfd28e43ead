"""What the store reads: pages of jobs by the index that fits, numbers, tallies. Flows, as in `flows`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from onejob.job import EPOCH, UNSTARTED, Changes, Job, State, View
from onejob.limits import PAUSED, Rate
from onejob.stores.contract import SCHEDULES, Counts, Filter, Step, Tally
from onejob.stores.filters import matches
from onejob.stores.redis.flows import Ask, Flow, Ground, read_sight, standing
from onejob.stores.redis.layout import MICROSECOND, POSITION, Bucket, frame, micros
from onejob.stores.redis.records import read_job

PAGE = 500  # ids read at once from an index
SHORTEST_READ = 20  # of many lists that are merged
FOLDED_AT_ONCE = 500

Names = list[tuple[Bucket, bytes]]


def look(key: bytes, ground: Ground) -> Flow[View]:
    """Show who stands for a key."""
    place = ground.home(key)
    sight = read_sight(place, (yield standing(key, 2, place)))
    return sight.view(Step(_nothing, key=key), ground.clock())


def _nothing(_view: View) -> Changes:
    return Changes()


def get(ids: Sequence[str], ground: Ground) -> Flow[list[Job | None]]:
    """Read jobs by id; one that is not where its id says is looked for everywhere."""
    if not ids:
        return []
    found = yield from fetch([(ground.home(job_id), job_id.encode()) for job_id in ids])
    astray = [job_id for job_id, job in zip(ids, found, strict=True) if job is None]
    if not astray or len(ground.buckets) == 1:
        return found
    everywhere = [(place, job_id.encode()) for place in ground.buckets for job_id in astray]
    jobs = {job.id: job for job in (yield from fetch(everywhere)) if job is not None}
    return [job or jobs.get(job_id) for job_id, job in zip(ids, found, strict=True)]


def fetch(wanted: Sequence[tuple[Bucket, bytes]]) -> Flow[list[Job | None]]:
    """Read jobs of which the bucket is known."""
    by_place: dict[Bucket, list[bytes]] = {}
    for place, name in wanted:
        by_place.setdefault(place, []).append(name)
    asks = [Ask(place.number, ("HMGET", place.jobs, *names)) for place, names in by_place.items()]
    replies = (yield asks) if asks else []
    records = {
        (place, name): record
        for (place, names), reply in zip(by_place.items(), replies, strict=True)
        for name, record in zip(names, reply, strict=True)
    }
    return [read_job(record).job if (record := records[one]) is not None else None for one in wanted]


# ── finding ───────────────────────────────────────────────────────────────────────────────────────


def find(wanted: Filter, ground: Ground) -> Flow[list[Job]]:
    """List jobs, by the index that fits what is asked."""
    if wanted.limit <= 0:
        return []
    if wanted.key is not None:
        places = [ground.home(wanted.key)]
        return (yield from page([(place, place.keyed) for place in places], wanted, prefix=wanted.key))
    if wanted.leased_until is not None or wanted.returns_by is not None or wanted.late_by is not None:
        return (yield from find_by_time(wanted, ground))
    if wanted.ended_before is not None:
        return (yield from find_ended(wanted, ground))
    if wanted.awaits:
        return (yield from find_awaiting(wanted, ground))
    if wanted.blocked:
        return (yield from page([(place, place.blocked) for place in ground.buckets], wanted))
    if wanted.held or wanted.stranded:
        return (yield from find_standing(wanted, ground))
    if wanted.chain_id is not None:
        return (yield from find_chain(wanted.chain_id, wanted, ground))
    return (yield from page((yield from lists(wanted, ground)), wanted))


def lists(wanted: Filter, ground: Ground) -> Flow[Names]:
    """Name the lists of jobs by state that may have what is asked; the counters tell which have anything."""
    states = {State(state) for state in wanted.states} or set(State)
    found: dict[tuple[Bucket, bytes], None] = {}
    for place, counters in (yield from counted(ground)):
        for (namespace, queue, task, state, _), number in counters.items():
            if (
                number > 0
                and state in states
                and wanted.namespace in {None, namespace}
                and wanted.queue in {None, queue}
                and wanted.task in {None, task}
            ):
                found[place, place.listed(namespace, State(state))] = None
    return list(found)


def page(names: Names, wanted: Filter, prefix: bytes = b"") -> Flow[list[Job]]:
    """Merge ordered lists of ids, and keep what fits until the page is full."""
    size = min(PAGE, wanted.offset + wanted.limit)
    cursors: dict[tuple[Bucket, bytes], bytes | None] = dict.fromkeys(names)
    found: list[Job] = []
    while cursors and len(found) < wanted.offset + wanted.limit:
        replies = yield [
            Ask(place.number, ranged(name, prefix, last, size, newest=wanted.newest_first))
            for (place, name), last in cursors.items()
        ]
        read = dict(zip(list(cursors), replies, strict=True))
        edge = boundary(read, size, newest=wanted.newest_first)
        cursors, batch = advance(cursors, read, edge, size, newest=wanted.newest_first)
        batch.sort(key=lambda one: one[1], reverse=wanted.newest_first)
        jobs = yield from fetch([(place, member[len(prefix) :]) for place, member in batch])
        found += [job for job in jobs if job is not None and matches(job, wanted)]
    return found[wanted.offset : wanted.offset + wanted.limit]


def ranged(name: bytes, prefix: bytes, last: bytes | None, size: int, *, newest: bool) -> tuple[Any, ...]:
    """Ask for the next members of a list after the last one that was used."""
    low = b"[" + prefix if prefix else b"-"
    high = b"(" + prefix + b"\xff" if prefix else b"+"
    if newest:
        return "ZREVRANGEBYLEX", name, high if last is None else b"(" + last, low, "LIMIT", 0, size
    return "ZRANGEBYLEX", name, low if last is None else b"(" + last, high, "LIMIT", 0, size


def boundary(read: dict[Any, list[bytes]], size: int, *, newest: bool) -> bytes | None:
    """Tell up to where every list has been read; None if all have ended."""
    last = [members[-1] for members in read.values() if len(members) == size]
    return (max(last) if newest else min(last)) if last else None


def advance(
    cursors: dict[Any, bytes | None],
    read: dict[Any, list[bytes]],
    edge: bytes | None,
    size: int,
    *,
    newest: bool,
) -> tuple[dict[Any, bytes | None], list[tuple[Bucket, bytes]]]:
    """Use what lies before the boundary; what lies beyond is read again with the next page."""
    batch: list[tuple[Bucket, bytes]] = []
    left: dict[Any, bytes | None] = {}
    for handle, members in read.items():
        used = [m for m in members if edge is None or (m >= edge if newest else m <= edge)]
        batch += [(handle[0], member) for member in used]
        if len(used) < len(members) or len(members) == size:
            left[handle] = used[-1] if used else cursors[handle]
    return left, batch


def chosen(jobs: Iterable[Job | None], wanted: Filter) -> list[Job]:
    """Sort jobs as asked, and cut the page out."""
    found = sorted(
        (job for job in jobs if job is not None and matches(job, wanted)),
        key=lambda job: job.id,
        reverse=wanted.newest_first,
    )
    return found[wanted.offset : wanted.offset + wanted.limit]


def find_by_time(wanted: Filter, ground: Ground) -> Flow[list[Job]]:
    """List jobs whose leases end, or that come back or expire, by a time; earliest first."""
    if wanted.returns_by is not None:
        assert wanted.namespace is not None
        assert wanted.task is not None
        names = [(place, place.returning(wanted.namespace, wanted.task)) for place in ground.buckets]
    elif wanted.late_by is not None:
        names = [(place, place.expiring) for place in ground.buckets]
    else:
        names = [(place, place.leased) for place in ground.buckets]
    until = b"%d" % micros(wanted.returns_by or wanted.late_by or wanted.leased_until or EPOCH)
    most = wanted.offset + wanted.limit
    replies = yield [
        Ask(place.number, ("ZRANGEBYSCORE", name, "-inf", until, "WITHSCORES", "LIMIT", 0, most))
        for place, name in names
    ]
    found = sorted(
        (int(score), member, place.number, place)
        for (place, _), reply in zip(names, replies, strict=True)
        for member, score in pairs(reply)
    )
    jobs = yield from fetch([(place, member) for _, member, _, place in found[wanted.offset : most]])
    return [job for job in jobs if job is not None and matches(job, wanted)]


def find_ended(wanted: Filter, ground: Ground) -> Flow[list[Job]]:
    """List jobs that ended in a state, by when they did: merge the lists of its tasks."""
    names = yield from ended_lists(wanted, ground)
    most = wanted.offset + wanted.limit
    size = max(most // max(len(names), 1), SHORTEST_READ)
    cursors: dict[tuple[Bucket, bytes], int] = dict.fromkeys(names, 0)
    found: list[Job] = []
    while cursors and len(found) < most:
        replies = yield [
            Ask(place.number, scored(name, wanted, start, size)) for (place, name), start in cursors.items()
        ]
        read = {
            handle: [(int(score), member) for member, score in pairs(reply)]
            for handle, reply in zip(list(cursors), replies, strict=True)
        }
        batch = settle_order(cursors, read, size, newest=wanted.newest_first)
        jobs = yield from fetch(batch)
        found += [job for job in jobs if job is not None and matches(job, wanted)]
    return found[wanted.offset : most]


def ended_lists(wanted: Filter, ground: Ground) -> Flow[Names]:
    """Name the lists of what has ended that may have what is asked; the counters tell which there are."""
    [state] = wanted.states
    found: dict[tuple[Bucket, bytes], None] = {}
    for place, counters in (yield from counted(ground)):
        for (namespace, _, task, ended, _), number in counters.items():
            wants = wanted.task in {None, task} and task not in wanted.besides
            if number > 0 and ended == state and namespace == wanted.namespace and wants:
                found[place, place.ended(namespace, task, State(state))] = None
    return list(found)


def scored(name: bytes, wanted: Filter, start: int, size: int) -> tuple[Any, ...]:
    """Ask for some members of a list by time, beyond the time that is given; what is at it is read again."""
    assert wanted.ended_before is not None
    edge = None if wanted.beyond is None else micros(wanted.beyond[0])
    before = b"(%d" % micros(wanted.ended_before)
    if wanted.newest_first:
        high = before if edge is None or edge >= micros(wanted.ended_before) else b"%d" % edge
        return "ZREVRANGEBYSCORE", name, high, "-inf", "WITHSCORES", "LIMIT", start, size
    low = b"-inf" if edge is None else b"%d" % edge
    return "ZRANGEBYSCORE", name, low, before, "WITHSCORES", "LIMIT", start, size


def settle_order(
    cursors: dict[tuple[Bucket, bytes], int],
    read: dict[tuple[Bucket, bytes], list[tuple[int, bytes]]],
    size: int,
    *,
    newest: bool,
) -> list[tuple[Bucket, bytes]]:
    """Take what lies before the place up to which every list was read, in order; move the cursors there."""
    last = [members[-1] for members in read.values() if len(members) == size]
    edge = (max(last) if newest else min(last)) if last else None
    batch: list[tuple[tuple[int, bytes], Bucket]] = []
    for handle, members in read.items():
        used = [one for one in members if edge is None or (one >= edge if newest else one <= edge)]
        batch += [(one, handle[0]) for one in used]
        cursors[handle] += len(used)
        if len(used) == len(members) < size:
            del cursors[handle]
    batch.sort(key=lambda one: one[0], reverse=newest)
    return [(place, member) for (_, member), place in batch]


def find_standing(wanted: Filter, ground: Ground) -> Flow[list[Job]]:
    """List jobs that hold keys or wait behind one that does; or only those that wait for nobody."""
    hashes = [(place, place.next) for place in ground.buckets]
    if not wanted.stranded:
        hashes += [(place, place.held) for place in ground.buckets]
    jobs: list[Job | None] = []
    for place, name in hashes:
        pointers = yield from scan(place, name)
        jobs += yield from fetch([(place, job_id) for job_id in pointers.values()])
    if wanted.stranded:
        jobs = yield from stranded([job for job in jobs if job is not None], ground)
    return chosen(jobs, wanted)


def stranded(successors: Sequence[Job], ground: Ground) -> Flow[list[Job | None]]:
    """Keep the successors whose predecessors are gone."""
    left: list[Job | None] = []
    for job in successors:
        view = yield from look(job.next_key or b"", ground)
        gone = view.holder is None or view.holder.is_terminal
        if gone and job.state is State.PENDING and job.next_key is not None:
            left.append(job)
    return left


def find_awaiting(wanted: Filter, ground: Ground) -> Flow[list[Job]]:
    """List the jobs that wait for some chains: of each bucket, all in one go."""
    asks = [
        Ask(place.number, ("ZUNION", len(wanted.awaits), *map(place.awaiting, wanted.awaits)))
        for place in ground.buckets
    ]
    replies = yield asks
    names = [(place, name) for place, reply in zip(ground.buckets, replies, strict=True) for name in reply]
    return chosen((yield from fetch(names)), wanted)


def tails(chains: Sequence[str], ground: Ground) -> Flow[list[Job | None]]:
    """Read the last job of each chain; one that is not where its id says is looked for everywhere."""
    by_place: dict[Bucket, list[str]] = {}
    for chain in dict.fromkeys(chains):
        by_place.setdefault(ground.home(chain), []).append(chain)
    found = yield from tails_in(by_place)
    astray = [chain for chain in dict.fromkeys(chains) if chain not in found]
    if astray and len(ground.buckets) > 1:
        found |= yield from tails_in(dict.fromkeys(ground.buckets, astray))
    return [found.get(chain) for chain in chains]


def tails_in(wanted: Mapping[Bucket, Sequence[str]]) -> Flow[dict[str, Job]]:
    """Read the last jobs of chains in the buckets that are named, each bucket at one moment."""
    asks = [
        Ask(place.number, list(chains), "tails", (place.jobs, place.chains))
        for place, chains in wanted.items()
    ]
    replies = (yield asks) if asks else []
    return {
        chain: read_job(record).job
        for chains, reply in zip(wanted.values(), replies, strict=True)
        for chain, record in zip(chains, reply, strict=True)
        if record is not None
    }


def settings(namespace: str, kind: str, ground: Ground) -> Flow[dict[str, bytes]]:
    """Read what was decided at run time."""
    place = ground.buckets[0]
    [reply] = yield [Ask(place.number, ("HGETALL", place.beside("settings", namespace, kind)))]
    return {name.decode(): value for name, value in pairs(reply)}


def put_setting(namespace: str, kind: str, name: str, value: bytes | None, ground: Ground) -> Flow[None]:
    """Write one such decision, or take it back, and say so; every bucket knows which queues are paused."""
    asks = []
    for place in ground.buckets if kind == PAUSED else ground.buckets[:1]:
        where = place.beside("settings", namespace, kind)
        asks.append(
            Ask(place.number, ("HDEL", where, name) if value is None else ("HSET", where, name, value))
        )
    yield asks
    yield [Ask(ground.buckets[0].number, ("PUBLISH", ground.channel, ground.voice))]


def find_chain(chain_id: str, wanted: Filter, ground: Ground) -> Flow[list[Job]]:
    """List the jobs of a chain: the first, which has its id, and the continuations."""
    first = chain_id.encode() + b"\0"
    replies = yield [
        Ask(place.number, ("ZRANGEBYLEX", place.chains, b"[" + first, b"(" + first + b"\xff"))
        for place in ground.buckets
    ]
    names = [
        (place, member[len(first) + POSITION :])
        for place, reply in zip(ground.buckets, replies, strict=True)
        for member in reply
    ]
    jobs = yield from fetch(names)
    root = yield from get([chain_id], ground)
    return chosen([*root, *jobs], wanted)


def scan(place: Bucket, name: bytes) -> Flow[dict[bytes, bytes]]:
    """Read a hash that may be large, a part at a time."""
    found: dict[bytes, bytes] = {}
    cursor: Any = 0
    while True:
        [[cursor, pairs]] = yield [Ask(place.number, ("HSCAN", name, cursor, "COUNT", PAGE))]
        found.update(zip(pairs[::2], pairs[1::2], strict=True))
        if int(cursor) == 0:
            return found


# ── numbers ───────────────────────────────────────────────────────────────────────────────────────


def counted(ground: Ground) -> Flow[list[tuple[Bucket, dict[tuple[str, ...], int]]]]:
    """Read the counters of every bucket."""
    replies = yield [Ask(place.number, ("HGETALL", place.counts)) for place in ground.buckets]
    return [
        (place, {tuple(msgspec.json.decode(name)): int(number) for name, number in pairs(reply)})
        for place, reply in zip(ground.buckets, replies, strict=True)
    ]


def pairs(reply: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Take a hash as the server gives it apart."""
    return zip(reply[::2], reply[1::2], strict=True)


def counts(namespace: str, ground: Ground) -> Flow[Counts]:
    """Count jobs and the keys that wait."""
    jobs: dict[tuple[str, str, State], int] = {}
    waiting = 0
    for _, counters in (yield from counted(ground)):
        for (space, queue, task, name, held), number in counters.items():
            state = State(name)
            if space == namespace and number:
                jobs[queue, task, state] = jobs.get((queue, task, state), 0) + number
                waiting += number if held and state in UNSTARTED else 0
    return Counts(jobs, waiting + (yield from waiting_behind(namespace, ground)))


def waiting_behind(namespace: str, ground: Ground) -> Flow[int]:
    """Count keys that wait only in that somebody waits behind a run."""
    number = 0
    for place in ground.buckets:
        pointers = yield from scan(place, place.next)
        jobs = yield from fetch([(place, job_id) for job_id in pointers.values()])
        keys = [
            job.next_key for job in jobs if job is not None and job.namespace == namespace and job.next_key
        ]
        if keys:
            [held] = yield [Ask(place.number, ("HMGET", place.held, *keys))]
            holders = yield from fetch([(place, job_id) for job_id in held if job_id is not None])
            number += len(keys) - sum(job is not None and job.state in UNSTARTED for job in holders)
    return number


def next_due(namespace: str, rates: Mapping[str, Rate], ground: Ground) -> Flow[datetime | None]:
    """Tell when the next timed job is due, or a queue may start one again."""
    replies = yield [
        Ask(place.number, ("ZRANGE", place.awaited(namespace), 0, 0, "WITHSCORES"))
        for place in ground.buckets
    ]
    times = [int(reply[1]) for reply in replies if reply]
    times += yield from next_starts(namespace, rates, ground)
    return EPOCH + timedelta(microseconds=min(times)) if times else None


def next_starts(namespace: str, rates: Mapping[str, Rate], ground: Ground) -> Flow[list[int]]:
    """Tell when those queues may start a job again that may not now."""
    place, now = ground.buckets[0], ground.clock()
    asks = []
    for queue, rate in rates.items():
        since = (place.starts(namespace, queue), "+inf", b"(%d" % micros(now - rate.per))
        asks.append(Ask(place.number, ("ZREVRANGEBYSCORE", *since, "WITHSCORES", "LIMIT", rate.times - 1, 1)))
    replies = (yield asks) if asks else []
    return [
        int(reply[1]) + rate.per // MICROSECOND
        for reply, rate in zip(replies, rates.values(), strict=True)
        if reply
    ]


# ── tallies ───────────────────────────────────────────────────────────────────────────────────────


def tally(tallies: Collection[Tally], ground: Ground) -> Flow[None]:
    """Add to the counters of absorbed requests."""
    place, now = ground.buckets[0], micros(ground.clock())
    asks = []
    for one in tallies:
        name = frame(one.task, one.outcome, one.job_id)
        asks.append(Ask(place.number, ("HINCRBY", place.tallies(one.namespace), name, one.count)))
        asks.append(Ask(place.number, ("HSET", place.tallied_at(one.namespace), name, now)))
    yield asks


def tallies(namespace: str, ground: Ground) -> Flow[list[Tally]]:
    """Read the counters of absorbed requests."""
    place = ground.buckets[0]
    number, at = yield [
        Ask(place.number, ("HGETALL", name))
        for name in (place.tallies(namespace), place.tallied_at(namespace))
    ]
    times = dict(pairs(at))
    return sorted(
        (
            _tally(namespace, msgspec.json.decode(name), int(count), times.get(name))
            for name, count in pairs(number)
        ),
        key=lambda one: (one.task, one.outcome, one.job_id),
    )


def fold(namespace: str, ground: Ground) -> Flow[int]:
    """Add the counters of jobs that are gone to those of no job."""
    place = ground.buckets[0]
    keys = [place.tallies(namespace), place.tallied_at(namespace)]
    found = yield from tallies(namespace, ground)
    counters = [tally for tally in found if tally.job_id and not tally.job_id.startswith(SCHEDULES)]
    folded = 0
    for start in range(0, len(counters), FOLDED_AT_ONCE):
        some = counters[start : start + FOLDED_AT_ONCE]
        jobs = yield from get([tally.job_id for tally in some], ground)
        gone = [tally for tally, job in zip(some, jobs, strict=True) if job is None]
        words = [frame(t.task, t.outcome, job_id) for t in gone for job_id in (t.job_id, "")]
        if words:
            yield [Ask(place.number, words, "fold", tuple(keys))]
        folded += len(gone)
    return folded


def _tally(namespace: str, names: Sequence[str], count: int, at: bytes | None) -> Tally:
    task, outcome, job_id = names
    return Tally(namespace, task, outcome, job_id, count, _instant(at))


def _instant(text: bytes | None) -> datetime | None:
    return None if text is None else EPOCH + timedelta(microseconds=int(text))
