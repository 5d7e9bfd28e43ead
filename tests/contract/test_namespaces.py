"""A namespace is a boundary: what another one has is unknown, also by its id or its key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from operator import attrgetter
from typing import Any

import pytest

from onejob import Admission, App, State, Unique
from onejob.errors import InvalidCall, OnejobError, UnknownJob
from onejob.stores.contract import FullStore as Store
from tests.contract.steps import discard, everything, mailer, start

UNKNOWN = "01990c3e-5c1f-7000-8a55-3f1c6e0d9b42"
UNKNOWN_KEY = b"k" * 32

ByChain = Callable[[App, str], Awaitable[Any]]
CHAIN_METHODS: dict[str, ByChain] = {
    "last": lambda app, chain: app.chain(chain).last(),
    "status": lambda app, chain: app.chain(chain).status(),
    "jobs": lambda app, chain: app.chain(chain).jobs(),
    "dependants": lambda app, chain: app.chain(chain).dependants(),
    "result": lambda app, chain: app.chain(chain).result(30),
    "cancel": lambda app, chain: app.chain(chain).cancel(),
    "delete": lambda app, chain: app.chain(chain).delete(),
}


@pytest.fixture
async def stranger(store: Store) -> AsyncIterator[App]:
    """Open an app on the same store, with another namespace and the same task."""
    async with App(store=store, namespace="other") as app:
        mailer(app, Unique())
        yield app


async def answer_to(act: Awaitable[Any], name: str) -> Any:
    """Await an answer or a refusal, without the id or key that it names."""
    try:
        return await act
    except OnejobError as error:
        return type(error), str(error).replace(name, "…")


async def enqueue(app: App) -> Admission[str]:
    return await mailer(app, Unique()).enqueue(1)


@pytest.mark.parametrize("verb", ["job", "cancel", "delete", "dead.replay"])
@pytest.mark.parametrize("state", [State.AVAILABLE, State.ACTIVE, State.DISCARDED])
async def test_a_foreign_id_is_unknown(app: App, stranger: App, verb: str, state: State) -> None:
    foreign = await enqueue(app)
    if state is State.ACTIVE:
        await start(app)
    elif state is State.DISCARDED:
        await discard(app)
    before = await everything(app)

    act = attrgetter(verb)(stranger)
    with pytest.raises(UnknownJob):
        await act(foreign.job.id)
    assert await answer_to(act(foreign.job.id), foreign.job.id) == await answer_to(act(UNKNOWN), UNKNOWN)
    assert await everything(app) == before


async def test_a_foreign_dead_letter_is_not_replayed_among_many(app: App, stranger: App) -> None:
    foreign = await enqueue(app)
    await discard(app)
    before = await everything(app)
    assert await stranger.dead.replay_many([foreign.job.id, UNKNOWN]) == [None, None]
    assert await stranger.dead.replay_all() == []
    assert (await stranger.dead.list(), await stranger.dead.ids(), await stranger.dead.groups()) == (
        [],
        [],
        [],
    )
    assert await everything(app) == before


@pytest.mark.parametrize("force", [False, True])
async def test_a_foreign_key_is_unknown(app: App, stranger: App, *, force: bool) -> None:
    foreign = await enqueue(app)
    await start(app)
    before = await everything(app)
    assert foreign.job.key is not None
    assert await stranger.release(foreign.job.key, force=force) is None
    assert await stranger.release(UNKNOWN_KEY, force=force) is None
    assert (await stranger.jobs(key=foreign.job.key), await stranger.holds()) == ([], [])
    assert await everything(app) == before


@pytest.mark.parametrize("method", CHAIN_METHODS)
async def test_a_foreign_chain_is_unknown(app: App, stranger: App, method: str) -> None:
    foreign = (await enqueue(app)).job.chain_id
    await discard(app)
    before = await everything(app)
    act = CHAIN_METHODS[method]
    assert await answer_to(act(stranger, foreign), foreign) == await answer_to(
        act(stranger, UNKNOWN), UNKNOWN
    )
    assert await everything(app) == before


async def test_a_job_cannot_wait_for_a_foreign_chain(app: App, stranger: App) -> None:
    foreign = await enqueue(app)
    with pytest.raises(UnknownJob, match="does not exist"):
        await stranger.tasks["mail"].options(after=foreign.job.chain_id).enqueue(2)
    assert await stranger.jobs() == []


async def test_lists_and_numbers_show_one_namespace(app: App, stranger: App) -> None:
    await enqueue(app)
    await (await enqueue_again(app)).chain.status()
    assert (await stranger.jobs(), await stranger.chains(), await stranger.absorbed()) == ([], [], {})
    assert (await stranger.stats()).waiting == 0
    assert (await app.stats()).absorbed == {"mail": {"kept": 1}}


async def enqueue_again(app: App) -> Admission[str]:
    return await app.tasks["mail"].enqueue(1)


async def test_equal_requests_of_two_namespaces_are_two_jobs(app: App, stranger: App) -> None:
    mine, theirs = await enqueue(app), await stranger.tasks["mail"].enqueue(1)
    assert mine.job.key != theirs.job.key
    assert (await stranger.job(theirs.job.id)).namespace == "other"
    with pytest.raises(UnknownJob):
        await app.cancel(theirs.job.id)


async def test_a_pause_holds_in_one_namespace(app: App, stranger: App) -> None:
    await stranger.queues.pause("default")
    assert await app.queues.paused() == frozenset()
    assert await stranger.queues.paused() == {"default"}


async def test_an_unknown_job_is_not_an_invalid_call(app: App) -> None:
    with pytest.raises(UnknownJob) as refusal:
        await app.delete(UNKNOWN)
    assert not isinstance(refusal.value, InvalidCall)
