"""Recorded requests: when each was made and which of its arguments were equal, without any value.

Advice is computed from them. A caller only notes its requests; the timer of the counters computes digests and
writes rows. A row has the requests of one task within a few seconds. Where there are too many, the row keeps
those that have a low digest: equal arguments are kept or left out together, in all rows and processes.
"""

from __future__ import annotations

import hmac
import os
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import NamedTuple, Protocol
from uuid import uuid4

import msgspec

from onejob.core.decide import DEDUPLICATED
from onejob.core.job import Job
from onejob.engine.decided import Decided
from onejob.stores.columns import write_time
from onejob.stores.contract import Observation, Observations

KIND = "requests"
SALT = "requests salt"
KEPT_FOR = timedelta(days=1)
PER_TASK = 1000  # rows that a task keeps
PER_NAMESPACE = 10_000  # rows that a namespace keeps
PER_ROW = 200  # requests of a row
ALIKE = 20  # requests of a row with the same arguments and outcome; further ones share an entry with a count
WRITE_EVERY = 10.0  # seconds that a row gathers requests
MOST_WAITING = 300  # requests that wait for digests; half of them start the timer
LARGEST = 64 * 1024  # bytes of arguments of which digests are made
DIGEST = 8  # bytes of a digest
LEADING = 4  # bytes of a digest by which it is sampled
ALL = 1 << 8 * LEADING  # the threshold below which every digest is

read_values = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class RecordedRequest(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A request as it is stored.

    Attributes:
        at: When it was decided, in microseconds since 1970, by the store's clock.
        digests: A keyed digest per argument, in hexadecimal.
        outcome: What happened to it; "shadow:kept" if a shadow policy would have kept it.
        job: The id of the job that it created; empty if it created none.
        key: The beginning of its key, in hexadecimal; empty if it had none.
        differs: Whether its payload differs from that of the job that held the key.
        chain: The chain inside whose run it was made.
        times: How many requests alike it stands for; `at` is the time of the last one.
    """

    at: int
    digests: tuple[str, ...]
    outcome: str
    job: str = ""
    key: str = ""
    differs: bool = False
    chain: str = ""
    times: int = 1

    @property
    def is_absorbed(self) -> bool:
        """Whether another request's job served it."""
        return self.outcome in DEDUPLICATED

    @property
    def lowest(self) -> int:
        """The lowest of its digests, by which it is sampled; 0 if it has no arguments."""
        return leading(min(self.digests)) if self.digests else 0


class Row(msgspec.Struct, frozen=True):
    """Requests of a task as an observation stores them.

    Attributes:
        salt: The name of the key under which digests were made; others cannot be compared.
        arguments: The names of the task's arguments, in the order of the digests.
        threshold: Requests were kept if one of their digests is below it.
        seen: How many requests there were.
        requests: Those that were kept.
    """

    salt: str
    arguments: tuple[str, ...]
    threshold: int
    seen: int
    requests: list[RecordedRequest]


def leading(digest: str) -> int:
    """Return the leading bytes of a digest as a number."""
    return int(digest[: 2 * LEADING], 16)


# ── digests ───────────────────────────────────────────────────────────────────────────────────────


class Digests(NamedTuple):
    """Digests under a key, and the key's name."""

    name: str
    empty: blake2b  # keyed, of nothing yet

    @classmethod
    def of(cls, key: bytes) -> Digests:
        """Return digests under a key; its name does not reveal it."""
        name = blake2b(b"name", key=key, digest_size=4).hexdigest()
        return cls(name, blake2b(key=key, digest_size=DIGEST))

    def of_values(self, values: Sequence[msgspec.Raw]) -> tuple[str, ...]:
        """Return a digest per value."""
        found: list[str] = []
        for value in values:
            digest = self.empty.copy()
            digest.update(value)
            found.append(digest.hexdigest())
        return tuple(found)


class DigestStore(Observations, Protocol):
    """The part of a store that the recorder needs."""

    def now(self) -> datetime:
        """Return the store's time."""


def find_digests(store: DigestStore, namespace: str, secret: bytes | None) -> Digests:
    """Return digests under the app's secret, or under the namespace's salt, which the first caller makes."""
    if secret is not None:
        return Digests.of(hmac.digest(secret, b"onejob recorded requests\0" + namespace.encode(), "sha256"))
    salts = store.observations_sync(namespace, SALT)
    if not salts:
        made = Observation(namespace, SALT, uuid4().hex, "", store.now(), f'"{os.urandom(32).hex()}"')
        store.observe_sync([made], PER_TASK)
        salts = store.observations_sync(namespace, SALT)  # another process may have been faster
    oldest = min(salts, key=lambda one: (one.at, one.id))
    return Digests.of(bytes.fromhex(msgspec.json.decode(oldest.data, type=str)))


# ── recording ─────────────────────────────────────────────────────────────────────────────────────


class Batch:
    """The requests of one task that will be one row."""

    __slots__ = ("alike", "arguments", "kept", "seen", "threshold")

    def __init__(self, arguments: tuple[str, ...]) -> None:
        self.arguments = arguments
        self.threshold = ALL
        self.seen = 0
        self.kept: list[RecordedRequest] = []
        self.alike: dict[tuple[tuple[str, ...], str], int] = {}

    def add(self, request: RecordedRequest) -> None:
        """Add a request if its digests are in the sample; lower the threshold if the row is full."""
        self.seen += 1
        if request.lowest >= self.threshold:
            return
        what = (request.digests, request.outcome)
        number = self.alike[what] = self.alike.get(what, 0) + 1
        if number > ALIKE:
            self._count(request)
            return
        self.kept.append(request)
        while len(self.kept) > PER_ROW and self.threshold > 1:
            self.threshold //= 2
            self.kept = [one for one in self.kept if one.lowest < self.threshold]

    def _count(self, request: RecordedRequest) -> None:
        """Add a request to the last entry that is like it."""
        for index in range(len(self.kept) - 1, -1, -1):
            last = self.kept[index]
            if (last.digests, last.outcome) == (request.digests, request.outcome):
                times = last.times + 1
                del self.kept[index]
                self.kept.append(msgspec.structs.replace(request, job="", times=times))
                return


class RequestRecorder:
    """Records requests in memory; `take` returns the rows that are to be written.

    Of more than about three hundred requests per second, only those get digests whose key begins with a low
    byte, or whose payload digest does if they have no key.
    """

    def __init__(self, store: DigestStore, namespace: str, secret: bytes | None) -> None:
        self._store = store
        self._namespace = namespace
        self._secret = secret
        self._digests: Digests | None = None
        self._waiting: list[Decided] = []  # for digests
        self._below = 256  # the marks that are recorded
        self._is_full = False  # until `pop` is called
        self._left_out: defaultdict[str, int] = defaultdict(int)  # decided requests by task
        self._batches: dict[tuple[str, tuple[str, ...]], Batch] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self._waiting and not self._batches

    @property
    def is_crowded(self) -> bool:
        """Whether so many requests wait that digests should be computed soon."""
        return len(self._waiting) >= MOST_WAITING // 2

    def add(self, decided: Decided) -> None:
        """Remember a decided request; its digests are computed later, and not by the caller."""
        job = decided.request.job
        if self._is_full or mark_of(job) >= self._below or len(job.args) > LARGEST:
            self._left_out[job.task] += 1
            return
        self._waiting.append(decided)
        if len(self._waiting) >= MOST_WAITING:
            self._thin()

    def _thin(self) -> None:
        """Leave out the upper half of the marks; if that leaves too little, record no more for now."""
        lower = [one for one in self._waiting if mark_of(one.request.job) < self._below // 2]
        if len(lower) < MOST_WAITING // 8:
            self._is_full = True
            return
        self._below //= 2
        for one in self._waiting:
            job = one.request.job
            self._left_out[job.task] += mark_of(job) >= self._below
        self._waiting = lower

    def pop(self) -> list[Decided]:
        """Return the requests that wait for digests, and wait for others."""
        waiting, self._waiting, self._is_full = self._waiting, [], False
        return waiting

    def digest(self, waiting: Sequence[Decided]) -> None:
        """Compute the digests of requests; one thread at a time calls this and `take`."""
        if waiting and self._digests is None:
            self._digests = find_digests(self._store, self._namespace, self._secret)
        for one in waiting:
            assert self._digests is not None  # as above
            values = read_values(one.request.job.args)
            what = (one.request.job.task, tuple(values))
            batch = self._batches.get(what)
            if batch is None:
                batch = self._batches[what] = Batch(what[1])
            batch.add(with_digests(one, self._digests.of_values(list(values.values()))))

    def take(self) -> list[Observation]:
        """Return the rows of all requests that have digests, and begin new ones."""
        if not self._batches:  # the store's time would open a store that is not used
            return []
        batches, self._batches, now = self._batches, {}, self._store.now()
        self._below = 256
        return [self._row(task, batch, now) for (task, _), batch in batches.items()]

    def _row(self, task: str, batch: Batch, now: datetime) -> Observation:
        assert self._digests is not None  # the batch has digests
        seen = batch.seen + self._left_out.pop(task, 0)
        row = Row(self._digests.name, batch.arguments, batch.threshold, seen, batch.kept)
        return Observation(self._namespace, KIND, uuid4().hex, task, now, msgspec.json.encode(row).decode())


def mark_of(job: Job) -> int:
    """Return the number by which a request is sampled where there are very many, from 0 to 255."""
    return (job.key or job.payload_digest)[0]


def with_digests(decided: Decided, digests: tuple[str, ...]) -> RecordedRequest:
    """Return a request with its digests, as it is stored."""
    asked, verdict = decided.request.job, decided.verdict
    is_created = verdict.job.id == asked.id
    return RecordedRequest(
        at=write_time(verdict.job.created_at if is_created else decided.at),
        digests=digests,
        outcome=decided.outcome,
        job=asked.id if is_created else "",
        key="" if asked.key is None else asked.key[:DIGEST].hex(),
        differs=verdict.payload_differs,
        chain=decided.request.running_chain or "",
    )


# ── the rows in the store ─────────────────────────────────────────────────────────────────────────


def read_row(observation: Observation) -> Row:
    """Return a row as it was written."""
    return msgspec.json.decode(observation.data, type=Row)


async def forget_requests(store: Observations, namespace: str, now: datetime) -> int:
    """Remove the rows that are too old, and those beyond the limit of the namespace."""
    return await store.forget(namespace, KIND, before=now - KEPT_FOR, most=PER_NAMESPACE)
