"""RetryLater(after, args=…): the next attempt gets other arguments, and the key stays."""

from __future__ import annotations

from typing import Any

import pytest

from onejob import App, Discard, Outcome, Retry, RetryLater, State, Task, Unique, chain
from onejob.testing import Clock, drain

TRIES = Retry(attempts=5, base=0, jitter=0)


def importer(app: App, policy: Unique | None, changes: dict[str, Any], seen: list[Any]) -> Task[..., Any]:
    """Register a task that asks for other arguments in its first attempt."""

    @app.task(unique=policy, retry=TRIES)
    async def load(source: str, page: int = 1) -> str:
        seen.append((source, page))
        if len(seen) == 1:
            raise RetryLater(0, args=changes)
        return f"{source} {page}"

    return load


@pytest.mark.parametrize("policy", [None, Unique(by="source")], ids=["no key", "key"])
async def test_the_next_attempt_gets_other_arguments(app: App, policy: Unique | None) -> None:
    seen: list[Any] = []
    load = importer(app, policy, {"page": 2}, seen)
    admission = await load.enqueue("shop")
    await drain(app)
    assert seen == [("shop", 1), ("shop", 2)]
    assert await admission.result(timeout=30) == "shop 2"
    job = await app.job(admission.job.id)
    assert (job.attempt, job.key, job.arguments) == (2, admission.job.key, {"source": "shop", "page": 2})
    assert (
        job.payload_digest
        == (await load.options(force=True, unique=False).enqueue("shop", 2)).job.payload_digest
    )


async def test_arguments_that_would_make_another_key_fail_the_attempt(app: App) -> None:
    seen: list[Any] = []
    load = importer(app, Unique(by="source"), {"source": "other"}, seen)
    admission = await load.enqueue("shop")
    await drain(app)
    job = await app.job(admission.job.id)
    assert seen == [("shop", 1), ("shop", 1)]
    assert "would change the key" in job.failures[0]["message"]
    assert job.state is State.COMPLETED


async def test_arguments_that_the_task_does_not_have_fail_the_attempt(app: App) -> None:
    seen: list[Any] = []
    load = importer(app, None, {"pages": 2}, seen)
    job = (await load.enqueue("shop")).job
    await drain(app)
    assert "load has no argument 'pages'" in (await app.job(job.id)).failures[0]["message"]


async def test_a_key_of_ones_own_stays_whatever_the_arguments_are(app: App) -> None:
    seen: list[Any] = []
    load = importer(app, None, {"source": "other"}, seen)
    admission = await load.options(key="import").enqueue("shop")
    await drain(app)
    job = await app.job(admission.job.id)
    assert seen == [("shop", 1), ("other", 1)]
    assert job.key == admission.job.key


async def test_a_continuation_changes_its_own_arguments(app: App) -> None:
    seen: list[Any] = []
    load = importer(app, Unique(by="source"), {"source": "other"}, seen)

    @app.task(unique=Unique(by="n"))
    async def begin(n: int) -> None: ...

    await chain(begin.call(1), load.call("shop")).enqueue()
    await drain(app)
    assert seen == [("shop", 1), ("other", 1)]


async def test_a_duplicate_is_compared_with_the_new_payload(app: App, clock: Clock) -> None:
    @app.task(unique=Unique(by="source"), retry=TRIES)
    async def load(source: str, page: int = 1) -> None:
        raise RetryLater("1h", f"{source} is busy", args={"page": page + 1})

    await load.enqueue("shop")
    await drain(app)
    assert not (await load.enqueue("shop", 2)).payload_differs
    kept = await load.enqueue("shop", 1)
    assert (kept.outcome, kept.payload_differs) == (Outcome.KEPT, True)
    clock.advance("1h")
    await drain(app)
    assert (await app.job(kept.job.id)).arguments["page"] == 3


async def test_a_dead_letter_has_the_arguments_of_its_last_attempt(app: App) -> None:
    @app.task(retry=TRIES)
    async def load(page: int) -> None:
        raise RetryLater(0, args={"page": 2}) if page == 1 else Discard("enough")

    job = (await load.enqueue(1)).job
    await drain(app)
    assert [letter.arguments for letter in await app.dead.list()] == [{"page": 2}]
    assert (await app.job(job.id)).attempt == 2
