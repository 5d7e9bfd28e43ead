"""The calls of processes to a store, and the answers, recorded as they happened.

Each process appends to a file of its own: a line before every call, with what it asks, and a line after it,
with the answer, both with the time of CLOCK_MONOTONIC, which all processes of a machine share. A call
without a second line was interrupted, by a kill or by an error: it may have had its effect, then or later,
or never. `read` turns the files of a run into operations, key by key, for `tests.races.check`.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

FOREVER = sys.maxsize
ENDED = frozenset({"completed", "cancelled", "discarded", "superseded"})


class Seen(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job as an answer showed it; its state is `superseded` if a newer job has its work."""

    job: str
    state: str
    token: int
    attempt: int
    payload: int  # the number of the request whose arguments it has
    version: int | None = None
    asked: bool = False  # to stop


# ── what is asked ─────────────────────────────────────────────────────────────────────────────────


class Enqueue(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Request work; `payload` is a number that no other request has."""

    key: str
    payload: int
    version: int | None = None
    force: bool = False


class Lease(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Ask for jobs to run; one call, of which `read` makes a Start for each job."""


class Start(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Lease this job, whose token becomes this one."""

    job: str
    token: int


class Settle(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Store how the run with this token ended: the name of a result, or Discarded."""

    job: str
    token: int
    how: str


class Renew(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Renew the lease with this token."""

    job: str
    token: int


class Expire(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Take the job back if its lease has expired."""

    job: str


class Repair(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Promote a successor whose predecessor has ended."""

    job: str


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Cancel a job, and with `successors` also the one that waits behind it."""

    job: str
    successors: bool = False


class Release(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Release a key."""

    key: str
    force: bool = False


class Look(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Read the holder and successor of every key; `read` makes of one call an operation per key."""


class Idle(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Find that no job of the key is left to run; `read` adds it at the end of a drained run."""


Ask = Enqueue | Lease | Start | Settle | Renew | Expire | Repair | Cancel | Release | Look | Idle


# ── what is answered ──────────────────────────────────────────────────────────────────────────────


class Admitted(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The outcome, the job that serves the request, and the holder at that moment."""

    outcome: str
    job: Seen
    holder: Seen | None = None


class Shown(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The job after the operation, or None: the lease is lost, or there was nothing to do."""

    job: Seen | None = None


class Leased(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Jobs to run."""

    jobs: list[Seen]


class Observation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A holder or successor of a key, and the key's hash as the store has it."""

    key: str
    hash: str
    job: Seen


class Sampled(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """All holders and all successors."""

    holders: list[Observation]
    successors: list[Observation]


class KeyState(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The holder and the successor of one key."""

    holder: Seen | None = None
    successor: Seen | None = None


class Unknown(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """No answer: an error whose effect is unknown."""


Answer = Admitted | Shown | Leased | Sampled | KeyState | Unknown


# ── writing ───────────────────────────────────────────────────────────────────────────────────────


class Call(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The line before a call; a call may ask for several things, in order."""

    number: int
    at: int
    asks: list[Ask]


class Return(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The line after it."""

    number: int
    at: int
    answers: list[Answer]


class Ended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job as the store has it when all is over."""

    key: str
    job: Seen
    superseded_by: str | None = None
    reason: str | None = None


class Absorbed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many requests the store has counted as absorbed."""

    task: str
    outcome: str
    job: str
    count: int


class Close(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the store has when all is over."""

    jobs: list[Ended]
    absorbed: list[Absorbed]
    killed: bool = False  # whether clients were killed, and their last counts with them


class Journal:
    """A file of lines of one process, the last of which may be half if its writer was killed."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._encoder = msgspec.json.Encoder()
        self._number = 0

    def call(self, asks: Sequence[Ask]) -> int:
        """Record what is about to be asked, and return the number of the call."""
        self._number += 1
        self._write(Call(self._number, time.monotonic_ns(), list(asks)))
        return self._number

    def back(self, number: int, answers: Sequence[Answer]) -> None:
        """Record the answers to a call."""
        self._write(Return(number, time.monotonic_ns(), list(answers)))

    def _write(self, line: Call | Return) -> None:
        os.write(self._file, self._encoder.encode(line) + b"\n")


def write_close(folder: Path, close: Close) -> None:
    """Record what the store has when all is over."""
    (folder / "close").write_bytes(msgspec.json.encode(close))


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


class Op(msgspec.Struct, frozen=True, gc=False):
    """One operation on one key, which took effect at one moment between `call` and `back`.

    Without an answer it may have had no effect, or a later one.
    """

    ask: Ask
    answer: Answer | None
    call: int
    back: int
    process: str = ""
    batch: int = 0  # unless 0: what one process asks for in one call takes effect in the order asked

    @property
    def unknown(self) -> bool:
        """Return whether the operation has no answer."""
        return self.answer is None

    def __str__(self) -> str:
        """Return the operation in one line."""
        ends = "…" if self.back == FOREVER else f"{self.back / 1e9:.6f}"
        return f"{self.call / 1e9:.6f}-{ends} {self.process}: {self.ask} → {self.answer or 'unknown'}"


@dataclass(frozen=True)
class History:
    """What happened to each key, what was sampled, and what the store had in the end."""

    keys: dict[str, list[Op]]
    samples: list[Sampled] = field(default_factory=list)
    leases_lost: list[int] = field(default_factory=list)  # when calls began whose leases have no answer
    jobs: dict[str, Ended] = field(default_factory=dict)
    absorbed: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    killed: bool = False  # whether `absorbed` lacks the last counts of killed clients
    drained: bool = False  # whether `jobs` and `absorbed` are complete, and no job was left to run

    @property
    def operations(self) -> Iterator[tuple[str, Op]]:
        """Yield every operation, key by key."""
        return ((key, op) for key, ops in self.keys.items() for op in ops)


def read(folder: Path) -> History:
    """Return what the processes of a run recorded in a folder."""
    close = msgspec.json.decode((folder / "close").read_bytes(), type=Close)
    jobs = {ended.job.job: ended for ended in close.jobs}
    reader = _Reader({job: ended.key for job, ended in jobs.items()})
    for path in sorted(folder.glob("*.history")):
        reader.read(path)
    absorbed = Counter({(a.task, a.outcome, a.job): a.count for a in close.absorbed})
    end = 1 + max((op.back for ops in reader.keys.values() for op in ops if op.back != FOREVER), default=0)
    for ops in reader.keys.values():
        ops.append(Op(Idle(), Shown(), end, end + 1))
    return History(
        reader.keys, reader.samples, reader.leases_lost, jobs, absorbed, close.killed, drained=True
    )


class _Reader:
    """Turns lines into operations."""

    def __init__(self, homes: dict[str, str]) -> None:
        self._homes = homes  # the key of each job
        self._all_keys = sorted(set(homes.values()))
        self._line = msgspec.json.Decoder(Call | Return)
        self.keys: defaultdict[str, list[Op]] = defaultdict(list)
        self.samples: list[Sampled] = []
        self.leases_lost: list[int] = []

    def read(self, path: Path) -> None:
        """Read one process's file; a call that has no second line stays open for ever."""
        calls: dict[int, Call] = {}
        for line in path.read_bytes().split(b"\n")[:-1]:  # what follows the last end of line is half a line
            entry: Call | Return = self._line.decode(line)
            match entry:
                case Call():
                    calls[entry.number] = entry
                case Return():
                    self._enter(path.stem, calls.pop(entry.number), entry.at, entry.answers)
        for call in calls.values():
            self._enter(path.stem, call, FOREVER, [Unknown()] * len(call.asks))

    def _enter(self, process: str, call: Call, back: int, answers: Iterable[Answer]) -> None:
        for ask, answer in zip(call.asks, answers, strict=True):
            for key, asked, known in self._parts(call.at, ask, answer):
                ends = FOREVER if known is None else back
                batch = 0 if isinstance(asked, Start) else call.number
                self.keys[key].append(Op(asked, known, call.at, ends, process, batch))

    def _parts(self, at: int, ask: Ask, answer: Answer) -> Iterator[tuple[str, Ask, Answer | None]]:
        """Yield the part of a call that concerns each key."""
        match ask, answer:
            case Lease(), Leased():
                for seen in answer.jobs:
                    yield self._home(seen.job), Start(seen.job, seen.token), Shown(seen)
            case Lease(), _:
                self.leases_lost.append(at)
            case Look(), Sampled():
                self.samples.append(answer)
                yield from self._key_states(answer)
            case Look(), _:
                pass
            case ((Expire() | Repair()), Shown(None)):
                pass  # the lease was in force, or the job had ended or waited: nothing follows from that
            case ((Enqueue() | Release()), _):
                yield ask.key, ask, _known(answer)
            case _:
                assert isinstance(ask, Settle | Renew | Expire | Repair | Cancel)
                yield self._home(ask.job), ask, _known(answer)

    def _key_states(self, sample: Sampled) -> Iterator[tuple[str, Ask, Answer]]:
        holders = {observation.key: observation.job for observation in sample.holders}
        successors = {observation.key: observation.job for observation in sample.successors}
        for key in self._all_keys:
            yield key, Look(), KeyState(holders.get(key), successors.get(key))

    def _home(self, job: str) -> str:
        return self._homes.get(job, "?")


def _known(answer: Answer) -> Answer | None:
    return None if isinstance(answer, Unknown) else answer
