"""Build requests: bind, encode, digest, key and id. What does not change between calls is prepared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from msgspec import structs

from onejob.core import key
from onejob.core.blockers import begin_arrivals, encode_chains
from onejob.core.decide import Request
from onejob.core.durations import duration
from onejob.core.fluent import policy_of
from onejob.core.job import EPOCH, Job, State
from onejob.core.policy import Unique
from onejob.engine.engine import Engine
from onejob.engine.sealing import digest_of
from onejob.errors import InvalidCall, MissingKeyField
from onejob.tasks.declaration import Declaration, check_policy
from onejob.tasks.ids import Slot, bucket_of, reserve, write_id
from onejob.tasks.options import WITH_BLOCKERS, Options, chains_of
from onejob.tasks.registry import Registry
from onejob.tasks.running import running
from onejob.tasks.signature import encode

KEY_SCHEME = 1  # a new one opens new keys
NO_META = b"{}"


def make_template(**shared: Any) -> Job:
    """Return what jobs share, with nothing in the fields that differ from call to call.

    State, times and hold are not part of a request: the admission adds them by the store's clock.
    """
    return Job(
        id="",
        chain_id="",
        place=0,
        args=b"",
        payload_digest=b"",
        state=State.AVAILABLE,
        run_at=EPOCH,
        created_at=EPOCH,
        **shared,
    )


def make_next(template: Job, payload: tuple[bytes, bytes], job: Job, partition: str | None) -> Job:
    """Return the job that follows another one in its chain; it has no key of its own."""
    slot = reserve()
    return structs.replace(
        template,
        id=write_id(slot, bucket_of(job.chain_id)),
        place=slot[0],
        args=payload[0],
        payload_digest=payload[1],
        chain_id=job.chain_id,
        parent_id=job.id,
        partition=partition,
    )


class RequestBuilder:
    """A task with its options, ready to build requests."""

    def __init__(
        self, engine: Engine, registry: Registry, declaration: Declaration, options: Options
    ) -> None:
        self.engine = engine
        self.registry = registry
        self.declaration = declaration
        self.options = options

    def with_options(self, **changes: Any) -> RequestBuilder:
        """Return a builder with other options; raise for options that do not fit the task."""
        options = replace(self.options, **changes)
        builder = RequestBuilder(self.engine, self.registry, self.declaration, options)
        if options.unique is not None:
            builder.check(policy_of(options.unique))
        return builder

    def check(self, policy: Unique | None) -> None:
        """Raise for a policy that does not fit the task, the store or the app's codec."""
        check_policy(policy, self.declaration, self.engine.store, sealed=self.engine.sealer is not None)

    # ── what does not change ──────────────────────────────────────────────────────────────────────

    @cached_property
    def policy(self) -> Unique | None:
        """The policy in force: the call's own, or the task's."""
        chosen = self.options.unique
        policy = self.declaration.unique if chosen is None else policy_of(chosen)
        if self.options.key is not None:
            return replace(policy or Unique(), by=None, key=self.options.key)
        return policy

    @cached_property
    def at_hand(self) -> dict[str, Job]:
        """The jobs of chains that the call waits for, as far as the caller gave jobs."""
        chains = chains_of(self.options.after, "after")
        return {chain: job for chain, job in chains.items() if job is not None}

    @cached_property
    def queue(self) -> str:
        """The queue of the call; raises UnknownQueue if it is not declared."""
        return self.registry.queue(self.options.queue or self.declaration.queue).name

    @cached_property
    def delay(self) -> timedelta | None:
        """How long after its request the job runs."""
        policy, options = self.policy, self.options
        if policy is not None and policy.wait is not None and (options.delay or options.run_at):
            raise InvalidCall("wait= says when a debounced job runs: leave delay= and run_at= out.")
        if options.delay is None:
            return None if options.run_at is not None else self.declaration.delay
        return duration(options.delay)

    @cached_property
    def expires_in(self) -> timedelta | None:
        """How long after its request the job may start."""
        if self.options.expires_at is not None:
            return None
        chosen = self.options.expires_in
        return self.declaration.expires_in if chosen is None else duration(chosen)

    @cached_property
    def template(self) -> Job:
        """What all jobs of this task and these options share."""
        task, options = self.declaration, self.options
        chains = list(chains_of(options.after, "after"))
        meta = NO_META if options.meta is None else self._encode(dict(options.meta), "meta=")
        return make_template(
            namespace=self.engine.namespace,
            task=task.name,
            queue=self.queue,
            priority=task.priority if options.priority is None else options.priority,
            meta=meta,
            retry=options.retry or task.retry,
            replay=task.replay,
            retention=task.retention,
            timeout=task.timeout if options.timeout is None else duration(options.timeout).total_seconds(),
            traits=WITH_BLOCKERS[options.on_blocker_failure] | options.traits,
            expires_at=options.expires_at,
            blockers=encode_chains(chains) if chains else None,
            arrived=begin_arrivals(chains) if chains else None,
        )

    @cached_property
    def timed(self) -> Request:
        """What all requests of this task and these options share, also those that continue a chain."""
        return Request(
            self.template,
            delay=self.delay,
            run_at=self.options.run_at,
            expires_in=self.expires_in,
            force=self.options.force,
        )

    @cached_property
    def limited(self) -> Request:
        """What all requests share that are admitted, which the queue and other jobs may prevent."""
        max_depth = self.registry.queue(self.queue).max_depth
        excludes = frozenset(chains_of(self.options.exclude, "exclude"))
        return structs.replace(self.timed, max_depth=max_depth, excludes=excludes)

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def request(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], slot: Slot | None = None) -> Request:
        """Return the request of a call; raise what is wrong with the call before anything is stored."""
        policy = self.policy
        bound = self.declaration.signature.bind(args, kwargs)
        payload = self.pack(bound)  # first: a wrong argument gets the same answer with and without a key
        hashed = version = None
        if policy is not None:
            hashed, version = self.key_of(bound, policy), version_of(bound, policy)
        run = running()
        parent_id, chain_id = (None, None) if run is None else (run.job.id, run.job.chain_id)
        job = self._job(bound, payload, hashed, slot=slot, version=version, parent_id=parent_id)
        policy = None if hashed is None else policy  # a key function may say: not unique this time
        return structs.replace(self.limited, job=job, policy=policy, running_chain=chain_id)

    def keyed_request(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], hashed: bytes) -> Request:
        """Return the request of a call whose key is given, outside of any run."""
        bound = self.declaration.signature.bind(args, kwargs)
        job = self._job(bound, self.pack(bound), hashed)
        return structs.replace(self.limited, job=job)

    def pack(self, bound: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """Return the arguments, and the digest of the payload."""
        args = encode(bound, "The arguments", self.engine.max_args, aware=True)
        if self.declaration.check:
            self.declaration.signature.check(args)
        return args, digest_of(self.engine.sealer, args, self.template.meta)

    def _encode(self, value: Any, what: str) -> bytes:
        return encode(value, what, self.engine.max_args, aware=True)

    def _job(
        self,
        bound: Mapping[str, Any],
        payload: tuple[bytes, bytes],
        hashed: bytes | None,
        *,
        slot: Slot | None = None,
        version: int | None = None,
        parent_id: str | None = None,
    ) -> Job:
        slot = slot or reserve()
        job_id = write_id(slot, hashed)
        return structs.replace(
            self.template,
            id=job_id,
            chain_id=job_id,
            place=slot[0],
            args=payload[0],
            payload_digest=payload[1],
            key=hashed,
            version=version,
            parent_id=parent_id,
            partition=self.partition_of(bound),
        )

    def continuation(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], job: Job) -> Request:
        """Return the request of the next job of a chain, which has no key of its own."""
        bound = self.declaration.signature.bind(args, kwargs)
        following = make_next(self.template, self.pack(bound), job, self.partition_of(bound))
        return structs.replace(self.timed, job=following)

    # ── partitions ────────────────────────────────────────────────────────────────────────────────

    def partition_of(self, bound: Mapping[str, Any]) -> str | None:
        """Return the partition of a call, whose share of the queue's capacity it uses."""
        chosen = self.declaration.partition
        if chosen is None:
            return self.no_partition
        if callable(chosen):
            value = self._call(bound, chosen, "partition")
        else:
            [value] = key.pick(bound, [chosen]).values()
        if value is None:
            return self.no_partition
        name = value if isinstance(value, str) else key.canonical(value).decode()
        return name if self.engine.sealer is None else self.engine.sealer.name(name)

    @cached_property
    def no_partition(self) -> str | None:
        """The partition of a job without one: in a queue with shares it must be listed among the others."""
        return None if self.registry.queue(self.queue).partition_concurrency is None else ""

    # ── keys ──────────────────────────────────────────────────────────────────────────────────────

    def key_of(self, bound: Mapping[str, Any], policy: Unique) -> bytes | None:
        """Return the key of a call; None if a key function says that it is not unique."""
        if policy.key is None and not policy.queue and not policy.meta:
            return self._form.digest(bound)
        dimensions = self.dimensions(bound, policy)
        return None if dimensions is None else key.digest(dimensions, self.engine.secret)

    @cached_property
    def _form(self) -> key.Form:
        """What the keys of this task share, if only arguments make them differ."""
        policy = self.policy
        assert policy is not None  # only keyed calls need it
        paths = self.declaration.signature.names if policy.by is None else policy.by
        return key.Form(paths, self._common(policy), self.engine.secret)

    def _common(self, policy: Unique) -> dict[str, Any]:
        common = {"v": KEY_SCHEME, "namespace": self.engine.namespace}
        own = {"task": self.declaration.name} if policy.family is None else {"family": policy.family}
        return common | own

    def dimensions(self, bound: Mapping[str, Any], policy: Unique) -> dict[str, Any] | None:
        """Return, in clear text, what makes calls the same work; None if a key function returned None."""
        found = self._common(policy)
        if isinstance(policy.key, str):
            found["key"] = policy.key
        elif policy.key is not None:
            found["key"] = self._call_key(bound, policy.key)
            if found["key"] is None:
                return None
        else:
            found["args"] = bound if policy.by is None else key.pick(bound, policy.by)
        if policy.queue:
            found["queue"] = self.queue
        if policy.meta:
            found["meta"] = self._key_meta(policy.meta)
        return found

    def _call_key(self, bound: Mapping[str, Any], function: Callable[..., object]) -> object:
        value = self._call(bound, function, "key")
        if value == "":
            name = self.declaration.name
            raise InvalidCall(
                f'The key function of {name} returned "", which would make all calls one: return None.'
            )
        return value

    def _call(self, bound: Mapping[str, Any], function: Callable[..., object], what: str) -> object:
        """Call a function of the policy with the arguments that it asks for."""
        names = inspect.signature(function).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())
        given = {name: value for name, value in bound.items() if takes_all or name in names}
        try:
            return function(**given)
        except Exception as error:
            raise InvalidCall(
                f"The {what} function of {self.declaration.name} raised {type(error).__name__}: {error}"
            ) from error

    def _key_meta(self, names: Sequence[str]) -> dict[str, Any]:
        meta = self.options.meta or {}
        if missing := [name for name in names if name not in meta]:
            raise MissingKeyField(
                f"The key of {self.declaration.name} needs meta {missing}: "
                f"write options(meta={{{missing[0]!r}: …}})."
            )
        return {name: meta[name] for name in names}


def version_of(bound: Mapping[str, Any], policy: Unique) -> int | None:
    """Return a call's version: a 64-bit integer, or an aware time in microseconds."""
    if policy.version is None:
        return None
    value = bound[policy.version]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value.astimezone(UTC) - EPOCH) // timedelta.resolution
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return value
    raise InvalidCall(
        f"{policy.version}= is the version: pass a 64-bit integer or a datetime with a time zone."
    )
