"""Redis or Valkey: a real server with an append-only file, and redis-py."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from redis import Redis as Client
from redis.asyncio import Redis as AsyncClient

from bench.targets import Target, Trace, check_room
from bench.workload import enqueue_invoices, open_app, send_invoices
from tests.servers import Server, redis

SETTINGS = {"auto-aof-rewrite-percentage": "0"}  # none in the middle of a measurement
DATABASES = 63
SCRATCH = 63  # the database in which onejob enqueues what the bare driver then writes
LIST = "bench"
CHUNK = 10_000
NEEDED = 1000  # bytes of memory per job of a crowd; 800 were seen
FILL = """
local id, key, from, to, width = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), 0
local function parts(text)
  local found, rest = {}, text
  while true do
    local i, j = string.find(rest, id, 1, true)
    local k, l = string.find(rest, key, 1, true)
    if not i and not k then found[#found + 1] = rest return found end
    if k and (not i or k < i) then i, j = k, l end
    found[#found + 1] = string.sub(rest, 1, i - 1)
    found[#found + 1] = j - i + 1 == #id and 1 or 2
    rest = string.sub(rest, j + 1)
  end
end
local commands, at = {}, 5
while at <= #ARGV do
  local words = {}
  for i = 1, tonumber(ARGV[at]) do words[i] = parts(ARGV[at + i]) end
  commands[#commands + 1] = words
  at = at + tonumber(ARGV[at]) + 1
end
for n = from, to do
  local number = string.format('%08x', n)
  local own = {string.format('%s-0000-7000-8000-%012x', number, n), string.rep(number, #key / 8)}
  for _, words in ipairs(commands) do
    local call = {}
    for i, pieces in ipairs(words) do
      local text = {}
      for j, piece in ipairs(pieces) do text[j] = own[piece] or piece end
      call[i] = table.concat(text)
    end
    redis.call(unpack(call))
  end
end
"""


@contextmanager
def targets(folder: Path) -> Iterator[list[Target]]:
    """Start a server that writes its file every second."""
    tempfile.tempdir = str(folder)
    try:
        with redis(durable=True, appendfsync="everysec", settings=SETTINGS) as server:
            yield [Redis(server)]
    finally:
        tempfile.tempdir = None


class Redis:
    """Numbered databases on one server."""

    label = "Redis"
    asks = True
    untouched = "no change"
    bars: ClassVar[dict[str, float | None]] = {
        "blocking": 0.6,
        "awaited": 0.6,
        "together": 3,
        "duplicates": 0.6,
        "bulk": 0.5,
        "drain": 3,
        "latency": 3,
        "crowd": 1.25,
        "chains": 1.3,
        "drain-8": None,
        "limited": None,
        "held": None,
    }
    batch = 1_000
    producers = 16
    drained = 10_000, 2_000
    crowds = ((1_000_000, 0), (10_000_000, 0))
    quick_crowds = ((1_000_000, 0),)
    peers = ("dramatiq", "taskiq")

    def __init__(self, server: Server) -> None:
        self._url = server.url
        self._numbers = count(1)
        with Client.from_url(server.url) as client:
            found: Any = client.info()
            keeps: Any = client.config_get("append*")
        name = "Valkey" if "valkey_version" in found else "Redis"
        self.software = (
            f"{name} {found.get('valkey_version', found['redis_version'])}, "
            f"appendonly {keeps['appendonly']}, appendfsync {keeps['appendfsync']}, {server.folder}"
        )

    @contextmanager
    def empty_store(self, name: str) -> Iterator[str]:  # noqa: ARG002 - a database only has a number
        """Yield the URL of an empty database, and empty it again."""
        number = next(self._numbers) % DATABASES
        url = urlunsplit(urlsplit(self._url)._replace(path=f"/{number}"))
        with Client.from_url(url) as client:
            client.flushdb()
            yield url
            client.flushdb(asynchronous=True)

    def bare(self, url: str) -> Bare:
        """Open the database; there is no schema."""
        return Bare(url)

    def count(self, url: str) -> int:
        """Count the records."""
        with Client.from_url(url) as client:
            return sum(int(client.hlen(name)) for name in client.scan_iter(match="{onejob:*}:jobs"))

    @contextmanager
    def watch_writes(self, url: str) -> Iterator[Callable[[], Trace]]:
        """Watch the server's own count of changes, by any client."""
        with Client.from_url(url) as client:

            def trace() -> Trace:
                found: Any = client.info("persistence")
                return Trace((int(found["rdb_changes_since_last_save"]),), int(found["aof_current_size"]))

            yield trace

    def fill(self, url: str, finished: int, live: int, say: Callable[[str], None]) -> None:
        """Write copies of two jobs by a script, with the append-only file off meanwhile."""
        there = self.count(url)
        samples = {"finished": sample(url, finished=True), "live": sample(url, finished=False)}
        with Client.from_url(url, socket_timeout=None) as client:
            check_room(finished + live - there, NEEDED, free_memory())
            client.config_set("appendonly", "no")
            script = client.script_load(FILL)
            for kind, first, end in (("finished", there, finished), ("live", finished, finished + live)):
                job = samples[kind]
                for start in range(first, end, CHUNK):
                    if start % 500_000 == 0:
                        say(f"{start:,} jobs")
                    last = min(start + CHUNK, end) - 1
                    client.evalsha(script, 0, job.id, job.key, start, last, *job.spelled())
            say("rewriting the append-only file")
            client.config_set("appendonly", "yes")
            while writes(client):
                time.sleep(0.2)
            state: Any = client.info("persistence")
            assert (state["aof_enabled"], state["aof_last_bgrewrite_status"]) == (1, "ok"), state


def free_memory() -> int:
    """Return how many bytes of memory are free, where the system shows it."""
    meminfo = Path("/proc/meminfo")
    found = meminfo.exists() and re.search(r"MemAvailable: *(\d+) kB", meminfo.read_text())
    return int(found[1]) * 1024 if found else sys.maxsize


def writes(client: Client) -> bool:
    """Return whether the append-only file is still being rewritten."""
    found: Any = client.info("persistence")
    return bool(found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"])


# ── what onejob writes ────────────────────────────────────────────────────────────────────────────

Command = list[bytes]


class Recorded(NamedTuple):
    """A job as the commands that write it, read from a database in which onejob has written it."""

    id: bytes
    key: bytes
    customer: int
    commands: list[Command]

    def spelled(self) -> Iterator[Any]:
        """Yield the commands one after the other, each after the number of its words."""
        for command in self.commands:
            yield len(command)
            yield from command


def scratch_of(url: str) -> str:
    """Return the URL of the scratch database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{SCRATCH}"))


def sample(url: str, *, finished: bool) -> Recorded:
    """Return one job, as onejob leaves it in an empty database."""
    scratch = scratch_of(url)
    with Client.from_url(scratch) as client:
        client.flushdb()
        enqueue_invoices(scratch, [-1])
        live = recorded(client, dict.fromkeys(ids_of(client), -1))[0]
        if not finished:
            return live
        send_invoices(scratch)
        return recorded(client, {live.id: -1})[0]._replace(key=live.key)


def ids_of(client: Client) -> list[bytes]:
    """Return the ids of all jobs."""
    return [job_id for name in client.scan_iter(match="{onejob:*}:jobs") for job_id in client.hkeys(name)]


def recorded(client: Client, customers: dict[bytes, int]) -> list[Recorded]:
    """Return all jobs of a database, each with the entries that name it, and with what all jobs share."""
    shared: list[Command] = []
    own: defaultdict[bytes, list[Command]] = defaultdict(list)
    for command in sorted(entries(client)):
        job_id = next((word for word in map(id_in, command[2:]) if word in customers), None)
        if job_id is not None:
            own[job_id].append(command)
        elif command[1].endswith(b":counts"):
            shared.append([b"HINCRBY", command[1], command[2], b"1"])
    return [
        Recorded(job_id, key_in(commands), customers[job_id], [*commands, *shared])
        for job_id, commands in own.items()
    ]


def entries(client: Client) -> Iterator[Command]:
    """Yield every entry of every hash, set and sorted set, as the command that writes it."""
    for name in client.scan_iter():
        found: Any
        match client.type(name):
            case b"hash":
                found = client.hgetall(name)
                yield from ([b"HSET", name, field, value] for field, value in found.items())
            case b"zset":
                found = client.zrange(name, 0, -1, withscores=True)
                yield from ([b"ZADD", name, b"%d" % score, member] for member, score in found)
            case b"set":
                found = client.smembers(name)
                yield from ([b"SADD", name, member] for member in found)


UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def id_in(word: bytes) -> bytes | None:
    """Return the id of a job that a word contains."""
    found = UUID.search(word)
    return found[0] if found else None


def key_in(commands: Sequence[Command]) -> bytes:
    """Return the key that a job holds, empty if it holds none."""
    return next((command[2] for command in commands if command[1].endswith(b":held")), b"")


class Row(NamedTuple):
    """The words of a job's commands that differ from job to job."""

    words: list[Any]


class Script:
    """One script that writes jobs as onejob does, unless their keys are held; then it reads the holder.

    It is written for one task: what is equal in every job is part of its text.
    """

    def __init__(self, one: Recorded, other: Recorded) -> None:
        mine, theirs = one.commands, other.commands
        self.keys = list(dict.fromkeys(command[1] for command in mine))
        self._places = [
            (line, column)
            for line, command in enumerate(mine)
            for column in range(2, len(command))
            if command[column] != theirs[line][column]
        ]
        lines = [self._line(line, command) for line, command in enumerate(mine)]
        [hold] = [line for line, command in enumerate(mine) if command[1].endswith(b":held")]
        [jobs] = [line for line, command in enumerate(mine) if command[1].endswith(b":jobs")]
        holder = f"redis.call('HGET', {self._key(mine[hold])}, {self._word(hold, 2, mine[hold])})"
        self.text = f"""
            local answers = {{}}
            for at = 0, #ARGV - 1, {len(self._places)} do
              if {lines.pop(hold).replace("'HSET'", "'HSETNX'")} == 1 then
                {" ".join(lines)}
                answers[#answers + 1] = 1
              else
                answers[#answers + 1] = redis.call('HGET', {self._key(mine[jobs])}, {holder})
              end
            end
            return answers
        """

    def _key(self, command: Sequence[Any]) -> str:
        return f"KEYS[{self.keys.index(command[1]) + 1}]"

    def _word(self, line: int, column: int, command: Sequence[Any]) -> str:
        if (line, column) in self._places:
            return f"ARGV[at + {self._places.index((line, column)) + 1}]"
        word = command[column]
        return "'" + "".join(f"\\{byte:03d}" for byte in word) + "'"

    def _line(self, line: int, command: Sequence[Any]) -> str:
        words = [self._word(line, column, command) for column in range(2, len(command))]
        return f"redis.call('{command[0].decode()}', {self._key(command)}, {', '.join(words)})"

    def row(self, job: Recorded) -> Row:
        """Return the words in which a job differs from others."""
        return Row([job.commands[line][column] for line, column in self._places])


class Bare:
    """redis-py with hiredis: one connection, one EVALSHA per call or per thousand."""

    def __init__(self, url: str) -> None:
        self._client = Client.from_url(url, single_connection_client=True)
        self._awaited = AsyncClient.from_url(url, single_connection_client=True)
        self._scratch = scratch_of(url)
        self._script: Script | None = None
        self._digest = ""

    def prepare(self, customers: Sequence[int]) -> list[Row]:
        """Return the words of the jobs that onejob writes, and create the script the first time."""
        app, task = open_app(self._scratch)
        different = list(dict.fromkeys(customers))
        with Client.from_url(self._scratch) as scratch:
            scratch.flushdb()
            admissions = app.enqueue_many_sync([task.call(customer, "July") for customer in different])
            of_id = {
                one.job.id.encode(): customer for one, customer in zip(admissions, different, strict=True)
            }
            jobs = {job.customer: job for job in recorded(scratch, of_id)}
            scratch.flushdb()
        app.close_sync()
        if self._script is None:
            first, last = jobs[customers[0]], jobs[customers[-1]]
            self._script = Script(first, last)
            self._digest = str(self._client.script_load(self._script.text))
        return [self._script.row(jobs[customer]) for customer in customers]

    def each(self, rows: Sequence[Row]) -> None:
        """Write by one call each."""
        assert self._script is not None  # `prepare` made the rows
        call, digest, keys = self._client.evalsha, self._digest, self._script.keys
        for [words] in rows:
            call(digest, len(keys), *keys, *words)

    async def each_awaited(self, rows: Sequence[Row]) -> None:
        """Write by one call each."""
        assert self._script is not None  # as above
        call, digest, keys = self._awaited.evalsha, self._digest, self._script.keys
        for [words] in rows:
            await call(digest, len(keys), *keys, *words)

    def ask(self, rows: Sequence[Row]) -> None:
        """Write or read the holder by one call each: the script does both."""
        self.each(rows)

    async def ask_awaited(self, rows: Sequence[Row]) -> None:
        """Write or read the holder by one call each."""
        await self.each_awaited(rows)

    def many(self, rows: Sequence[Row]) -> None:
        """Write by one call in all."""
        assert self._script is not None  # as above
        keys = self._script.keys
        verdicts: Any = self._client.evalsha(
            self._digest, len(keys), *keys, *(word for [words] in rows for word in words)
        )
        assert verdicts == [1] * len(rows)

    def send(self, sent: int) -> None:
        """Push the argument to a list."""
        self._client.rpush(LIST, json.dumps({"sent": sent}))

    async def close(self) -> None:
        """Close both connections."""
        self._client.close()
        await self._awaited.aclose()


def watch(url: str) -> None:
    """Pop from the list, and wait for more."""
    with Client.from_url(url, single_connection_client=True, socket_timeout=None) as client:
        print("ready", flush=True)
        while True:
            taken: Any = client.blpop([LIST])
            print(time.monotonic_ns() - json.loads(taken[1])["sent"], flush=True)
