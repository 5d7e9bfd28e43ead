"""Uniqueness in several dimensions (task, queue, some arguments, metadata) and three conflict policies.

    python examples/dimensions.py

Each task chooses its own policy, and the store declares how strong its guarantee is.
"""

import asyncio

from onejob import App, Duplicate, State, Unique

app = App("memory://")
app.queue("eu")
app.queue("us")

# ── Which dimensions define the same work? The task always does. ─────────────────────────────────────


@app.task(unique=Unique.singleton())  # the task and nothing else
async def rotate_logs(host: str) -> None:
    """Run one at a time, whatever the host."""


@app.task(unique=Unique(by="customer_id", queue=True))  # one argument, and the queue
async def bill(customer_id: int, cents: int) -> None:
    """Send one bill per customer in each queue."""


@app.task(unique=Unique(by="page", meta=["tenant"]))  # one argument, and a field of the metadata
async def render(page: str) -> None:
    """Render a page once per tenant."""


# ── What happens to a duplicate? ─────────────────────────────────────────────────────────────────────


@app.task(unique=Unique(on_conflict="reject"))  # an error that the caller can catch
async def withdraw(account: int) -> None:
    """Reject the second click."""


@app.task(unique=Unique(by="path", on_conflict="replace"))  # the new job replaces the waiting one
async def upload(path: str, size: int) -> None:
    """Run the newest upload only."""


@app.task(unique=Unique(by="user_id", on_conflict="keep"))  # "drop": the first job stays
async def remind(user_id: int, text: str) -> None:
    """Send one reminder."""


# ── In which states does a job count? ────────────────────────────────────────────────────────────────


started, finish = asyncio.Event(), asyncio.Event()


@app.task(unique=Unique(by="item", states=[State.SCHEDULED, State.AVAILABLE]))  # only while it waits
async def reindex(item: str) -> None:
    """Read an item. A running job does not block a new one: it may have read the old data."""
    started.set()
    await finish.wait()


async def main() -> None:
    """Enqueue twice in every dimension."""
    await rotate_logs.enqueue("a")
    print("task only:", (await rotate_logs.enqueue("b")).outcome)

    await bill.options(queue="eu").enqueue(7, 100)
    print("queue, the same:", (await bill.options(queue="eu").enqueue(7, 250)).outcome)
    print("queue, another:", (await bill.options(queue="us").enqueue(7, 100)).outcome)

    await render.options(meta={"tenant": "acme", "by": "ada"}).enqueue("home")
    again = await render.options(meta={"tenant": "acme", "by": "bob"}).enqueue("home")
    print("meta, the same:", again.outcome)
    print("meta, another:", (await render.options(meta={"tenant": "zeta"}).enqueue("home")).outcome)

    await withdraw.enqueue(7)
    try:
        await withdraw.enqueue(7)
    except Duplicate as duplicate:
        print(f"reject: {duplicate.job.task} is {duplicate.job.state} already")

    old = await upload.enqueue("a.txt", 1)
    new = await upload.enqueue("a.txt", 2)
    print(f"replace: {new.outcome}; the old one is {(await app.job(old.job.id)).state}")

    kept = await remind.enqueue(7, "first")
    await remind.enqueue(7, "second")
    print("drop:", (await app.job(kept.job.id)).arguments["text"], "stays")

    await reindex.enqueue("book")
    print("states, while it waits:", (await reindex.enqueue("book")).outcome)
    async with app.worker():
        await started.wait()
        print("states, while it runs:", (await reindex.enqueue("book")).outcome)
        finish.set()

    promise = app.guarantees()
    print(f"{promise.store} is {promise.strength} in {promise.scope}; durability: {promise.durability}")


if __name__ == "__main__":
    asyncio.run(main())
