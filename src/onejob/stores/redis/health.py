"""What the server is and how it is set: read when the store opens, and by `onejob doctor`."""

from __future__ import annotations

import time
from collections.abc import Mapping

from onejob.core.job import Stand
from onejob.errors import SchemaMismatch, StoreError, StoreUnavailable
from onejob.stores.contract import Finding, Guarantees, Schema
from onejob.stores.redis import errors
from onejob.stores.redis.cluster import Nodes
from onejob.stores.redis.connection import SCRIPTS, Connections
from onejob.stores.redis.groups import Call, Flow
from onejob.stores.redis.layout import VERSION, Keyspace
from onejob.stores.redis.reads import fetch, pairs, scan

OLDEST = (6, 2)
UNREACHABLE = "See that the server runs, and that the URL names it."
FAILOVER = "failover to a replica: acknowledged jobs may be lost there, and their keys be granted again"


class Server:
    """The server or the cluster of a store, as far as it is examined."""

    def __init__(self, nodes: Nodes, space: Keyspace, connections: Connections) -> None:
        self.label = nodes.target.label
        self.nodes, self.space, self.connections = nodes, space, connections

    def facts(self, bucket: int = 0) -> dict[str, str]:
        """Return what a server says about itself."""
        [text] = self.connections.ask([Call(bucket, ("INFO",))])
        lines = (line.partition(":") for line in text.decode(errors="replace").splitlines() if ":" in line)
        return {name: value for name, _, value in lines} | self._settings(bucket)

    def _settings(self, bucket: int) -> dict[str, str]:
        """Return how it is set, where that may be asked: hosted servers forbid it."""
        try:
            [reply] = self.connections.ask([Call(bucket, ("CONFIG", "GET", "appendfsync"))])
        except StoreUnavailable as error:
            if errors.MEANINGS["NOPERM"] in str(error):
                return {}
            raise
        except StoreError:
            return {}
        return {name.decode(): value.decode() for name, value in pairs(reply)}

    def all_facts(self) -> list[dict[str, str]]:
        """Return what every server that has jobs says about itself."""
        return [self.facts(bucket) for bucket in self.nodes.each.values()]

    def meta(self) -> dict[str, int]:
        """Return how jobs are laid out; empty if there have been none."""
        [reply] = self.connections.ask([Call(0, ("HGETALL", self.space.meta))])
        try:
            return {name.decode(): int(value) for name, value in pairs(reply)}
        except ValueError:
            raise SchemaMismatch(f"{self.label}: {self.space.meta} is not onejob's.") from None


def declare(facts: Mapping[str, str], *, cluster: bool) -> Guarantees:
    """Return what the settings promise."""
    return Guarantees(
        store="redis",
        strength="strong",
        scope="all clients of one cluster" if cluster else "all clients of one primary",
        durability=durability(facts),
        not_promised=FAILOVER,
    )


def durability(facts: Mapping[str, str]) -> str:
    """Return what a stored job survives."""
    if facts.get("aof_enabled") != "1":
        return "may be lost with the server, which keeps no append-only file (appendonly no)"
    match facts.get("appendfsync"):
        case "always":
            return "survives power loss (appendonly, appendfsync always)"
        case "no":
            return (
                "survives kill -9 of the server; power loss takes what was not yet written (appendfsync no)"
            )
        case _:
            return (
                "survives kill -9 of the server; power loss may take the last second (appendfsync everysec)"
            )


# ── opening ───────────────────────────────────────────────────────────────────────────────────────


def prepare(server: Server) -> None:
    """Refuse a server that would lose or mix jobs; load the scripts; write how jobs are laid out."""
    for facts in server.all_facts():
        if refused := unfit(facts):
            raise StoreError(f"{server.label}: {refused.message} {refused.advice}")
    found = server.meta()
    if not found:
        fields = (("version", VERSION), ("buckets", len(server.space.buckets)))
        server.connections.ask([Call(0, ("HSETNX", server.space.meta, *pair)) for pair in fields])
        found = server.meta()
    if wrong := misfit(found, server.space):
        raise SchemaMismatch(f"{server.label}: {wrong.message} {wrong.advice}")
    loads = [("SCRIPT", "LOAD", text) for text in SCRIPTS.values()]
    server.connections.ask([Call(bucket, words) for bucket in server.nodes.each.values() for words in loads])


def unfit(facts: Mapping[str, str]) -> Finding | None:
    """Return why a server cannot be used, if so."""
    version = tuple(int(part) for part in facts.get("redis_version", "0").split(".")[:2] if part.isdecimal())
    if version < OLDEST:
        message = f"It is Redis {facts.get('redis_version')}, and onejob needs 6.2 or newer."
        return Finding("server", "fail", message, "Upgrade it, or use Valkey.")
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy.startswith("allkeys-"):
        message = f"maxmemory-policy {policy} removes jobs and holds when memory is short."
        return Finding("eviction", "fail", message, "Set maxmemory-policy noeviction.")
    return None


def misfit(found: Mapping[str, int], space: Keyspace) -> Finding | None:
    """Return why jobs that are laid out like this cannot be used, if so."""
    version, buckets, known = found.get("version", 0), found.get("buckets", 0), len(space.buckets)
    if version > VERSION:
        message = f"The layout has version {version}, newer than {VERSION}, which this onejob knows."
        return Finding("schema", "fail", message, "Upgrade onejob.")
    if version < VERSION:
        message = f"The layout has version {version}, which an older onejob wrote; this one knows {VERSION}."
        advice = "Give another ?prefix=, and finish or move the old jobs with the old version."
        return Finding("schema", "fail", message, advice)
    if buckets != known:
        message = f"The number of buckets is {buckets}, not {known}."
        return Finding("schema", "fail", message, f"Write ?buckets={buckets}, or another ?prefix=.")
    return None


def schema(server: Server) -> Schema:
    """Return the version of the layout found."""
    return Schema(server.meta().get("version", 0), VERSION)


# ── the doctor ────────────────────────────────────────────────────────────────────────────────────


def examine(server: Server) -> list[Finding]:
    """Examine everything that can be seen without writing."""
    found: list[Finding | None] = [clock(server), layout(server)]
    if layout(server).level != "fail":
        found.append(server.connections.run(orphans(server.space)))
    for facts in server.all_facts():
        found += [program(facts), eviction(facts), append_only(facts), role(facts)]
    return [finding for finding in found if finding is not None]


def program(facts: Mapping[str, str]) -> Finding:
    """Name the server, or say why it cannot be used."""
    valkey = facts.get("valkey_version")
    name = f"Valkey {valkey}" if valkey else f"Redis {facts.get('redis_version', 'of unknown version')}"
    return unfit(facts) or Finding("server", "ok", f"{name}.")


def eviction(facts: Mapping[str, str]) -> Finding | None:
    """Return whether the server may remove jobs; None if that was said before."""
    policy = facts.get("maxmemory_policy", "unknown")
    if unfit(facts) is not None:
        return None
    if policy == "noeviction":
        message = "maxmemory-policy noeviction: a full memory refuses new jobs, and removes none."
        return Finding("eviction", "ok", message)
    message = f"maxmemory-policy {policy} removes only keys that expire, which jobs do not."
    return Finding("eviction", "warn", message, "Set maxmemory-policy noeviction.")


def append_only(facts: Mapping[str, str]) -> Finding:
    """Return what a crash may take."""
    message = f"A stored job {durability(facts)}."
    if facts.get("aof_enabled") != "1":
        return Finding("append-only file", "warn", message, "Set appendonly yes.")
    if facts.get("aof_last_write_status", "ok") != "ok":
        message = "The last write to the append-only file failed."
        return Finding("append-only file", "fail", message, "See that its disk has room and can be written.")
    return Finding("append-only file", "ok", message)


def role(facts: Mapping[str, str]) -> Finding:
    """Return whether the server can be written."""
    if facts.get("role") == "slave":
        primary = f"{facts.get('master_host')}:{facts.get('master_port')}"
        return Finding(
            "role", "fail", "It is a replica, which cannot be written.", f"Name its primary, {primary}."
        )
    replicas = facts.get("connected_slaves", "0")
    return Finding("role", "ok", f"It is a primary with {replicas} replicas; not promised: {FAILOVER}.")


def clock(server: Server) -> Finding:
    """Compare the server's clock with this machine's."""
    asked = time.time()
    [answer] = server.connections.ask([Call(0, ("TIME",))])
    apart = int(answer[0]) + int(answer[1]) / 1e6 - (asked + time.time()) / 2
    message = f"The server's clock, which decides, is {apart:+.3f} s from this machine's."
    if abs(apart) > 1:
        advice = "Let both follow a time service: what you schedule is read by this machine's clock."
        return Finding("clock", "warn", message, advice)
    return Finding("clock", "ok", message)


def layout(server: Server) -> Finding:
    """Compare the layout with the one that this onejob knows."""
    found = server.meta()
    if not found:
        return Finding(
            "schema", "warn", "There are no jobs of onejob yet.", "The first use of the app makes them."
        )
    buckets = "1 bucket" if found.get("buckets") == 1 else f"{found.get('buckets')} buckets"
    message = f"The layout has version {found.get('version')}, in {buckets}."
    return misfit(found, server.space) or Finding("schema", "ok", message)


def orphans(space: Keyspace) -> Flow[Finding]:
    """Count holds that belong to no job: there must be none."""
    wrong: list[str] = []
    for bucket in space.buckets:
        for name, stand in ((bucket.held, Stand.HOLDER), (bucket.next, Stand.SUCCESSOR)):
            found = yield from scan(bucket, name)
            jobs = yield from fetch([(bucket, job_id) for job_id in found.values()])
            for key, job_id in found.items():
                job = jobs.get(job_id)
                if job is None or job.stand != stand or job.key is None or job.key.hex() != key:
                    wrong.append(key)
    if not wrong:
        return Finding("orphans", "ok", "Every hold belongs to a job that exists.")
    message = f"Without a job: {len(wrong):,} hold{'s' * (len(wrong) > 1)}, the first of key {wrong[0]}."
    advice = f"Free them: onejob release APP {wrong[0]}; and report this as a bug, unless keys were removed."
    return Finding("orphans", "fail", message, advice)
