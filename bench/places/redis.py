"""Redis or Valkey: a real server with an append-only file, and redis-py."""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from redis import Redis as Client
from redis.asyncio import Redis as AsyncClient

from bench.places import Place, Trace, check_room
from onejob.job import Job, State, alter
from tests.servers import Server, redis

SETTINGS = {"auto-aof-rewrite-percentage": "0"}  # none in the middle of a measurement
DATABASES = 64
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
  local own = {string.format('%08x-0000-7000-8000-%012x', n, n), string.rep(string.char(
    n % 256, math.floor(n / 256) % 256, math.floor(n / 65536) % 256, math.floor(n / 16777216)), #key / 4)}
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
def places(folder: Path) -> Iterator[list[Place]]:
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
    def fresh(self, name: str) -> Iterator[str]:  # noqa: ARG002 - a database has a number only
        """Take a database and leave it empty."""
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
    def witness(self, url: str) -> Iterator[Callable[[], Trace]]:
        """Watch the server's own count of changes, anybody's."""
        with Client.from_url(url) as client:

            def trace() -> Trace:
                found: Any = client.info("persistence")
                return Trace((int(found["rdb_changes_since_last_save"]),), int(found["aof_current_size"]))

            yield trace

    def fill(self, url: str, finished: int, live: int, sample: Job, say: Callable[[str], None]) -> None:
        """Write copies of two jobs by a script, with the append-only file off meanwhile."""
        ended = alter(
            sample,
            state=State.COMPLETED,
            started_at=sample.run_at,
            finished_at=sample.run_at,
            held_key=None,
        )
        there = self.count(url)
        with Client.from_url(url, socket_timeout=None) as client:
            check_room(finished + live - there, NEEDED, free_memory())
            client.config_set("appendonly", "no")
            script = client.script_load(FILL)
            for job, first, end in ((ended, there, finished), (sample, finished, finished + live)):
                words = [str(word) if isinstance(word, int) else word for word in spelled(job)]
                for start in range(first, end, CHUNK):
                    if start % 500_000 == 0:
                        say(f"{start:,} jobs")
                    last = min(start + CHUNK, end) - 1
                    client.evalsha(script, 0, job.id, job.key or b"", start, last, *words)
            say("rewriting the append-only file")
            client.config_set("appendonly", "yes")
            while writes(client):
                time.sleep(0.2)
            state: Any = client.info("persistence")
            assert (state["aof_enabled"], state["aof_last_bgrewrite_status"]) == (1, "ok"), state


def free_memory() -> int:
    """Tell how many bytes are free, where the system tells."""
    meminfo = Path("/proc/meminfo")
    found = meminfo.exists() and re.search(r"MemAvailable: *(\d+) kB", meminfo.read_text())
    return int(found[1]) * 1024 if found else sys.maxsize


def writes(client: Client) -> bool:
    """Tell whether the append-only file is still being written anew."""
    found: Any = client.info("persistence")
    return bool(found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"])


def spelled(job: Job) -> Iterator[Any]:
    """Write the commands for a job one after the other, each after the number of its words."""
    for command in commands_of(job):
        yield len(command)
        yield from command


def commands_of(job: Job) -> list[list[Any]]:
    """List what our store writes for a new job: its record, its hold, its entries in the indexes."""
    from onejob.stores.redis import flows

    place = flows.Ground("onejob", 1, lambda: job.created_at, 0).buckets[0]
    return [list(command) for command in flows.insertion(job, None, place).commands]


class Row(NamedTuple):
    """The words of a job's commands that differ from job to job."""

    words: list[Any]


class Script:
    """One script that writes jobs as our store does, unless their keys are held; then it reads the holder.

    It is written for the task at hand: whatever is the same in every job stands in its text.
    """

    def __init__(self, one: Job, other: Job) -> None:
        mine, theirs = commands_of(one), commands_of(other)
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
        return (
            "'"
            + "".join(f"\\{byte:03d}" for byte in (word.encode() if isinstance(word, str) else word))
            + "'"
        )

    def _line(self, line: int, command: Sequence[Any]) -> str:
        words = [self._word(line, column, command) for column in range(2, len(command))]
        return f"redis.call('{command[0]}', {self._key(command)}, {', '.join(words)})"

    def row(self, job: Job) -> Row:
        """Take what is a job's own."""
        commands = commands_of(job)
        return Row([commands[line][column] for line, column in self._places])


class Bare:
    """redis-py with hiredis: one connection, one EVALSHA per call or per thousand."""

    def __init__(self, url: str) -> None:
        self._client = Client.from_url(url, single_connection_client=True)
        self._awaited = AsyncClient.from_url(url, single_connection_client=True)
        self._script: Script | None = None
        self._digest = ""

    def prepare(self, jobs: Sequence[Job]) -> list[Row]:
        """Make the words of jobs, and at the first time the script."""
        if self._script is None:
            self._script = Script(jobs[0], jobs[-1])
            self._digest = str(self._client.script_load(self._script.text))
        return [self._script.row(job) for job in jobs]

    def each(self, rows: Sequence[Row]) -> None:
        """Write by one call each."""
        assert self._script is not None  # who has rows has prepared them
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

    def send(self, job: Job) -> None:
        """Push the arguments to a list."""
        self._client.rpush(LIST, job.args)

    async def close(self) -> None:
        """Close both connections."""
        self._client.close()
        await self._awaited.aclose()


def watch(url: str) -> None:
    """Take from the list, waiting for it."""
    import msgspec

    with Client.from_url(url, single_connection_client=True, socket_timeout=None) as client:
        print("ready", flush=True)
        while True:
            taken: Any = client.blpop([LIST])
            print(time.monotonic_ns() - msgspec.json.decode(taken[1])["sent"], flush=True)
