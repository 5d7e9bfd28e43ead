"""A task is a function with policies; a call is a task with arguments; options say how this once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

import msgspec

from onejob import key
from onejob.admission import Admission
from onejob.blockers import awaited, named
from onejob.codec import open_args, pack
from onejob.context import running
from onejob.decide import Request
from onejob.errors import InvalidCall, InvalidPolicy, MissingKeyField, UnknownQueue
from onejob.fluent import Fluent, policy_of
from onejob.ids import new_id
from onejob.job import EPOCH, Job, Replay, Retry, State, Trait, alter
from onejob.payload import Signature, encode
from onejob.policy import Unique
from onejob.retention import ages
from onejob.schedule import Duration, duration, spell

if TYPE_CHECKING:
    from onejob.app import App, Explanation

P = ParamSpec("P")
R = TypeVar("R")

OnBlockerFailure = Literal["wait", "fail", "ignore"]
WITH_BLOCKERS: Mapping[str, int] = {
    "wait": Trait.NONE,
    "fail": Trait.FAILS_WITH_BLOCKER,
    "ignore": Trait.AFTER_ALL,
}
KEY_SCHEME = 1  # a new one opens new keys
NO_META = b"{}"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How one call differs from its task."""

    delay: Duration | None = None
    run_at: datetime | None = None
    priority: int | None = None
    queue: str | None = None
    unique: Unique | Fluent | bool | None = None
    key: str | None = None
    meta: Mapping[str, Any] | None = None
    retry: Retry | None = None
    timeout: Duration | None = None
    force: bool = False
    connection: Any = None
    expires_at: datetime | None = None
    expires_in: Duration | None = None
    after: Sequence[Any] = ()
    on_blocker_failure: OnBlockerFailure = "wait"
    exclude: Sequence[Any] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise InvalidCall(f"retry={self.retry!r}: write Retry(attempts=…).")
        if self.meta is not None and not isinstance(self.meta, Mapping):
            raise InvalidCall(f"meta={self.meta!r}: write a mapping of names to values.")
        if self.run_at is not None and not isinstance(self.run_at, datetime):
            raise InvalidCall(f"run_at={self.run_at!r}: write a datetime with a time zone, or use delay=.")
        if self.delay is not None and self.run_at is not None:
            raise InvalidCall("delay= and run_at= both say when: write one of them.")
        if self.run_at is not None and self.run_at.tzinfo is None:
            raise InvalidCall("run_at= has no time zone: write datetime(…, tzinfo=UTC).")
        if self.key is not None and (not isinstance(self.key, str) or not self.key):
            raise InvalidCall('key= must be text that is not empty, such as key="user-123".')
        if self.on_blocker_failure not in WITH_BLOCKERS:
            raise InvalidCall(f"on_blocker_failure={self.on_blocker_failure!r}: write wait, fail or ignore.")
        if self.priority is not None and not _is_priority(self.priority):
            raise InvalidCall("priority= must be a whole number of at most 31 bits; higher runs sooner.")
        self._check_expiry()

    def _check_expiry(self) -> None:
        if self.expires_at is not None and self.expires_in is not None:
            raise InvalidCall("expires_at= and expires_in= both say when it is too late: write one of them.")
        if self.expires_at is not None and not _is_aware(self.expires_at):
            raise InvalidCall(f"expires_at={self.expires_at!r}: write a datetime with a time zone.")


def _is_aware(value: object) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _is_priority(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31


def chains_of(some: Sequence[Any], option: str) -> dict[str, Job | None]:
    """Read which chains an option names, and the jobs that come with them."""
    if isinstance(some, str) or not isinstance(some, Iterable):
        some = [some]
    found: dict[str, Job | None] = {}
    for one in some:
        match one:
            case str():
                found[one] = None
            case Job():
                found[one.chain_id] = one
            case Admission():
                found[one.job.chain_id] = one.job
            case _ if hasattr(one, "chain_ids"):
                found |= dict.fromkeys(one.chain_ids)
            case _:
                raise InvalidCall(f"{option}= names {one!r}: give what enqueue returned, a chain, or its id.")
    return found


NO_OPTIONS = Options()


class Call(msgspec.Struct, Generic[R], frozen=True):
    """A task with bound arguments, not yet admitted."""

    task: Task[..., R]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def request(self) -> Request:
        """Make the request: bound, encoded, keyed, checked."""
        return self.task.request(self.args, self.kwargs)


class Task(Generic[P, R]):
    """A named function that can be called at once, or enqueued."""

    def __init__(
        self,
        app: App,
        function: Callable[P, R] | Callable[P, Coroutine[Any, Any, R]],
        *,
        name: str,
        queue: str = "default",
        unique: Unique | Fluent | bool | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        give_up_on: tuple[type[Exception], ...] = (),
        process: bool = False,
        expires_in: Duration | None = None,
        partition: str | Callable[..., object] | None = None,
        replay: Replay | None = None,
        retention: Mapping[State | str, Duration] | None = None,
        options: Options = NO_OPTIONS,
    ) -> None:
        self.app = app
        self.function = function
        self.name = name
        self.queue = queue
        self.unique = policy_of(unique)
        self.retry = retry or app.retry
        self.timeout = None if timeout is None else duration(timeout).total_seconds()
        self.priority = priority
        self.give_up_on = give_up_on
        self.process = process
        self.expires_in = None if expires_in is None else duration(expires_in)
        self.partition = partition
        self.replay = replay
        self.retention = ages(retention or {})
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = Signature(function)
        self._options = options
        update_wrapper(self, function)
        check_declaration(self)
        check(self.unique, self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function itself, here and now; an async one is awaited as ever."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        """Name the task."""
        return f"<Task {self.name}>"

    # ── enqueuing ─────────────────────────────────────────────────────────────────────────────────

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Admission[R]:
        """Ask for this call to be run, and learn what became of the request."""
        return await self.app.admit(self, self.request(args, kwargs), self._options.connection)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Admission[R]:
        """Do `enqueue` from blocking code."""
        return self.app.admit_now(self, self.request(args, kwargs), self._options.connection)

    async def enqueue_quietly(self, *args: P.args, **kwargs: P.kwargs) -> Admission[R] | None:
        """Enqueue, but log a failure instead of raising it, so that it cannot fail a handler."""
        try:
            return await self.enqueue(*args, **kwargs)
        except Exception:
            self.app.log.exception("a quiet enqueue of %s failed", self.name)
            return None

    def enqueue_quietly_sync(self, *args: P.args, **kwargs: P.kwargs) -> Admission[R] | None:
        """Do `enqueue_quietly` from blocking code."""
        try:
            return self.enqueue_sync(*args, **kwargs)
        except Exception:
            self.app.log.exception("a quiet enqueue of %s failed", self.name)
            return None

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Bind arguments without enqueuing."""
        return Call(self, args, kwargs)

    def step(self, *args: Any, **kwargs: Any) -> Call[R]:
        """Bind arguments but one, which in a chain is the result before it; a type checker lets it pass."""
        return Call(self, args, kwargs)

    async def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """Tell what enqueuing this would do, and why, without doing or counting it."""
        return await self.app.explain(self, args, kwargs)

    async def pending(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Tell whether anything of this key is live."""
        return await self.app.pending(self.request(args, kwargs))

    # ── options ───────────────────────────────────────────────────────────────────────────────────

    def options(
        self,
        *,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        unique: Unique | Fluent | bool | None = None,
        key: str | None = None,
        meta: Mapping[str, Any] | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        force: bool = False,
        connection: Any = None,
        expires_at: datetime | None = None,
        expires_in: Duration | None = None,
        after: Any = None,
        on_blocker_failure: OnBlockerFailure | None = None,
        exclude: Any = None,
    ) -> Task[P, R]:
        """Return this task with options for the next call: send.options(delay="30s").enqueue(7)."""
        given = {
            "delay": delay,
            "run_at": run_at,
            "priority": priority,
            "queue": queue,
            "unique": unique,
            "key": key,
            "meta": meta,
            "retry": retry,
            "timeout": timeout,
            "force": force or None,
            "connection": connection,
            "expires_at": expires_at,
            "expires_in": expires_in,
            "after": after,
            "on_blocker_failure": on_blocker_failure,
            "exclude": exclude,
        }
        chosen = replace(self._options, **{name: value for name, value in given.items() if value is not None})
        return self._with(chosen)

    def _with(self, options: Options) -> Task[P, R]:
        copy = object.__new__(Task)
        copy.__dict__.update(self.__dict__)
        for derived in ("policy", "_form", "template", "awaited", "_no_partition"):
            copy.__dict__.pop(derived, None)
        copy._options = options
        if options.unique is not None:
            check(policy_of(options.unique), copy)
        return copy

    @property
    def connection(self) -> Any:
        """The caller's connection that the options name, if any."""
        return self._options.connection

    @cached_property
    def policy(self) -> Unique | None:
        """The policy in force: this call's, or the task's."""
        chosen = self._options.unique
        policy = self.unique if chosen is None else policy_of(chosen)
        if self._options.key is not None:
            return replace(policy or Unique(), by=None, key=self._options.key)
        return policy

    # ── the request ───────────────────────────────────────────────────────────────────────────────

    def request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        """Bind, encode and key a call; whatever is wrong with it is raised before anything is stored."""
        template = self.template
        policy = template.policy
        bound = self.signature.bind(args, kwargs)
        clear = encode(bound, "The arguments", self.app.max_args)
        payload, payload_digest = pack(self.app.safe, clear, template.job.meta)
        hashed = None if policy is None else self.key_of(bound, policy)
        job_id, place = new_id(hashed)
        context = running()
        job = alter(
            template.job,
            id=job_id,
            chain_id=job_id,
            place=place,
            args=payload,
            payload_digest=payload_digest,
            key=hashed,
            version=version_of(bound, policy),
            parent_id=None if context is None else context.job.id,
            partition=self._partition_of(bound),
        )
        return msgspec.structs.replace(
            template,
            job=job,
            policy=None if hashed is None else policy,  # a key function may say: not unique this time
            running_chain=None if context is None else context.job.chain_id,
        )

    def following(self, admissions: Sequence[Any], traits: int) -> Task[P, R]:
        """Return this task for a call that comes after others too, in a way that only batches know."""
        copy = self.options(after=[*chains_of(self._options.after, "after"), *admissions])
        job = copy.template.job
        job = alter(job, traits=job.traits | traits)
        copy.__dict__["template"] = msgspec.structs.replace(copy.template, job=job)
        return copy

    @cached_property
    def awaited(self) -> dict[str, Job]:
        """The jobs of the chains that the next call waits for, as far as they are at hand."""
        named = chains_of(self._options.after, "after")
        return {chain: job for chain, job in named.items() if job is not None}

    @cached_property
    def template(self) -> Request:
        """What every request of this task, with these options, has in common."""
        options, policy = self._options, self.policy
        if policy is not None and policy.wait is not None and (options.delay or options.run_at):
            raise InvalidCall("wait= says when a debounced job runs: leave delay= and run_at= out.")
        return Request(
            self._model(list(chains_of(options.after, "after"))),
            policy,
            delay=None if options.delay is None else duration(options.delay),
            run_at=options.run_at,
            expires_in=self._expires_in(),
            force=options.force,
            max_depth=self.app.queues[self._queue()].max_depth,
            excludes=frozenset(chains_of(options.exclude, "exclude")),
        )

    def _model(self, chains: Sequence[str]) -> Job:
        """Make what every job of this task, with these options, has in common."""
        options, limit = self._options, self.app.max_args
        return Job(
            id="",
            namespace=self.app.namespace,
            task=self.name,
            queue=self._queue(),
            state=State.AVAILABLE,
            priority=self.priority if options.priority is None else options.priority,
            run_at=EPOCH,
            place=0,
            created_at=EPOCH,
            args=b"",
            meta=NO_META if options.meta is None else encode(dict(options.meta), "meta=", limit),
            payload_digest=b"",
            retry=options.retry or self.retry,
            chain_id="",
            timeout=self.timeout if options.timeout is None else duration(options.timeout).total_seconds(),
            traits=WITH_BLOCKERS[options.on_blocker_failure],
            expires_at=options.expires_at,
            blockers=named(chains) if chains else None,
            arrived=awaited(chains) if chains else None,
        )

    def _expires_in(self) -> timedelta | None:
        if self._options.expires_at is not None:
            return None
        chosen = self._options.expires_in
        return self.expires_in if chosen is None else duration(chosen)

    def _partition_of(self, bound: Mapping[str, Any]) -> str | None:
        """Name whose share of the queue a call takes, if there are shares; empty for nobody's."""
        if self.partition is None:
            return self._no_partition
        if callable(self.partition):
            value = self._called(bound, self.partition, "partition")
        else:
            [value] = key.pick(bound, [self.partition]).values()
        if value is None:
            return self._no_partition
        name = value if isinstance(value, str) else key.canonical(value).decode()
        return name if self.app.safe is None else self.app.safe.name(name)

    @cached_property
    def _no_partition(self) -> str | None:
        """What a job without a partition has: in a queue with shares it must be found among the others."""
        queue = self.app.queues.get(self.template.job.queue)
        return None if queue is None or queue.partition_concurrency is None else ""

    def _queue(self) -> str:
        queue = self._options.queue or self.queue
        if queue not in self.app.queues:
            known = ", ".join(sorted(self.app.queues))
            raise UnknownQueue(
                f"No queue is named {queue!r} (known: {known}): declare it with app.queue({queue!r})."
            )
        return queue

    # ── editing a dead letter ─────────────────────────────────────────────────────────────────────

    def edited(self, job: Job, changes: Mapping[str, Any]) -> Job:
        """Give a dead letter of this task other arguments; refuse what does not fit, or is other work."""
        names = self.signature.names
        if unknown := sorted(changes.keys() - set(names)):
            known = ", ".join(names) or "none"
            raise InvalidCall(f"{self.name} has no argument {unknown[0]!r} (it has: {known}).")
        before = open_args(self.app.safe, job)
        after = alter(
            before, args=encode({**before.arguments, **changes}, "The arguments", self.app.max_args)
        )
        try:
            self._called_with(after)
        except (TypeError, ValueError) as error:
            raise InvalidCall(f"The edited arguments do not fit {self.name}: {error}.") from None
        self._refuse_other_work(before, after)
        args, payload_digest = pack(self.app.safe, after.args, job.meta)
        return alter(job, args=args, payload_digest=payload_digest)

    def _called_with(self, job: Job) -> dict[str, Any]:
        """Name what a job's function is called with, in the types that it declares."""
        args, kwargs = self.signature.restore(job.arguments)
        return self.signature.bind(tuple(args), kwargs)

    def _refuse_other_work(self, before: Job, after: Job) -> None:
        """Refuse an edit that changes the key or the version: both were fixed when the job was admitted."""
        if before.key is None:
            return
        if self.policy is None:
            raise InvalidCall(
                f"Job {before.id} has a key that {self.name} does not make, so nobody can tell whether an "
                f"edit would change it: enqueue it anew with {self.name}.enqueue(…)."
            )
        if self._identity(before) != self._identity(after):
            raise InvalidCall(
                f"The edit would change the key or the version of job {before.id}, which makes it other "
                f"work: enqueue it anew with {self.name}.enqueue(…)."
            )

    def _identity(self, job: Job) -> tuple[bytes | None, int | None]:
        """Tell the key and the version that a job's arguments would have now."""
        task = self.options(queue=job.queue, meta=job.metadata)
        assert task.policy is not None  # who asks has looked
        try:
            bound = self._called_with(job)
        except (InvalidCall, TypeError, ValueError):  # which may be what it died of
            bound = job.arguments
        dimensions = task.dimensions(bound, task.policy)
        hashed = None if dimensions is None else key.digest(dimensions, self.app.secret)
        return hashed, version_of(bound, task.policy)

    def key_of(self, bound: Mapping[str, Any], policy: Unique) -> bytes | None:
        """Hash the dimensions of a call; None if a key function says that it is not unique."""
        if policy.key is None and not policy.queue and not policy.meta:
            return self._form.digest(bound)
        dimensions = self.dimensions(bound, policy)
        return None if dimensions is None else key.digest(dimensions, self.app.secret)

    @cached_property
    def _form(self) -> key.Form:
        """What the keys of this task have in common, if only arguments make them differ."""
        policy = self.policy
        assert policy is not None  # only keyed calls come here
        paths = self.signature.names if policy.by is None else policy.by
        return key.Form(paths, self._common(policy), self.app.secret)

    def _common(self, policy: Unique) -> dict[str, Any]:
        common = {"v": KEY_SCHEME, "namespace": self.app.namespace}
        return common | ({"task": self.name} if policy.family is None else {"family": policy.family})

    def dimensions(self, bound: Mapping[str, Any], policy: Unique) -> dict[str, Any] | None:
        """Collect, in clear, what makes the same work."""
        found = self._common(policy)
        if isinstance(policy.key, str):
            found["key"] = policy.key
        elif policy.key is not None:
            found["key"] = self._called_key(bound, policy.key)
            if found["key"] is None:
                return None
        else:
            found["args"] = bound if policy.by is None else key.pick(bound, policy.by)
        if policy.queue:
            found["queue"] = self._queue()
        if policy.meta:
            found["meta"] = self._named_meta(policy.meta)
        return found

    def _called_key(self, bound: Mapping[str, Any], function: Callable[..., object]) -> object:
        value = self._called(bound, function, "key")
        if value == "":
            raise InvalidCall(
                f'The key function of {self.name} returned "", which would make all calls one: return None.'
            )
        return value

    def _called(self, bound: Mapping[str, Any], function: Callable[..., object], what: str) -> object:
        """Call a function of the policy with the arguments that it asks for."""
        names = inspect.signature(function).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())
        given = {name: value for name, value in bound.items() if takes_all or name in names}
        try:
            return function(**given)
        except Exception as error:
            raise InvalidCall(
                f"The {what} function of {self.name} raised {type(error).__name__}: {error}"
            ) from error

    def _named_meta(self, names: Any) -> dict[str, Any]:
        meta = self._options.meta or {}
        if missing := [name for name in names if name not in meta]:
            raise MissingKeyField(
                f"The key of {self.name} needs meta {missing}: write options(meta={{{missing[0]!r}: …}})."
            )
        return {name: meta[name] for name in names}


def check_declaration(task: Task[..., Any]) -> None:
    """Refuse, when a task is registered, what could only fail later."""
    function, name = task.function, task.name
    kinds = task.give_up_on if isinstance(task.give_up_on, tuple) else (task.give_up_on,)
    if not _is_name(name):
        raise InvalidPolicy(f"name={name!r}: a task's name is text that is not empty.")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidPolicy(f"{name} is a generator, which has no one result: write a function that returns.")
    if not isinstance(task.process, bool):
        raise InvalidPolicy(f"{name}: process={task.process!r}: write True or False.")
    if task.process and task.is_async:
        raise InvalidPolicy(f"{name}: process=True is for plain functions: write def, or leave it out.")
    if not _is_name(task.queue):
        raise InvalidPolicy(f"{name}: queue={task.queue!r}: a queue's name is text that is not empty.")
    if not isinstance(task.retry, Retry):
        raise InvalidPolicy(f"{name}: retry={task.retry!r}: write Retry(attempts=…).")
    if task.timeout == 0:
        raise InvalidPolicy(f"{name}: timeout=0 leaves no time to run: leave it out for no limit.")
    if not _is_priority(task.priority):
        raise InvalidPolicy(f"{name}: priority={task.priority!r}: write a whole number; higher runs sooner.")
    check_partition(task)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise InvalidPolicy(f"{name}: give_up_on={task.give_up_on!r}: write a tuple of exception classes.")

    check_replay(task)


def check_replay(task: Task[..., Any]) -> None:
    """Refuse a replay that is none, or that would come after its letter is forgotten."""
    replay = task.replay
    if replay is None:
        return
    if not isinstance(replay, Replay):
        raise InvalidPolicy(f"{task.name}: replay={replay!r}: write Replay(times=…, after=…).")
    kept = {**task.app.retention, **task.retention}[State.DISCARDED]
    if (longest := replay.delay(replay.times - 1)) >= kept:
        raise InvalidPolicy(
            f"{task.name}: a dead letter is forgotten after {spell(kept)}, before its replay after "
            f"{spell(longest)}: write a shorter after= or cap=, or keep discarded jobs for longer."
        )


def check_partition(task: Task[..., Any]) -> None:
    """Refuse a partition that names what the task does not have."""
    wanted, names = task.partition, task.signature.names
    known = ", ".join(names) or "none"
    if wanted is None:
        return
    if callable(wanted):
        check_function(wanted, task, known, "partition")
    elif not isinstance(wanted, str) or (wanted.split(".")[0] not in names and wanted not in names):
        raise InvalidPolicy(f"{task.name}: partition={wanted!r} is not an argument (it has: {known}).")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def version_of(bound: Mapping[str, Any], policy: Unique | None) -> int | None:
    """Read a call's version: a 64-bit integer, or an aware time."""
    if policy is None or policy.version is None:
        return None
    value = bound[policy.version]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return int((value.astimezone(UTC) - EPOCH) / _MICROSECOND)
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return value
    raise InvalidCall(
        f"{policy.version}= is the version: pass a 64-bit integer or a datetime with a time zone."
    )


_MICROSECOND = duration("1ms") / 1000


def check(policy: Unique | None, task: Task[..., Any]) -> None:
    """Refuse, when a task is registered, a policy that names what the task does not have."""
    if policy is None:
        return
    names = task.signature.names
    known = ", ".join(names) or "none"
    for path in policy.by or ():
        if path.split(".")[0] not in names and path not in names:
            raise InvalidPolicy(f"{task.name}: by={path!r} is not an argument (it has: {known}).")
    if policy.version is not None and policy.version not in names:
        raise InvalidPolicy(f"{task.name}: version={policy.version!r} is not an argument (it has: {known}).")
    for name in policy.merge if isinstance(policy.merge, Mapping) else ():
        if name not in names:
            raise InvalidPolicy(f"{task.name}: merge={{{name!r}: …}} is not an argument (it has: {known}).")
    if callable(policy.key):
        check_function(policy.key, task, known, "key")
    if policy.merge is not None and task.app.safe is not None:
        raise InvalidPolicy(
            f"{task.name}: merge= reads payloads inside the store's step, but this app's codec seals them "
            "before: leave merge= out, or give the task to an app without codec=."
        )
    task.app.check_strength(task.name, policy)


def check_function(function: Callable[..., object], task: Task[..., Any], known: str, what: str) -> None:
    """Refuse a key or partition function that asks for arguments which the task does not have."""
    for parameter in inspect.signature(function).parameters.values():
        needed = parameter.default is parameter.empty and parameter.kind not in {
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        }
        if needed and parameter.name not in task.signature.names:
            raise InvalidPolicy(
                f"{task.name}: the {what} function asks for {parameter.name!r}; the task has: {known}."
            )
