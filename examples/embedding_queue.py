"""An embedding queue: the latest version of each entry wins, and at most three jobs run at once.

    python examples/embedding_queue.py

The whole queue is the declaration of one task. Versions, retries and dead letters live in the store,
so they survive a restart.
"""

import asyncio
import tempfile
from pathlib import Path

from onejob import App, Retry, Unique

vectors: dict[str, str] = {}  # the vectors that the embedding service has stored
service_is_down = False
running = most_at_once = 0


async def embed(entry_id: str, seq: int, text: str) -> None:
    """Embed one version of one entry."""
    global running, most_at_once  # noqa: PLW0603 - a gauge for this example
    running += 1
    most_at_once = max(most_at_once, running)
    try:
        await asyncio.sleep(0.01)
        if service_is_down:
            raise ConnectionError("the embedding service is down")
        vectors[entry_id] = f"v{seq} {text}"
    finally:
        running -= 1


def build(path: Path) -> App:
    """Create the app, as every process of a deployment would."""
    app = App(f"sqlite:///{path}")
    app.queue("embeddings", concurrency=3)  # across all workers of all processes
    app.task(
        name="embed",
        queue="embeddings",
        # One job per entry. A higher seq updates the waiting job, which keeps its place in the queue, or runs
        # after the running job. A lower or equal seq is stale. A retry is never stale against itself.
        unique=Unique.latest(by="entry_id", version="seq"),
        # Retry.embedding() waits min(1000 · 2^failures, 30000) ms; this example uses a shorter backoff.
        retry=Retry(attempts=3, base="5ms", factor=2, cap="30s", jitter=0),
    )(embed)
    return app


async def main() -> None:
    """Update entries many times, restart, fail, and replay the dead letter."""
    global service_is_down  # noqa: PLW0603 - a switch for this example
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"

        # 1,000 updates of one entry, and one update of each of nine others, before a worker starts.
        app = build(path)
        task = app.task_named("embed")
        updates = [task.call("entry-0", seq, f"text {seq}") for seq in range(1, 1001)]
        others = [task.call(f"entry-{number}", 1, "text") for number in range(1, 10)]
        await app.enqueue_many(updates + others)
        stale = await task.enqueue("entry-0", 999, "text 999")
        print(f"version 999 after version 1000: {stale.outcome}")
        await app.close()

        # Restart: a new App on the same file finds the waiting jobs and their versions.
        app = build(path)
        task = app.task_named("embed")
        print(f"after the restart {(await app.stats()).keys_waiting} entries wait")
        async with app.worker(concurrency=8):
            while (await app.stats()).waiting or (await app.stats()).running:
                await asyncio.sleep(0.01)
        print(f"entry-0 is {vectors['entry-0']!r}; never more than {most_at_once} ran at once")
        done = await app.jobs(task="embed", state="completed")
        print(f"1009 updates cost {len(done)} runs")

        # The service goes down. After three attempts the job is a dead letter with its payload and errors.
        service_is_down = True
        await task.enqueue("entry-0", 1001, "text 1001")
        async with app.worker():
            while not await app.dead.list():
                await asyncio.sleep(0.01)
        [letter] = await app.dead.list()
        errors = [failure["message"] for failure in letter.failures]
        print(f"dead letter after {letter.attempt} attempts: {letter.arguments}, {errors[-1]}")

        # The service is back: replay one dead letter. app.dead.replay_all() replays all of them.
        service_is_down = False
        replayed = await app.dead.replay(letter.id)
        async with app.worker():
            await replayed.result(timeout=10)
        print(f"replay: {replayed.outcome}; entry-0 is {vectors['entry-0']!r}")
        await app.close()


if __name__ == "__main__":
    asyncio.run(main())
