"""What the random requests, results and policies of the agreement are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
from hypothesis import strategies as st

from onejob.core.decide import Request
from onejob.core.durations import duration
from onejob.core.job import EPOCH, Job, Replay, Retry, State, fingerprint
from onejob.core.leasing import Rate
from onejob.core.policy import Unique
from onejob.core.runs import Completed, Failed, HandedBack, Result, Snoozed, Stopped

TENANTS = {b"a" * 32: "", b"b" * 32: "", b"c" * 32: "tenant"}  # a key belongs to one namespace
KEYS = tuple(TENANTS)
SCHEDULED = b"s" * 32  # the key of a schedule, which only ticks ask for
TASKS = ("index", "mail")  # of one family: both ask for the keys a and c
OWN = KEYS[1]  # the key of one task, whose payloads are merged
REPLAY = Replay(times=2, after=2, factor=2, cap=4)
QUEUES = ("default", "bulk")
DEEPEST = {QUEUES[-1]: 3}  # how many jobs may wait in a queue
# One per queue: a store may forget starts that the rate of the last lease does not count.
RATES = {QUEUES[0]: Rate(2, timedelta(seconds=3)), QUEUES[1]: Rate(5, timedelta(1))}
WINDOWS = (3, 20)
ALL = 100_000


def sum_up(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Merge by a function, which refuses many items."""
    if len(old["items"]) + len(new["items"]) > 5:
        raise ValueError("too many items")
    return {**new, "items": [*old["items"], *new["items"]]}


MERGES: tuple[Any, ...] = ({"items": "union"}, {"items": "append", "n": "sum"}, sum_up)
MERGING = Unique(on_conflict="update", merge=MERGES[0], merge_cap=4)


rarely = st.sampled_from([False] * 7 + [True])
until = st.sampled_from(["start", "finish", "finish", "failure", "forever"])
within = st.sampled_from(WINDOWS)
spans = st.one_of(
    st.fixed_dictionaries({"until": until}),
    st.fixed_dictionaries({"until": until, "within": within}),
    st.fixed_dictionaries(
        {"states": st.frozensets(st.sampled_from(State), min_size=1)}, optional={"within": within}
    ),
)
guarding = st.fixed_dictionaries(
    {"bump": st.booleans(), "on_mismatch": st.sampled_from(["ignore", "error"])},
)
fields = st.lists(st.sampled_from(["queue", "priority", "time", "place", "retry"]), unique=True).map(tuple)
debouncing = st.sampled_from([{}, {}, {"wait": 2}, {"wait": 2, "max_wait": 5}])
versioning = st.sampled_from([{}, {"version": "seq"}])
merging = st.sampled_from([{}, *({"merge": how, "merge_cap": 4} for how in MERGES)])
while_active = st.sampled_from([None, "keep", "reject", "rerun", "cancel"])


@st.composite
def policies(draw: st.DrawFn) -> Unique:
    """Draw a policy without contradictions: every field but those that make the key, which is given."""
    conflict = draw(st.sampled_from(["keep", "reject", "update", "replace"]))
    chosen: dict[str, Any] = {"on_conflict": conflict, "shadow": draw(rarely), **draw(spans)}
    if chosen.get("until") != "start":
        chosen["on_active"] = draw(while_active)
    match conflict:
        case "keep" if chosen.get("until") == "forever" and "within" in chosen and draw(st.booleans()):
            chosen |= {"edges": "first+last", "on_active": None, **draw(merging)}
        case "keep":
            chosen |= draw(guarding) | draw(versioning)
        case "reject":
            chosen |= draw(versioning)
        case "update":
            chosen |= {"fields": draw(fields)} | draw(debouncing) | draw(versioning | merging)
        case "replace":
            chosen |= {"keep_schedule": draw(st.booleans())} | draw(versioning)
        case _:
            raise AssertionError(conflict)
    if "merge" in chosen and chosen.get("on_active") == "cancel":
        chosen["on_active"] = "rerun"
    return Unique(**chosen)


overlaps = st.none() | policies().filter(lambda policy: policy.version is None and policy.merge is None)


@dataclass(frozen=True, repr=False)
class Wish:
    """A request without its id, which comes with the order of requests."""

    key: bytes | None
    policy: Unique
    items: list[int]
    seq: int
    task: str
    queue: str
    priority: int
    attempts: int
    delay: int | None
    appointed: int | None
    force: bool
    expires: int | None = None
    partition: str | None = None

    def __repr__(self) -> str:
        """Show what is not as usual: a failing sequence has many of these."""
        shown = {name: value for name, value in vars(self).items() if value}
        shown["policy"] = {name: value for name, value in vars(self.policy).items() if value != USUAL[name]}
        return f"Wish({shown})"


USUAL = vars(Unique())


def wishes(*, forced: bool = False, keys: Sequence[bytes | None] = (*KEYS, None)) -> st.SearchStrategy[Wish]:
    """Draw a request."""
    return st.builds(
        Wish,
        key=st.sampled_from(keys),
        policy=policies(),
        items=st.lists(st.integers(0, 3), max_size=3),
        seq=st.integers(1, 4),
        task=st.sampled_from(TASKS),
        queue=st.sampled_from(QUEUES),
        priority=st.sampled_from([0, 0, 0, 5]),
        attempts=st.integers(1, 3),
        delay=st.sampled_from([None, None, 0, 4]),
        appointed=st.sampled_from([None, None, None, -60, 4]),
        force=st.just(forced),
        expires=st.sampled_from([None, None, None, 0, 2, 8]),
        partition=st.sampled_from([None, None, "", "left", "right"]),
    )


def results() -> st.SearchStrategy[Result]:
    """Draw how a run may end."""
    error = {"type": "Boom", "message": "boom", "traceback": ""}
    after = st.sampled_from([timedelta(0), timedelta(seconds=3)])
    return st.one_of(
        st.builds(Completed, st.sampled_from([None, b"1", b'"done"'])),
        st.builds(Failed, st.just(error), after=st.none() | after, chance=st.floats(0, 0.99)),
        st.builds(Failed, st.just(error), final=st.just(True)),  # noqa: FBT003 - a strategy's value
        st.builds(Snoozed, after),
        st.just(HandedBack()),
        st.just(Stopped("enough")),
    )


def expiry_of(wish: Wish) -> timedelta | None:
    """Return how long a job may wait; None if it would expire before its run time, which is refused."""
    wait = 0 if wish.policy.wait is None else duration(wish.policy.wait).total_seconds()
    later = max(wish.delay or 0, wish.appointed or 0, wait)
    if wish.expires is None or 0 < wish.expires <= later or (later and not wish.expires):
        return None
    return timedelta(seconds=wish.expires)


def request_of(wish: Wish, number: int, now: datetime, inside: Job | None = None) -> Request:
    """Return the request of a wish; `number` gives its id, `inside` is the job in whose run it is made."""
    args = msgspec.json.encode({"items": wish.items, "n": wish.seq, "seq": wish.seq})
    keyed = wish.key is not None
    job_id = f"{number:08d}{(wish.key or b'00')[:2].hex()}"  # an id ends as its key begins
    job = Job(
        id=job_id,
        namespace=TENANTS.get(wish.key or b"", ""),
        task=TASKS[0] if wish.key == OWN else wish.task,
        queue=wish.queue,
        state=State.AVAILABLE,
        priority=wish.priority,
        run_at=EPOCH,
        place=number,
        created_at=EPOCH,
        args=args,
        meta=b"{}",
        payload_digest=fingerprint(args, b"{}"),
        retry=Retry(wish.attempts, base=2, cap=60),
        chain_id=job_id,
        key=wish.key,
        version=wish.seq if keyed and wish.policy.version else None,
        parent_id=None if inside is None else inside.id,
        partition=wish.partition,
    )
    return Request(
        job,
        wish.policy if keyed else None,
        delay=None if wish.delay is None else timedelta(seconds=wish.delay),
        run_at=None if wish.appointed is None else now + timedelta(seconds=wish.appointed),
        expires_in=expiry_of(wish),
        force=wish.force,
        running_chain=None if inside is None else inside.chain_id,
        max_depth=DEEPEST.get(wish.queue),
    )
