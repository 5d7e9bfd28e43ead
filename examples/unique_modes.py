"""Uniqueness modes: how long a job blocks duplicates, and which calls are the same work.

    python examples/unique_modes.py

Each task declares its mode once; callers just call enqueue().
"""

import asyncio
import logging

from onejob import App, Unique, unique

app = App("memory://")

# ── How long does a job hold its key? ────────────────────────────────────────────────────────────────


@app.task(unique=Unique.until_executing())  # until it starts; a request during the run is new work
async def send_email(to: str) -> None:
    """Send an e-mail."""


@app.task(unique=Unique.until_executed())  # until it ends, in success or failure; the same as unique=True
async def charge(order_id: int) -> None:
    """Charge an order, never twice at once."""


@app.task(unique=Unique.throttle("200ms"))  # one per window, however the job ends
async def sync_feed(feed: str) -> None:
    """Fetch a feed, but not too often."""


# ── What is the same work? ───────────────────────────────────────────────────────────────────────────


@app.task(unique=True)  # all arguments, hashed: f(7), f(7, "EUR") and f(order_id=7) are one call
async def invoice(order_id: int, currency: str = "EUR") -> None:
    """Write an invoice."""


@app.task(unique=unique.by("tenant_id").until("finish").or_keep())  # only the tenant; the fluent form
async def rebuild(tenant_id: str, reason: str) -> None:
    """Rebuild a tenant's index; the reason is not part of the key."""


def same_mailbox(address: str) -> str | None:
    """Return the key: case does not matter. None means that this call is not unique."""
    return None if address == "test@example.com" else address.lower()


@app.task(unique=Unique(key=same_mailbox))  # a function of the arguments that its parameters name
async def welcome(address: str, name: str) -> None:
    """Greet a new user."""


async def main() -> None:
    """Enqueue everything twice and print the outcome of the second request."""
    # Every absorbed request is logged at DEBUG and counted per task.
    logging.basicConfig(format="  log: %(message).36s...")
    logging.getLogger("onejob").setLevel(logging.DEBUG)

    await send_email.enqueue("ada@example.com")
    waiting = await send_email.enqueue("ada@example.com")
    print("until executing, while it waits:", waiting.outcome)

    await charge.enqueue(7)
    twice = await charge.enqueue(order_id=7)  # a double click
    print("until executed, while it waits:", twice.outcome)

    first = await sync_feed.enqueue("news")
    async with app.worker():
        await first.result(timeout=10)
        print("throttle, after it ran:", (await sync_feed.enqueue("news")).outcome)
        await asyncio.sleep(0.25)
        print("throttle, after the window:", (await sync_feed.enqueue("news")).outcome)

    await invoice.enqueue(7)
    print("input hash, spelled differently:", (await invoice.enqueue(7, currency="EUR")).outcome)
    print("input hash, other input:", (await invoice.enqueue(7, currency="USD")).outcome)

    await rebuild.enqueue("acme", reason="nightly")
    again = await rebuild.enqueue("acme", reason="manual")
    print("partial key:", again.outcome, "- payload differs:", again.payload_differs)

    await welcome.enqueue("Ada@Example.com", "Ada")
    print("custom key:", (await welcome.enqueue("ada@example.COM", "Countess")).outcome)

    absorbed = (await app.stats()).absorbed
    print("absorbed:", {task: dict(outcomes) for task, outcomes in sorted(absorbed.items())})


if __name__ == "__main__":
    asyncio.run(main())
