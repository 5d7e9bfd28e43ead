# ruff: noqa: PLR2004 - how many were asked for, and how many ran, is best read where it is compared
"""The five scenarios. Each declares its tasks, makes requests, and claims only what it has observed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from onejob import App, Outcome, Retry, State, Task, Unique, current
from onejob.demo.scene import Scene

Scenario = Callable[[Scene], Awaitable[list[str]]]
"""Run a scenario and return the names of its tasks."""


# ── 1 ─────────────────────────────────────────────────────────────────────────────────────────────


async def notes_archive(scene: Scene) -> list[str]:
    """Run one job per note and one for the archive, and lose no request that comes during a run."""
    finish = asyncio.Event()

    @scene.app.task(unique=Unique.coalesce(by="note_id"))
    async def embed_note(note_id: int, text: str) -> None:
        async with scene.run("embed", note_id, text):
            await finish.wait()
        if answer := await graph_maintenance.enqueue_quietly():  # would not fail this job
            scene.note(answer)

    @scene.app.task(unique=Unique.coalesce(by="note_id"))
    async def graph_maintenance(note_id: int | None = None) -> None:
        async with scene.run("maintain", note_id):
            await asyncio.sleep(0.05)

    async def edit(drafts: range) -> None:
        for draft in drafts:
            await scene.ask_at_once(*(embed_note.enqueue(note, f"draft {draft}") for note in range(5)))
            await asyncio.sleep(0.005)

    await edit(range(1, 26))
    twice = await scene.ask_at_once(graph_maintenance.enqueue(), graph_maintenance.enqueue())
    forced = await scene.ask(graph_maintenance.options(force=True).enqueue())
    async with scene.worker(8):
        await scene.until(lambda: len(scene.ran("embed")) == 5)
        await edit(range(26, 51))
        finish.set()
        await scene.until_done()

    last = dict(scene.ran("embed"))
    scene.claim("5 notes ran side by side", holds=scene.most_at_once["embed"] == 5)
    scene.claim(
        "50 edits of a note, half of them during its run, cost two runs", holds=len(scene.ran("embed")) == 10
    )
    scene.claim("the last edit of every note was embedded", holds=set(last.values()) == {"draft 50"})
    scene.claim(
        "maintenance of no note is one job, and force=True adds one",
        holds=twice[0].job.id == twice[1].job.id and forced.outcome is Outcome.FORCED,
    )
    return ["embed_note", "graph_maintenance"]


# ── 2 ─────────────────────────────────────────────────────────────────────────────────────────────


async def unique_modes(scene: Scene) -> list[str]:
    """Hold until it starts, until it ends, for a window; by all input, by a part, by a function."""
    app, finish = scene.app, asyncio.Event()

    @app.task(unique=Unique.until_executing())
    async def send_email(to: str) -> None:
        async with scene.run("email", to):
            await finish.wait()

    @app.task(unique=Unique.until_executed())
    async def charge(order_id: int) -> None:
        async with scene.run("charge", order_id):
            await finish.wait()

    @app.task(unique=Unique.throttle("1s"))
    async def sync_feed(feed: str) -> None:
        async with scene.run("feed", feed):
            pass

    @app.task(unique=True)
    async def invoice(order_id: int, currency: str = "EUR") -> None:
        async with scene.run("invoice", order_id, currency):
            pass

    @app.task(unique=Unique(by="tenant_id"))
    async def rebuild(tenant_id: str, reason: str) -> None:
        async with scene.run("rebuild", tenant_id, reason):
            pass

    @app.task(unique=Unique(key=lambda address: address.lower()))
    async def welcome(address: str) -> None:
        async with scene.run("welcome", address):
            pass

    await scene.ask_at_once(*(send_email.enqueue("ada") for _ in range(20)))
    await scene.ask_at_once(*(charge.enqueue(7) for _ in range(40)))
    for order in range(5):
        await scene.ask_at_once(invoice.enqueue(order), invoice.enqueue(order, "EUR"))
    await scene.ask_at_once(*(rebuild.enqueue("acme", f"reason {number}") for number in range(20)))
    await scene.ask_at_once(*(welcome.enqueue(name) for name in ("Ada", "ada", "ADA")))
    first, *_ = await scene.ask_at_once(*(sync_feed.enqueue("news") for _ in range(10)))
    async with scene.worker(16):
        await scene.until(lambda: scene.running["email"] == scene.running["charge"] == 1)
        while_running = await scene.ask_at_once(send_email.enqueue("ada"), charge.enqueue(7))
        in_window = await scene.ask_at_once(*(sync_feed.enqueue("news") for _ in range(10)))
        await scene.until(lambda: scene.running["email"] == 2)
        finish.set()
        await scene.until_free(first)
        after = await scene.ask_at_once(charge.enqueue(7), sync_feed.enqueue("news"))
        await scene.until_done()

    kept = {task: outcomes.get("kept", 0) for task, outcomes in (await app.stats()).absorbed.items()}
    scene.claim(
        "until executing: absorbed while waiting, accepted while running",
        holds=len(scene.ran("email")) == 2 and while_running[0].outcome is Outcome.CREATED,
    )
    scene.claim(
        "until executed: 41 clicks charged once, the next order a second time",
        holds=len(scene.ran("charge")) == 2 and while_running[1].outcome is Outcome.KEPT,
    )
    scene.claim(
        "throttle: one per window, though the first had ended",
        holds=all(answer.deduplicated for answer in in_window) and not after[1].deduplicated,
    )
    scene.claim(
        "keys: whole input, tenant only, and a function of the address",
        holds=[len(scene.ran(group)) for group in ("invoice", "rebuild", "welcome")] == [5, 1, 1],
    )
    names = ["send_email", "charge", "sync_feed", "invoice", "rebuild", "welcome"]
    scene.claim(
        "skips are counted per task", holds=[kept.get(name) for name in names] == [19, 40, 19, 5, 19, 2]
    )
    return names


# ── 3 ─────────────────────────────────────────────────────────────────────────────────────────────


class Service:
    """An embedding service that can fail."""

    def __init__(self) -> None:
        self.stored: dict[str, int] = {}
        self.is_down = True
        self.finish = asyncio.Event()


def embedding_task(app: App, scene: Scene, service: Service) -> Task[[str, int], None]:
    """Declare the queue, as each process would."""
    app.queue("embeddings", concurrency=3)

    @app.task(
        queue="embeddings",
        unique=Unique.latest(by="entry_id", version="seq"),
        retry=Retry(attempts=3, base="10ms", jitter=0),  # in production: Retry.embedding()
    )
    async def embed(entry_id: str, seq: int) -> None:
        async with scene.run("embed", entry_id, seq):
            await asyncio.sleep(0.02)
            if entry_id == "flaky" and current().attempt < 3:
                raise ConnectionError("the embedding service failed")
            if entry_id == "doomed" and service.is_down:
                raise ConnectionError("the embedding service is down")
            if entry_id == "hot":
                await service.finish.wait()
            if await current().is_latest():
                service.stored[entry_id] = seq

    return embed


async def embedding_queue(scene: Scene) -> list[str]:
    """Let the latest version win, three at a time, through failures and a restart."""
    service = Service()
    async with App(scene.app.url) as before:
        embed = embedding_task(before, scene, service)
        await scene.ask_in_bulk(before, [embed.call("hot", seq) for seq in range(1, 321)])
        await scene.ask_in_bulk(before, [embed.call(f"entry {number}", 1) for number in range(16)])
        await scene.ask_in_bulk(before, [embed.call("flaky", 1), embed.call("doomed", 1)])

    app = scene.app  # "restarted": it has nothing but the file
    embed = embedding_task(app, scene, service)
    stale = await scene.ask(embed.enqueue("hot", 319))
    async with scene.worker(8):
        await scene.until(lambda: ("hot", 320) in scene.ran("embed"))
        late = await scene.ask_in_bulk(app, [embed.call("hot", seq) for seq in range(321, 421)])
        service.finish.set()
        await scene.until_done()
        [letter] = await app.dead.list(task="embed")
        service.is_down = False
        replayed = await app.dead.replay(letter.id)
        await scene.until_done()

    runs = scene.ran("embed")
    scene.claim("never more than 3 ran at once", holds=scene.most_at_once["embed"] == 3)
    scene.claim(
        "420 updates of one entry cost two runs, and the last one is stored",
        holds=[seq for entry, seq in runs if entry == "hot"] == [320, 420] and service.stored["hot"] == 420,
    )
    scene.claim(
        "an older version is stale, also after a restart",
        holds=stale.outcome is Outcome.STALE and late[-1].outcome is Outcome.UPDATED,
    )
    scene.claim("a retry is not stale against itself", holds=runs.count(("flaky", 1)) == 3)
    scene.claim(
        "a dead letter was kept whole, and replayed",
        holds=letter.arguments == {"entry_id": "doomed", "seq": 1}
        and len(letter.failures) == 3
        and replayed.outcome is Outcome.CREATED
        and service.stored["doomed"] == 1,
    )
    return ["embed"]


# ── 4 ─────────────────────────────────────────────────────────────────────────────────────────────


async def keyed_start(scene: Scene) -> list[str]:
    """Start under a key of your own, with a scope and a window; get the job that is there."""
    app = scene.app

    @app.task
    async def process(user_id: int) -> int:
        async with scene.run("process", user_id):
            await asyncio.sleep(0.02)
        return user_id

    incomplete = process.options(key="user-123")
    ever = process.options(key="report", unique=Unique(until="forever"))
    lately = process.options(key="digest", unique=Unique(until="forever", within="1s"))

    plain = await scene.ask_at_once(*(process.enqueue(number) for number in range(5)))
    first = await scene.ask(incomplete.enqueue(123))
    again = await scene.ask_at_once(*(incomplete.enqueue(number) for number in range(39)))
    async with scene.worker(8):
        results = {await answer.result(5) for answer in again}
        ended = await scene.ask(incomplete.enqueue(123))
        for start in (ever, lately):
            newest = await scene.ask(start.enqueue(1))
            await newest.result(5)
        finished = await scene.ask_at_once(*(start.enqueue(2) for start in (ever, lately) for _ in range(20)))
        await scene.until_free(newest)
        later = await scene.ask_at_once(ever.enqueue(3), lately.enqueue(3))
        await scene.until_done()

    scene.claim("without a key every start is new", holds=len({answer.job.id for answer in plain}) == 5)
    scene.claim(
        "40 starts of one key are one job, and all get its result",
        holds={answer.job.id for answer in again} == {first.job.id} and results == {123},
    )
    scene.claim(
        "ignored input is reported", holds=all(a.deduplicated and a.payload_differs for a in again[:39])
    )
    scene.claim("scope incomplete: free when the job has ended", holds=not ended.deduplicated)
    scene.claim(
        "scope any: a finished job answers, with within= only for its window",
        holds=all(answer.job.state is State.COMPLETED for answer in finished)
        and [answer.outcome for answer in later] == [Outcome.KEPT, Outcome.CREATED],
    )
    return ["process"]


# ── 5 ─────────────────────────────────────────────────────────────────────────────────────────────


async def dimensions(scene: Scene) -> list[str]:
    """Distinguish work by type, queue, arguments, metadata; reject, replace or drop; filter by state."""
    app, finish = scene.app, asyncio.Event()
    app.queue("eu")
    app.queue("us")

    @app.task(unique=Unique.singleton(strength="strong"))
    async def rotate_logs(host: int) -> None:
        async with scene.run("type", host):
            pass

    @app.task(unique=Unique(by="customer_id", queue=True))
    async def bill(customer_id: int, cents: int) -> None:
        async with scene.run("queue", customer_id, cents):
            pass

    @app.task(unique=Unique(by="page", meta=["tenant"]))
    async def render(page: str) -> None:
        async with scene.run("meta", page):
            pass

    @app.task(unique=Unique(on_conflict="reject"))
    async def withdraw(account: int) -> None:
        async with scene.run("reject", account):
            pass

    @app.task(unique=Unique(by="path", on_conflict="replace"))
    async def upload(path: str, size: int) -> None:
        async with scene.run("replace", path, size):
            pass

    @app.task(unique=Unique(by="user_id", on_conflict="keep"))
    async def remind(user_id: int, text: int) -> None:
        async with scene.run("drop", user_id, text):
            pass

    @app.task(unique=Unique(states=[State.SCHEDULED, State.AVAILABLE]))
    async def reindex(item: str) -> None:
        async with scene.run("states", item):
            await finish.wait()

    for number in range(10):
        await scene.ask_at_once(
            rotate_logs.enqueue(number),
            *(bill.options(queue=queue).enqueue(7, number) for queue in ("eu", "us")),
            *(render.options(meta={"tenant": tenant}).enqueue("home") for tenant in ("acme", "zeta")),
            withdraw.enqueue(7),
            upload.enqueue("a.txt", number),
            remind.enqueue(7, number),
            reindex.enqueue("book"),
        )
        await asyncio.sleep(0.01)
    async with scene.worker(16):
        await scene.until(lambda: scene.running["states"] == 1)
        running = await scene.ask(reindex.enqueue("book"))
        finish.set()
        await scene.until_done()

    outcomes = {task: dict(counted) for task, counted in (await app.stats()).absorbed.items()}
    ran: Mapping[str, int] = {group: len(scene.ran(group)) for group in scene.most_at_once}
    scene.claim(
        "one per type; one per queue; one per tenant in the metadata",
        holds=(ran["type"], ran["queue"], ran["meta"]) == (1, 2, 2),
    )
    scene.claim("reject: 9 of 10 callers got Duplicate", holds=outcomes["withdraw"] == {"rejected": 9})
    scene.claim("replace: the last upload ran", holds=scene.ran("replace") == [("a.txt", 9)])
    scene.claim("drop: the first reminder ran", holds=scene.ran("drop") == [(7, 0)])
    scene.claim(
        "states: a waiting job counts, a running one does not",
        holds=running.outcome is Outcome.CREATED and ran["states"] == 2,
    )
    promise = app.guarantees()
    scene.claim(f"{promise.store} declares itself {promise.strength}", holds=promise.strength == "strong")
    return ["rotate_logs", "bill", "render", "withdraw", "upload", "remind", "reindex"]


SCENARIOS: Mapping[str, Scenario] = {
    "notes archive": notes_archive,
    "unique modes": unique_modes,
    "embedding queue": embedding_queue,
    "keyed start": keyed_start,
    "dimensions": dimensions,
}
