"""Read jobs: by id, by key, by the index of a query; count them; read and write settings and counters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from onejob.core.job import UNSTARTED, Job, State
from onejob.core.leasing import PAUSED
from onejob.core.step import NO_CHANGES, Changes, Step, View
from onejob.stores.columns import Unreadable, read_time, write_time
from onejob.stores.contract import SCHEDULES, Counts, Tally
from onejob.stores.queries import (
    Awaiting,
    Blocked,
    ByKey,
    ByPrefix,
    Ended,
    Expired,
    Late,
    Listed,
    OfChain,
    Overdue,
    Prunable,
    Query,
    Returning,
    Stranded,
    matches,
    page,
)
from onejob.stores.redis.groups import Call, Flow
from onejob.stores.redis.layout import TALLIED_JOBS, TALLIES, Bucket, Keyspace, frame
from onejob.stores.redis.records import read_or_replace, read_record
from onejob.stores.redis.steps import commit, read_key
from onejob.stores.redis.supply import Damaged

PAGE = 500  # members read at once from an index
FOLDED = 500  # counters folded at once
REMEMBERED = 600  # seconds for which a repeated count is recognised
INDEXES = {
    Expired: "leased",
    Late: "expiring",
    Prunable: "kept",
    Returning: "returning",
    Blocked: "blocked",
    Ended: "ended",
}

Stored = tuple[Bucket, str]
"""Where a job lies, and its id."""


# ── by id and by key ──────────────────────────────────────────────────────────────────────────────


def look(key: bytes, space: Keyspace) -> Flow[View]:
    """Return the rows of a key."""
    rows = yield from read_key(key, space)
    return rows.view(Step(_nothing, key=key), space.clock())


def _nothing(_view: View) -> Changes[None]:
    return NO_CHANGES


def get(ids: Sequence[str], space: Keyspace) -> Flow[list[Job | None]]:
    """Return jobs by id."""
    found = yield from fetch([(space.home(job_id), job_id) for job_id in ids])
    return [found.get(job_id) for job_id in ids]


def fetch(wanted: Sequence[Stored], damaged: list[Damaged] | None = None) -> Flow[dict[str, Job]]:
    """Return jobs by id; those that cannot be read are added to `damaged`, or replaced by dead letters."""
    by_bucket: dict[Bucket, list[str]] = {}
    for bucket, job_id in wanted:
        by_bucket.setdefault(bucket, []).append(job_id)
    replies = yield [Call(bucket.number, ("HMGET", bucket.jobs, *ids)) for bucket, ids in by_bucket.items()]
    found: dict[str, Job] = {}
    for (bucket, ids), records in zip(by_bucket.items(), replies, strict=True):
        for job_id, record in zip(ids, records, strict=True):
            try:
                if record is not None:
                    read = read_or_replace if damaged is None else read_record
                    found[job_id] = read(record, job_id)
            except Unreadable as error:
                assert damaged is not None  # otherwise it was replaced
                damaged.append(Damaged(bucket, job_id, record, error))
    return found


def tails(chains: Sequence[str], space: Keyspace) -> Flow[list[Job | None]]:
    """Return the last job of each chain, as it is at one moment."""
    by_bucket: dict[Bucket, list[str]] = {}
    for chain in dict.fromkeys(chains):
        by_bucket.setdefault(space.home(chain), []).append(chain)
    replies = yield [
        Call(bucket.number, some, "tails", (bucket.jobs, bucket.chains)) for bucket, some in by_bucket.items()
    ]
    found = {
        chain: read_or_replace(record, chain)
        for some, reply in zip(by_bucket.values(), replies, strict=True)
        for chain, record in zip(some, reply, strict=True)
        if record is not None
    }
    return [found.get(chain) for chain in chains]


# ── queries ───────────────────────────────────────────────────────────────────────────────────────


def find(query: Query, space: Keyspace) -> Flow[list[Job]]:
    """Return the jobs that a query names; one that cannot be read becomes a dead letter."""
    damaged: list[Damaged] = []
    if isinstance(query, Listed) and query.held:
        found = yield from standing(query, space, damaged)
    elif isinstance(query, OfChain | Stranded | Awaiting | Overdue):
        jobs = yield from fetch((yield from collect(query, space)), damaged)
        found = page([job for job in jobs.values() if matches(job, query)], query)
    else:
        found = (yield from merge(query, space, damaged)) if query.limit > 0 else []
    yield from commit([one.discarding(space.clock()) for one in damaged], space)
    return found


def standing(query: Listed, space: Keyspace, damaged: list[Damaged]) -> Flow[list[Job]]:
    """Return a page of the holders and successors; however many there are, few are read beside it."""
    stored: list[Stored] = []
    for bucket in space.buckets:
        for name in (bucket.held, bucket.next):
            stored += [(bucket, job_id) for job_id in (yield from scan(bucket, name)).values()]
    stored.sort(key=itemgetter(1), reverse=query.newest_first)
    found: list[Job] = []
    for first in range(0, len(stored), PAGE):
        jobs = yield from fetch(stored[first : first + PAGE], damaged)
        found += [job for job in jobs.values() if matches(job, query)]
        if len(found) >= query.offset + query.limit:
            break
    return page(found, query)


def collect(query: OfChain | Stranded | Awaiting | Overdue, space: Keyspace) -> Flow[list[Stored]]:
    """Return the ids of the few jobs that a query concerns."""
    if isinstance(query, Overdue):
        return (yield from overdue(query, space))
    found: list[Stored] = []
    for bucket in space.buckets:
        match query:
            case Stranded():
                successors = yield from scan(bucket, bucket.next)
                holders = yield from holders_of(bucket, list(successors))
                left = [key for key in successors if key not in holders or holders[key].is_terminal]
                found += [(bucket, successors[key]) for key in left]
            case OfChain():
                limits = (f"[{query.chain_id} ", f"({query.chain_id}!")
                [members] = yield [Call(bucket.number, ("ZRANGEBYLEX", bucket.chains, *limits))]
                ids = [member.decode().rpartition(" ")[2] for member in members]
                found += [(bucket, job_id) for job_id in (query.chain_id, *ids)]
            case Awaiting():
                names = [bucket.name("awaiting", chain) for chain in query.chains]
                calls = [Call(bucket.number, ("ZUNION", len(names), *names))] if names else []
                found += [(bucket, member.decode()) for reply in (yield calls) for member in reply]
    return found


def overdue(query: Overdue, space: Keyspace) -> Flow[list[Stored]]:
    """Return the ids of the first due jobs of every queue, task and priority; counters say where some are."""
    due: dict[Bucket, dict[str, None]] = {bucket: {} for bucket in space.buckets}
    for bucket, (namespace, queue, task, state, _), number in (yield from counted(space)):
        if namespace == query.namespace and state == State.AVAILABLE and number > 0:
            due[bucket][bucket.name("due", namespace, queue, task)] = None
    words = (write_time(query.by), query.limit)
    replies = yield [
        Call(bucket.number, words, "overdue", (bucket.name("timed", query.namespace), *names))
        for bucket, names in due.items()
    ]
    return [(bucket, one.decode()) for bucket, ids in zip(due, replies, strict=True) for one in ids]


class Span(NamedTuple):
    """A part of the sorted sets of an index: between two scores, or between two members."""

    low: str = "-inf"
    high: str = "+inf"
    backwards: bool = False
    by: str = "SCORE"

    def read(self, name: str, first: int, size: int) -> tuple[Any, ...]:
        """Return the command that reads some members, with their scores."""
        reverse, scores = "REV" if self.backwards else "", () if self.by == "LEX" else ("WITHSCORES",)
        if (self.low, self.high) == ("-inf", "+inf"):
            return f"Z{reverse}RANGE", name, first, first + size - 1, "WITHSCORES"
        limits = (self.high, self.low) if self.backwards else (self.low, self.high)
        return f"Z{reverse}RANGEBY{self.by}", name, *limits, *scores, "LIMIT", first, size


def span_of(query: Query) -> Span:
    """Return the part of an index that a query concerns, and the order in which it is read."""
    match query:
        case Listed(before=before, since=since) if before is not None or since is not None:
            low = "-" if since is None else f"[{since}"
            high = "+" if before is None else f"({before}"
            return Span(low, high, backwards=query.newest_first, by="LEX")
        case Listed():
            return Span(backwards=query.newest_first)
        case ByKey(key=key, before=before):
            end = f"({key.hex()}!" if before is None else f"({key.hex()} {before}"
            return Span(f"[{key.hex()} ", end, backwards=True, by="LEX")
        case ByPrefix():
            return Span(f"[{query.prefix}", f"({query.end}", backwards=True, by="LEX")
        case Ended(
            before=before, after=after
        ):  # `matches` leaves out jobs of the cursor's time that came before
            ends = [(after[0], "")] if after is not None else []
            ends += [(before, "(")] if before is not None else []
            at, bound = min(ends, default=(None, ""))
            return Span(high="+inf" if at is None else f"{bound}{write_time(at)}", backwards=True)
        case Expired() | Late() | Prunable() | Returning():
            after = query.after if isinstance(query, Prunable) else None
            return Span("-inf" if after is None else str(write_time(after[0])), str(write_time(query.by)))
        case _:
            return Span()


def lists_of(query: Query, space: Keyspace) -> Flow[list[tuple[Bucket, str]]]:
    """Return the sorted sets of a query's index; the counters say which lists by state have anything."""
    if isinstance(query, ByKey):
        bucket = space.home(query.key)
        return [(bucket, bucket.keyed)]
    if not isinstance(query, Listed | ByPrefix):
        states = [query.state] if isinstance(query, Ended) else []
        index, namespace = INDEXES[type(query)], query.namespace or ""
        return [(bucket, bucket.name(index, namespace, *states)) for bucket in space.buckets]
    query = query if isinstance(query, Listed) else Listed(namespace=query.namespace)
    found: dict[tuple[Bucket, str], None] = {}
    for bucket, (namespace, queue, task, state, _), number in (yield from counted(space)):
        listed = number > 0 and (not query.states or state in query.states)
        chosen = query.queue in {None, queue} and query.task in {None, task}
        if listed and chosen and query.namespace in {None, namespace}:
            found[bucket, bucket.name("state", namespace, state)] = None
    return list(found)


def merge(query: Query, space: Keyspace, damaged: list[Damaged]) -> Flow[list[Job]]:
    """Merge the members of sorted sets, in order, until the query's page is full."""
    span, skipped = span_of(query), getattr(query, "offset", 0)
    of_list = isinstance(query, Listed) and query.queue is None and query.task is None
    size = min(PAGE, skipped + query.limit)
    cursors = dict.fromkeys((yield from lists_of(query, space)), 0)
    found: list[Job] = []
    while cursors and len(found) < skipped + query.limit:
        replies = yield [Call(b.number, span.read(name, first, size)) for (b, name), first in cursors.items()]
        read = {
            one: [(0, member.decode()) for member in reply]
            if span.by == "LEX"
            else [(int(score), member.decode()) for member, score in pairs(reply)]
            for one, reply in zip(list(cursors), replies, strict=True)
        }
        batch = _advance(cursors, read, size, backwards=span.backwards)
        if of_list:  # every member matches, so those that are left out need not be read
            batch, skipped = batch[skipped:], max(skipped - len(batch), 0)
        jobs = yield from fetch(batch, damaged)
        found += [jobs[job_id] for _, job_id in batch if job_id in jobs and matches(jobs[job_id], query)]
    return found[skipped : skipped + query.limit]


def _advance(
    cursors: dict[tuple[Bucket, str], int],
    read: Mapping[tuple[Bucket, str], Sequence[tuple[int, str]]],
    size: int,
    *,
    backwards: bool,
) -> list[Stored]:
    """Return the members up to which every list has been read, in order, and move the cursors there."""
    last = [members[-1] for members in read.values() if len(members) == size]
    edge = (max(last) if backwards else min(last)) if last else None
    batch: list[tuple[tuple[int, str], Bucket]] = []
    for one, members in read.items():
        used = [m for m in members if edge is None or (m >= edge if backwards else m <= edge)]
        batch += [(member, one[0]) for member in used]
        cursors[one] += len(used)
        if len(used) == len(members) < size:
            del cursors[one]
    batch.sort(key=lambda entry: entry[0], reverse=backwards)
    return [(bucket, member.rpartition(" ")[2]) for (_, member), bucket in batch]


def scan(bucket: Bucket, name: str) -> Flow[dict[str, str]]:
    """Return a hash that may be large, read a part at a time."""
    found: dict[str, str] = {}
    cursor: Any = 0
    while True:
        [[cursor, some]] = yield [Call(bucket.number, ("HSCAN", name, cursor, "COUNT", PAGE))]
        found.update((key.decode(), value.decode()) for key, value in pairs(some))
        if int(cursor) == 0:
            return found


def holders_of(bucket: Bucket, keys: Sequence[str]) -> Flow[dict[str, Job]]:
    """Return the holders of keys."""
    [ids] = (yield [Call(bucket.number, ("HMGET", bucket.held, *keys))]) if keys else [[]]
    held = {key: job_id.decode() for key, job_id in zip(keys, ids, strict=True) if job_id is not None}
    jobs = yield from fetch([(bucket, job_id) for job_id in held.values()])
    return {key: jobs[job_id] for key, job_id in held.items() if job_id in jobs}


def pairs(reply: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    """Return the pairs of a flat reply."""
    return zip(reply[::2], reply[1::2], strict=True)


# ── counts ────────────────────────────────────────────────────────────────────────────────────────


def counted(space: Keyspace) -> Flow[list[tuple[Bucket, Sequence[str], int]]]:
    """Return the counters of jobs: bucket, namespace, queue, task, state, held; and the number."""
    replies = yield [Call(bucket.number, ("HGETALL", bucket.counts)) for bucket in space.buckets]
    return [
        (bucket, names, int(number))
        for bucket, reply in zip(space.buckets, replies, strict=True)
        for name, number in pairs(reply)
        if len(names := msgspec.json.decode(name)) == 5  # noqa: PLR2004 - the others count active jobs
    ]


def counts(namespace: str, space: Keyspace) -> Flow[Counts]:
    """Count jobs, and the keys that have a waiting job."""
    jobs: dict[tuple[str, str, State], int] = {}
    waiting = 0
    for _, (of, queue, task, name, held), number in (yield from counted(space)):
        state = State(name)
        if of == namespace and number:
            jobs[queue, task, state] = jobs.get((queue, task, state), 0) + number
            waiting += number if held and state in UNSTARTED else 0
    return Counts(jobs, waiting + (yield from _count_successors(namespace, space)))


def _count_successors(namespace: str, space: Keyspace) -> Flow[int]:
    """Count the keys whose only waiting job is a successor."""
    number = 0
    for bucket in space.buckets:
        successors = yield from scan(bucket, bucket.next)
        jobs = yield from fetch([(bucket, job_id) for job_id in successors.values()])
        keys = [key for key, job_id in successors.items() if job_id in jobs]
        keys = [key for key in keys if jobs[successors[key]].namespace == namespace]
        holders = yield from holders_of(bucket, keys)
        number += sum(key not in holders or holders[key].state not in UNSTARTED for key in keys)
    return number


# ── settings ──────────────────────────────────────────────────────────────────────────────────────


def settings(namespace: str, kind: str, space: Keyspace) -> Flow[dict[str, bytes]]:
    """Return the settings of a kind."""
    bucket = space.buckets[0]
    [reply] = yield [Call(bucket.number, ("HGETALL", bucket.name("settings", namespace, kind)))]
    return {name.decode(): value for name, value in pairs(reply)}


def put_setting(namespace: str, kind: str, name: str, value: bytes | None, space: Keyspace) -> Flow[None]:
    """Write a setting or remove it, and publish that; every bucket knows which queues are paused."""
    calls = []
    for bucket in space.buckets if kind == PAUSED else space.buckets[:1]:
        place = bucket.name("settings", namespace, kind)
        words = ("HDEL", place, name) if value is None else ("HSET", place, name, value)
        calls.append(Call(bucket.number, words))
    yield calls
    yield [Call(0, ("PUBLISH", space.channel, space.sender))]


def starts(namespace: str, queue: str, since: datetime, space: Keyspace) -> Flow[list[datetime]]:
    """Return when jobs of a queue that has a rate have started since a time, oldest first."""
    name = space.buckets[0].name("starts", namespace, queue)
    words = ("ZRANGEBYSCORE", name, f"({write_time(since)}", "+inf", "WITHSCORES")
    [reply] = yield [Call(0, words)]
    return [read_time(int(at)) for at in reply[1::2]]


# ── counters of absorbed requests ─────────────────────────────────────────────────────────────────


def count(tallies: Sequence[Tally], space: Keyspace, batch: str = "") -> Flow[None]:
    """Add to the counters, exactly once even if a reply is lost and the batch is repeated."""
    now = space.clock()
    by_namespace: dict[str, list[Any]] = {}
    for one in tallies:
        times = write_time(one.last_at or now), write_time(one.first_at or now)
        words = (frame(one.task, one.outcome, one.job_id), one.count, *times, one.last_by, "")
        by_namespace.setdefault(one.namespace, []).extend(words)
    bucket = space.buckets[0]
    yield [_counting(namespace, words, bucket, batch) for namespace, words in by_namespace.items()]


def _counting(namespace: str, words: Sequence[Any], bucket: Bucket, batch: str = "") -> Call:
    name = f"{batch}:{namespace}" if batch else uuid4().hex  # a program may have seeded `random`
    request = f"{bucket.tag}request:{name}"
    keys = (request, *(bucket.name(what, namespace) for what in (*TALLIES, TALLIED_JOBS)))
    return Call(bucket.number, (REMEMBERED, *words), "count", keys)


def tallies(namespace: str, space: Keyspace, jobs: Collection[str] | None = None) -> Flow[list[Tally]]:
    """Return the counters, added up over the buckets: a step counts in the bucket of its job."""
    found: dict[tuple[str, str, str], Tally] = {}
    read = _tallies_by_bucket(namespace, space) if jobs is None else _tallies_of(jobs, namespace, space)
    for some in (yield from read):
        for one in some:
            name = one.task, one.outcome, one.job_id
            found[name] = found[name].plus(one) if name in found else one
    return [found[name] for name in sorted(found)]


def _tallies_by_bucket(namespace: str, space: Keyspace) -> Flow[list[list[Tally]]]:
    """Return the counters of each bucket."""
    replies = yield [
        Call(bucket.number, ("HGETALL", bucket.name(what, namespace)))
        for bucket in space.buckets
        for what in TALLIES
    ]
    each = len(TALLIES)
    hashes = [pairs(reply) for reply in replies]
    return [_read_tallies(namespace, *hashes[at : at + each]) for at in range(0, len(hashes), each)]


def _tallies_of(jobs: Collection[str], namespace: str, space: Keyspace) -> Flow[list[list[Tally]]]:
    """Return the counters of some jobs, of each bucket."""
    found: list[list[Tally]] = []
    for bucket in space.buckets:
        index = bucket.name(TALLIED_JOBS, namespace)
        ranges = [("ZRANGEBYLEX", index, f"[{job_id} ", f"({job_id}!") for job_id in jobs]
        members = yield [Call(bucket.number, words) for words in ranges]
        names = [member.partition(b" ")[2] for some in members for member in some]
        if names:
            hashes = [bucket.name(what, namespace) for what in TALLIES]
            values = yield [Call(bucket.number, ("HMGET", name, *names)) for name in hashes]
            known = [[(n, v) for n, v in zip(names, some, strict=True) if v is not None] for some in values]
            found.append(_read_tallies(namespace, *known))
    return found


def _read_tallies(namespace: str, *hashes: Iterable[tuple[bytes, bytes]]) -> list[Tally]:
    numbers, lasts, firsts, last_by = map(dict, hashes)
    return [
        Tally(
            *(namespace, task, outcome, job_id),
            int(number),
            read_time(int(lasts.get(name, 0))),
            read_time(int(firsts.get(name, 0))),
            last_by.get(name, b"").decode(),
        )
        for name, number in numbers.items()
        for task, outcome, job_id in [msgspec.json.decode(name)]
    ]


def fold(namespace: str, space: Keyspace) -> Flow[int]:
    """Add the counters of jobs that are gone to those of no job, and return how many there were."""
    by_bucket = yield from _tallies_by_bucket(namespace, space)
    folded = 0
    for bucket, found in zip(space.buckets, by_bucket, strict=True):
        of_jobs = [one for one in found if one.job_id and not one.job_id.startswith(SCHEDULES)]
        for first in range(0, len(of_jobs), FOLDED):
            some = of_jobs[first : first + FOLDED]
            jobs = yield from get([one.job_id for one in some], space)
            gone = [one for one, job in zip(some, jobs, strict=True) if job is None]
            words = [word for one in gone for word in _folding(one)]
            if words:
                yield [_counting(namespace, words, bucket)]
            folded += len(gone)
    return folded


def _folding(one: Tally) -> tuple[Any, ...]:
    """Return the change that moves a counter to that of no job."""
    return (frame(one.task, one.outcome, ""), 0, 0, 0, "", frame(one.task, one.outcome, one.job_id))
