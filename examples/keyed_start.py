"""Start work under a key of your own: with a scope (until when) and a window (how long at most).

    python examples/keyed_start.py

Asking again gives you the job that is there, `deduplicated`, and tells you if your input was ignored.
"""

import asyncio

from onejob import App, Unique

app = App("memory://")


@app.task
async def process(user_id: int) -> str:
    """Do something for a user; not unique unless the call says so."""
    return f"processed {user_id}"


# Two scopes, with and without a window. Say them once and give them a name.
incomplete = Unique(until="finish")  # matches while the first one is not finished (the default)
anything = Unique(until="forever")  # matches finished ones too
anything_lately = Unique(until="forever", within="150ms")  # ... that are younger than this


async def main() -> None:
    """Start the same thing again and again."""
    # Without a key every start is a new job.
    plain = [await process.enqueue(1), await process.enqueue(1)]
    print("no key:", [admission.deduplicated for admission in plain])

    # The key is yours. The second start answers with the first one's job; its input is ignored, and says so.
    start = process.options(key="user-123")
    first = await start.enqueue(123)
    again = await start.enqueue(456)
    print("same key: the same job" if again.job.id == first.job.id else "same key: another job")
    print(f"deduplicated: {again.deduplicated}, its input differs: {again.payload_differs}")
    print(f"why: {again.reason}")

    async with app.worker():
        print("both get the result:", await again.result(timeout=10))

        # Scope "incomplete": the first one has finished, so a new one may start.
        print("incomplete, after the end:", (await start.options(unique=incomplete).enqueue(123)).outcome)

        # Scope "any": a finished job still answers, for ever ...
        ever = process.options(key="report-2026", unique=anything)
        await (await ever.enqueue(1)).result(timeout=10)
        print("any, after the end:", (await ever.enqueue(1)).outcome)

        # ... or for as long as the window.
        lately = process.options(key="report-today", unique=anything_lately)
        await (await lately.enqueue(1)).result(timeout=10)
        print("any, within the window:", (await lately.enqueue(1)).outcome)
        await asyncio.sleep(0.2)
        print("any, after the window:", (await lately.enqueue(1)).outcome)

    # Not sure what a start would do? Ask, without starting anything.
    answer = await ever.explain(1)
    print(f"explain: {answer.outcome}, because {answer.reason}")


if __name__ == "__main__":
    asyncio.run(main())
