"""Dimensions: type, queue, arguments, metadata; reject, replace, drop; states; declared strength (S4)."""

import asyncio
from dataclasses import replace
from itertools import product
from time import process_time

import pytest

from onejob import App, Duplicate, Outcome, Retry, State, Task, Unique
from onejob.errors import InvalidPolicy, MissingKeyField, WeakStore
from onejob.stores.memory import MemoryStore
from onejob.tasks.task import builder_of
from onejob.testing import Clock
from tests.system.scenarios.stage import Stage, run_due

CREATED, KEPT = Outcome.CREATED, Outcome.KEPT

Work = Task[..., str]


def working(app: App, stage: Stage, policy: Unique, name: str = "work") -> Work:
    app.queue("eu")
    app.queue("us")

    @app.task(name=name, unique=policy, retry=Retry(2, base="1s"))
    async def work(one: int, two: int = 0) -> str:
        await stage.play((one, two))
        if two < 0:
            raise RuntimeError("as asked")
        return f"{one} {two}"

    return work


# ── dimensions ────────────────────────────────────────────────────────────────────────────────────

DIMENSIONS = {
    "type": Unique.singleton(),
    "type and queue": Unique.singleton(queue=True),
    "all arguments": Unique(),
    "some arguments": Unique(by="one"),
    "some arguments and queue": Unique(by="one", queue=True),
    "metadata": Unique.singleton(meta=["tenant"]),
    "arguments and metadata": Unique(by=["one", "two"], meta=["tenant", "region"]),
}


@pytest.mark.parametrize("name", DIMENSIONS)
async def test_the_same_work_is_what_agrees_in_the_chosen_dimensions(
    app: App, stage: Stage, name: str
) -> None:
    """S4.1, S4.11, S4.13: equal in every chosen dimension is a duplicate; different in any never is."""
    policy = DIMENSIONS[name]
    work = working(app, stage, policy)
    seen: set[tuple[object, ...]] = set()
    for one, two, queue, tenant, region in product((1, 2), (1, 2), ("eu", "us"), ("a", "b"), ("x", "y")):
        by = {"one": one, "two": two}
        meta = {"tenant": tenant, "region": region}
        chosen = (
            *(by[path] for path in (by if policy.by is None else policy.by)),
            queue if policy.queue else None,
            *(meta[field] for field in policy.meta),
        )
        answer = await work.options(queue=queue, meta=meta).enqueue(one, two)
        assert answer.outcome is (KEPT if chosen in seen else CREATED)
        seen.add(chosen)


async def test_types_never_collide(app: App) -> None:
    """S4.13: 1, "1" and True are different values; 1 and 1.0 are one; two tasks are never the same work."""

    @app.task(unique=True)
    async def work(value: object) -> None: ...

    @app.task(unique=True)
    async def other(value: object) -> None: ...

    values: list[object] = [1, "1", True, None, "null", [1], {"1": 1}, 1.5, 2**70, ""]
    assert [(await work.enqueue(value)).outcome for value in values] == [CREATED] * len(values)
    assert (await work.enqueue(1.0)).outcome is KEPT
    assert (await other.enqueue(1)).outcome is CREATED


async def test_metadata_in_the_key_must_be_given(app: App, stage: Stage) -> None:
    """S4.1: a missing field is an error, not a value."""
    work = working(app, stage, Unique(meta=["tenant"]))
    with pytest.raises(MissingKeyField, match="tenant"):
        await work.enqueue(1)
    assert await app.jobs() == []


async def test_uniqueness_spans_queues_unless_the_queue_is_chosen(app: App, stage: Stage) -> None:
    """S4.17: the same work in two queues is one job, with nothing to coordinate."""
    work = working(app, stage, Unique())
    first = await work.options(queue="eu").enqueue(1)
    assert (await work.options(queue="us").enqueue(1)).job.id == first.job.id


# ── conflict ──────────────────────────────────────────────────────────────────────────────────────


async def test_reject_is_an_error_to_catch(app: App, stage: Stage) -> None:
    """S4.2, S4.18: Duplicate names the holder, says whether the payload differed, and is counted."""
    work = working(app, stage, Unique(by="one", on_conflict="reject"))
    first = await work.enqueue(1, 1)
    with pytest.raises(Duplicate) as raised:
        await work.enqueue(1, 2)
    assert raised.value.job.id == first.job.id
    assert raised.value.payload_differs
    assert raised.value.key == first.key
    assert (await app.stats()).absorbed == {"work": {"rejected": 1}}
    answers = await app.enqueue_many([work.call(1, 3), work.call(2, 3)])  # an outcome in a batch
    assert [answer.outcome for answer in answers] == [Outcome.REJECTED, CREATED]


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        (Unique(by="one", on_conflict="replace"), Outcome.REPLACED),
        (Unique(by="one", on_conflict="update"), Outcome.UPDATED),
    ],
    ids=["cancel and insert", "in place"],
)
async def test_replace_overwrites_the_waiting_job(
    app: App, stage: Stage, policy: Unique, outcome: Outcome
) -> None:
    """S4.3: both readings of "overwrite": a new job in the old one's stead, or new content in place."""
    work = working(app, stage, policy)
    first = await work.enqueue(1, 1)
    second = await work.enqueue(1, 2)
    assert second.outcome is outcome
    assert (second.job.id == first.job.id) is (outcome is Outcome.UPDATED)
    await run_due(app)
    assert stage.runs == [(1, 2)]
    assert await first.result(30) == "1 2"


async def test_replace_may_keep_the_schedule(app: App, stage: Stage, clock: Clock) -> None:
    """S4.3: replace_except_schedule takes the payload and leaves time and place."""
    work = working(app, stage, Unique(by="one", on_conflict="replace", keep_schedule=True))
    first = await work.options(delay="1h").enqueue(1, 1)
    second = await work.enqueue(1, 2)
    assert second.outcome is Outcome.REPLACED
    assert (second.job.run_at, second.job.place) == (first.job.run_at, first.job.place)
    clock.advance("1h")
    await run_due(app)
    assert stage.runs == [(1, 2)]


async def test_replace_never_overlaps_a_running_job(app: App, stage: Stage) -> None:
    """S4.3: against a running job the newcomer follows; nothing is lost and nothing runs twice at once."""
    work = working(app, stage, Unique(by="one", on_conflict="replace"))
    stage.close()
    await work.enqueue(1, 1)
    async with app.worker():
        await stage.begun(1)
        follower = await work.enqueue(1, 2)
        assert follower.outcome is Outcome.RERUN
        assert (await work.enqueue(1, 3)).outcome is Outcome.REPLACED
        stage.open()
        await follower.result(30)
    assert stage.runs == [(1, 1), (1, 3)]
    assert stage.most_at_once == 1


async def test_drop_discards_the_newcomer(app: App, stage: Stage) -> None:
    """S4.4, S4.18: keep leaves the first one as it is; the answer and the counter still tell."""
    work = working(app, stage, Unique(by="one", on_conflict="keep"))
    first = await work.enqueue(1, 1)
    dropped = await work.enqueue(1, 2)
    assert (dropped.outcome, dropped.payload_differs) == (KEPT, True)
    assert await app.job(first.job.id) == first.job
    assert len(await app.jobs()) == 1
    assert (await app.stats()).absorbed == {"work": {"kept": 1}}


async def test_tasks_choose_their_own_strategy(app: App, stage: Stage) -> None:
    """S4.10: three tasks, three answers to the same situation."""
    keep = working(app, stage, Unique(by="one", on_conflict="keep"), "keep")
    reject = working(app, stage, Unique(by="one", on_conflict="reject"), "reject")
    substitute = working(app, stage, Unique(by="one", on_conflict="replace"), "replace")
    await app.enqueue_many([task.call(1, 1) for task in (keep, reject, substitute)])
    answers = await app.enqueue_many([task.call(1, 2) for task in (keep, reject, substitute)])
    assert [answer.outcome for answer in answers] == [KEPT, Outcome.REJECTED, Outcome.REPLACED]


# ── states and window ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("states", "seen"),
    [
        ([State.AVAILABLE], [KEPT, CREATED, CREATED]),
        (["available", "active"], [KEPT, KEPT, CREATED]),
        (["available", "active", "completed"], [KEPT, KEPT, KEPT]),
        (["active"], [CREATED, KEPT, CREATED]),
        (["completed"], [CREATED, CREATED, KEPT]),
    ],
    ids=["waiting", "waiting and running", "completed too", "only running", "only completed"],
)
async def test_only_the_chosen_states_count(
    app: App, stage: Stage, states: list[State | str], seen: list[Outcome]
) -> None:
    """S4.5, S4.11: asked while the first one waits, runs, and has completed."""
    work = working(app, stage, Unique(states=states))
    stage.close()
    first = await work.enqueue(1)
    found = [(await work.explain(1)).outcome]
    async with app.worker():
        await stage.begun(1)
        found.append((await work.explain(1)).outcome)
        stage.open()
        await first.result(30)
    found.append((await work.explain(1)).outcome)
    assert found == seen
    assert (await work.enqueue(1)).outcome is seen[-1]


async def test_a_time_window_is_one_more_condition(app: App, stage: Stage, clock: Clock) -> None:
    """S4.6: states AND period."""
    work = working(app, stage, Unique(states=["available"], within="10m"))
    await work.enqueue(1)
    clock.advance("599s")
    assert (await work.enqueue(1)).outcome is KEPT
    clock.advance("1s")
    assert (await work.enqueue(1)).outcome is CREATED


def test_unknown_states_and_strategies_fail_at_once() -> None:
    """S4.5: a policy that contradicts itself is refused where it is written."""
    with pytest.raises(InvalidPolicy, match="running"):
        Unique(states=["running"])
    with pytest.raises(InvalidPolicy, match="drop"):
        Unique(on_conflict="drop")  # type: ignore[arg-type]


# ── strength ──────────────────────────────────────────────────────────────────────────────────────


async def test_concurrent_producers_make_one_job(app: App, stage: Stage) -> None:
    """S4.7, S4.12: a hundred at once, one created."""
    work = working(app, stage, Unique(strength="strong"))
    answers = await asyncio.gather(*(work.enqueue(1) for _ in range(100)))
    assert sorted(answer.outcome for answer in answers) == [CREATED] + [KEPT] * 99


async def test_retries_double_clicks_and_concurrent_producers_are_each_absorbed(
    app: App, stage: Stage, clock: Clock
) -> None:
    """S4.12: the three sources of duplicates; a retry keeps its hold and makes no second job."""
    work = working(app, stage, Unique())
    failing = await work.enqueue(1, -1)
    await run_due(app)
    assert (await app.job(failing.job.id)).state is State.RETRYABLE
    clicks = [await work.enqueue(1, -1), await work.enqueue(1, -1)]
    assert {click.job.id for click in clicks} == {failing.job.id}
    clock.advance("1m")
    await run_due(app)
    assert stage.runs == [(1, -1)] * 2
    assert len(await app.jobs()) == 1


def test_the_store_declares_its_guarantee(app: App) -> None:
    """S4.9: machine-readable, and equal in form for every store."""
    declared = app.guarantees()
    assert declared.store in {"memory", "sqlite"}
    assert declared.strength == "strong"
    assert declared.scope
    assert declared.durability
    assert declared.not_promised


class WeakMemoryStore(MemoryStore):
    """A store that promises less."""

    guarantees = replace(MemoryStore.guarantees, strength="best-effort")


async def test_a_best_effort_store_is_allowed_and_says_so(stage: Stage) -> None:
    """S4.8, S4.9, S4.14: the same code runs on it, unless a task demands more; then it fails at start-up."""
    async with App(store=WeakMemoryStore()) as app:
        assert app.guarantees().strength == "best-effort"
        work = working(app, stage, Unique())
        await work.enqueue(1)
        assert (await work.enqueue(1)).outcome is KEPT
        with pytest.raises(WeakStore, match="strong"):
            working(app, stage, Unique(strength="strong"), "demanding")


# ── secrets and size ──────────────────────────────────────────────────────────────────────────────


def test_keys_of_private_arguments_cannot_be_guessed() -> None:
    """S4.15: with a secret the key is an HMAC of the plaintext, which outsiders cannot compute."""

    def key_under(secret: str | None) -> str | None:
        other = App("memory://", secret=secret)

        @other.task(unique=True)
        async def work(card: str) -> None: ...

        return work.enqueue_sync("4111").key

    assert key_under("hush, hush, hush, hush") == key_under("hush, hush, hush, hush")
    assert len({key_under(None), key_under("hush, hush, hush, hush"), key_under("another secret of us")}) == 3


async def test_a_large_argument_outside_the_key_costs_the_key_nothing() -> None:
    """S4.16: a megabyte beside the key: the key's share does not grow with it.

    The time of the processor is measured, not the clock's, which counts what else the machine is doing.
    """
    large = App("memory://", max_args=8_000_000)

    @large.task(unique=Unique(by="one"))
    async def work(one: int, blob: str) -> None: ...

    builder = builder_of(work)
    policy = builder.policy
    assert policy is not None

    def cost(blob: str) -> float:
        bound = {"one": 1, "blob": blob}
        began = process_time()
        for _ in range(200):
            builder.key_of(bound, policy)
        return process_time() - began

    cost("")
    assert min(cost("x" * 4_000_000) for _ in range(5)) < 5 * max(cost("x") for _ in range(5))

    async with large:
        began = process_time()
        await work.enqueue(1, "x" * 1_000_000)
        assert process_time() - began < 0.1
        assert (await work.enqueue(1, "y" * 1_000_000)).outcome is KEPT


# ── in sight ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_wrong_policy_is_visible(app: App, stage: Stage) -> None:
    """S4.18: too wide a key shows as differing payloads; a shadow policy counts without absorbing."""
    wide = working(app, stage, Unique.singleton(shadow=True))
    first = await wide.enqueue(1)
    second = await wide.enqueue(2)
    assert (first.outcome, second.outcome, second.shadow) == (CREATED, CREATED, KEPT)
    assert second.payload_differs
    await run_due(app)
    assert sorted(stage.runs) == [(1, 0), (2, 0)]
    assert (await app.stats()).absorbed == {"work": {"shadow:kept": 1}}


async def test_a_mismatch_may_be_an_error(app: App, stage: Stage) -> None:
    """S4.18: the same key with another payload can be refused, as payment services do."""
    work = working(app, stage, Unique(by="one", on_mismatch="error"))
    await work.enqueue(1, 1)
    assert (await work.enqueue(1, 1)).outcome is KEPT
    with pytest.raises(Duplicate, match="another payload"):
        await work.enqueue(1, 2)
