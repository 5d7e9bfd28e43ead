"""What the server is and how it is set: read when the store opens, and by `onejob doctor`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from onejob.errors import SchemaMismatch, StoreError, StoreUnavailable
from onejob.stores.contract import Finding, Guarantees, Schema
from onejob.stores.redis import reading
from onejob.stores.redis.engine import Engine
from onejob.stores.redis.flows import Ask, Flow, Ground
from onejob.stores.redis.layout import VERSION

OLDEST = (6, 2)
UNREACHABLE = "See that the server runs, and that the URL names it."
FAILOVER = "failover to a replica: acknowledged jobs may be lost there, and their keys be granted again"


def inspect_all(engine: Engine) -> list[dict[str, str]]:
    """Read what every server that has jobs of ours tells about itself."""
    return [inspect(engine, bucket) for bucket in engine.nodes.each.values()]


def inspect(engine: Engine, bucket: int = 0) -> dict[str, str]:
    """Read what a server tells about itself."""
    [text] = engine.ask([Ask(bucket, ("INFO",))])
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines() if ":" in line)
    facts = {name: value for name, _, value in lines}
    return facts | settings(engine, bucket)


def settings(engine: Engine, bucket: int) -> dict[str, str]:
    """Read how it is set, where that may be asked: hosted servers forbid it."""
    try:
        [pairs] = engine.ask([Ask(bucket, ("CONFIG", "GET", "appendfsync"))])
    except StoreUnavailable:
        raise
    except StoreError:
        return {}
    return {name.decode(): value.decode() for name, value in reading.pairs(pairs)}


def declare(facts: Mapping[str, str], *, cluster: bool) -> Guarantees:
    """Say what the settings promise."""
    return Guarantees(
        store="redis",
        strength="strong",
        scope="all clients of one cluster" if cluster else "all clients of one primary",
        durability=durability(facts),
        not_promised=FAILOVER,
    )


def durability(facts: Mapping[str, str]) -> str:
    """Say what a crash may take."""
    if facts.get("aof_enabled") != "1":
        return "none that is declared: the server keeps no append-only file (appendonly no)"
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


def prepare(engine: Engine, ground: Ground) -> None:
    """Refuse a server that would lose or mix jobs, and write down how they are laid out."""
    for facts in inspect_all(engine):
        if refused := unfit(facts):
            raise StoreError(f"{engine.target.label}: {refused.message} {refused.advice}")
    label, found = engine.target.label, read_meta(engine, ground)
    if not found:
        name = meta(ground)
        fields = ("version", VERSION, "buckets", len(ground.buckets))
        pairs = zip(fields[::2], fields[1::2], strict=True)
        engine.ask([Ask(0, ("HSETNX", name, field, value)) for field, value in pairs])
        found = read_meta(engine, ground)
    if found["version"] > VERSION:
        raise SchemaMismatch(f"{label} has layout {found['version']}, newer than {VERSION}: upgrade onejob.")
    if found["buckets"] != len(ground.buckets):
        raise SchemaMismatch(
            f"{label} has its jobs in {found['buckets']} buckets, not {len(ground.buckets)}: "
            f"write ?buckets={found['buckets']}, or another ?prefix=."
        )


def unfit(facts: Mapping[str, str]) -> Finding | None:
    """Find why this server cannot be used, if so."""
    version = tuple(int(part) for part in facts.get("redis_version", "0").split(".")[:2] if part.isdecimal())
    if version < OLDEST:
        message = f"it is Redis {facts.get('redis_version')}, and onejob needs 6.2 or newer."
        return Finding("server", "fail", message, "Upgrade it, or use Valkey.")
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy.startswith("allkeys-"):
        message = f"maxmemory-policy {policy} throws jobs and holds away when memory is short."
        return Finding("eviction", "fail", message, "Set maxmemory-policy noeviction.")
    return None


def meta(ground: Ground) -> bytes:
    """Name the hash that says how jobs are laid out."""
    return ground.buckets[0].tag + b"meta"


def read_meta(engine: Engine, ground: Ground) -> dict[str, int]:
    """Read how jobs are laid out; empty if there have been none."""
    [reply] = engine.ask([Ask(0, ("HGETALL", meta(ground)))])
    try:
        return {name.decode(): int(value) for name, value in reading.pairs(reply)}
    except ValueError:
        raise SchemaMismatch(f"{engine.target.label}: {meta(ground).decode()} is not onejob's.") from None


def schema(engine: Engine, ground: Ground) -> Schema:
    """Tell the version of the layout that is there."""
    return Schema(read_meta(engine, ground).get("version", 0), VERSION)


# ── the doctor ────────────────────────────────────────────────────────────────────────────────────


def examine(engine: Engine, ground: Ground) -> list[Finding]:
    """Look at everything that can be seen without writing."""
    findings = [clock(engine), layout(engine, ground), engine.run(orphans(ground))]
    for facts in inspect_all(engine):
        findings += [server(facts), eviction(facts), append_only(facts), role(facts)]
    return findings


def server(facts: Mapping[str, str]) -> Finding:
    """Name the server."""
    valkey = facts.get("valkey_version")
    name = f"Valkey {valkey}" if valkey else f"Redis {facts.get('redis_version', 'of unknown version')}"
    wrong = unfit(facts)
    if wrong is not None and wrong.check == "server":
        return wrong
    return Finding("server", "ok", f"{name}.")


def eviction(facts: Mapping[str, str]) -> Finding:
    """Tell whether the server may throw jobs away."""
    policy = facts.get("maxmemory_policy", "unknown")
    wrong = unfit(facts)
    if wrong is not None and wrong.check == "eviction":
        return wrong
    if policy == "noeviction":
        return Finding(
            "eviction", "ok", "maxmemory-policy noeviction: a full memory refuses, and forgets nothing."
        )
    message = f"maxmemory-policy {policy} spares our keys, which never expire, as long as nobody changes it."
    return Finding("eviction", "warn", message, "Set maxmemory-policy noeviction.")


def append_only(facts: Mapping[str, str]) -> Finding:
    """Tell what a crash may take."""
    message = f"A stored job: {durability(facts)}."
    if facts.get("aof_enabled") != "1":
        return Finding("append-only file", "warn", message, "Set appendonly yes.")
    if facts.get("aof_last_write_status", "ok") != "ok":
        message = "The last write to the append-only file failed."
        return Finding("append-only file", "fail", message, "See that its disk has room and can be written.")
    return Finding("append-only file", "ok", message)


def role(facts: Mapping[str, str]) -> Finding:
    """Tell whether this is the server that can be written."""
    if facts.get("role") == "slave":
        primary = f"{facts.get('master_host')}:{facts.get('master_port')}"
        return Finding(
            "role", "fail", "It is a replica, which cannot be written.", f"Name its primary, {primary}."
        )
    replicas = facts.get("connected_slaves", "0")
    return Finding("role", "ok", f"It is a primary with {replicas} replicas; not promised: {FAILOVER}.")


def clock(engine: Engine) -> Finding:
    """Compare the server's clock with this machine's."""
    asked = time.time()
    [answer] = engine.ask([Ask(0, ("TIME",))])
    apart = int(answer[0]) + int(answer[1]) / 1e6 - (asked + time.time()) / 2
    message = f"The server's clock, which rules, is {apart:+.3f} s from this machine's."
    if abs(apart) > 1:
        return Finding(
            "clock", "warn", message, "Let both follow a time service: what you schedule is read here."
        )
    return Finding("clock", "ok", message)


def layout(engine: Engine, ground: Ground) -> Finding:
    """Compare the layout with the one that this onejob knows."""
    found = read_meta(engine, ground)
    if not found:
        return Finding(
            "schema", "warn", "There are no jobs of onejob yet.", "The first use of the app makes them."
        )
    if found["version"] > VERSION:
        message = f"The layout has version {found['version']}, newer than {VERSION}, which this onejob knows."
        return Finding("schema", "fail", message, "Upgrade onejob.")
    number = found["buckets"]
    if number != len(ground.buckets):
        message = f"Jobs lie in {number} buckets, and this app looks in {len(ground.buckets)}."
        return Finding("schema", "fail", message, f"Write ?buckets={number}, or another ?prefix=.")
    return Finding("schema", "ok", f"The layout has version {found['version']}, in {number} buckets.")


def orphans(ground: Ground) -> Flow[Finding]:
    """Count holds without a job that holds: there must be none."""
    wrong: list[str] = []
    for place in ground.buckets:
        for name, field in ((place.held, "held_key"), (place.next, "next_key")):
            pointers = yield from reading.scan(place, name)
            jobs = yield from reading.fetch([(place, job_id) for job_id in pointers.values()])
            wrong += [
                key.hex() for key, job in zip(pointers, jobs, strict=True) if _points(job, field) != key
            ]
    if not wrong:
        return Finding("orphans", "ok", "Every hold belongs to a job that is there.")
    message = f"{len(wrong)} holds belong to no job, the first of key {wrong[0]}."
    advice = f"Free them: onejob release {wrong[0]}; and report this as a bug, unless somebody removed keys."
    return Finding("orphans", "fail", message, advice)


def _points(job: Any, field: str) -> bytes | None:
    return None if job is None else getattr(job, field)
