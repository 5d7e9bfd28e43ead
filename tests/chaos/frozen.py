"""A worker process that a test freezes: python -m tests.chaos.frozen URL LEASE; it prints what it starts."""

from __future__ import annotations

import asyncio
import sys

from onejob import App, Retry, current


def shop(url: str) -> App:
    """Return an app with one limited and one unlimited queue."""
    app = App(url, store_timeout=5)
    app.queue("narrow", concurrency=3)

    @app.task(queue="narrow", retry=Retry(attempts=9, base=0, jitter=0))
    async def limited(n: int) -> int:
        print(current().job.id, flush=True)  # noqa: T201 - the test reads it
        await asyncio.sleep(0.05)
        return n

    @app.task(retry=Retry(attempts=9, base=0, jitter=0))
    async def single(n: int) -> int:
        print(current().job.id, flush=True)  # noqa: T201 - the test reads it
        await asyncio.sleep(0.05)
        return n

    return app


async def main(url: str, lease: str) -> None:
    """Work until killed."""
    await shop(url).worker(concurrency=4, lease=lease).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
