"""Start a job under your own key, with a scope (which jobs match) and a window (for how long).

    python examples/keyed_start.py

A second start returns the existing job, marked `deduplicated`, and says whether your input was ignored.
"""

import asyncio

from onejob import App, Unique

app = App("memory://")


@app.task
async def process(user_id: int) -> str:
    """Process a user. The task is unique only if a call says so."""
    return f"processed {user_id}"


# Two scopes, one of them also with a window. Define each policy once and give it a name.
incomplete = Unique(until="finish")  # matches unfinished jobs (the default)
anything = Unique(until="forever")  # matches finished jobs too
anything_lately = Unique(until="forever", within="150ms")  # matches jobs that are younger than this


async def main() -> None:
    """Start the same work again and again."""
    # Without a key, every start creates a new job.
    plain = [await process.enqueue(1), await process.enqueue(1)]
    print("no key:", [admission.deduplicated for admission in plain])

    # You choose the key. The second start returns the first job, and says that its own input was ignored.
    start = process.options(key="user-123")
    first = await start.enqueue(123)
    again = await start.enqueue(456)
    print("same key: the same job" if again.job.id == first.job.id else "same key: another job")
    print(f"deduplicated: {again.deduplicated}, its input differs: {again.payload_differs}")
    print(f"why: {again.reason}")

    async with app.worker():
        print("both get the result:", await again.result(timeout=10))

        # Scope "incomplete": the first job has finished, so a new one may start.
        print("incomplete, after the end:", (await start.options(unique=incomplete).enqueue(123)).outcome)

        # Scope "any": a finished job still matches, forever ...
        ever = process.options(key="report-2026", unique=anything)
        await (await ever.enqueue(1)).result(timeout=10)
        print("any, after the end:", (await ever.enqueue(1)).outcome)

        # ... or until the window ends.
        lately = process.options(key="report-today", unique=anything_lately)
        await (await lately.enqueue(1)).result(timeout=10)
        print("any, within the window:", (await lately.enqueue(1)).outcome)
        await asyncio.sleep(0.2)
        print("any, after the window:", (await lately.enqueue(1)).outcome)

    # explain() shows what a start would do, without starting anything.
    answer = await ever.explain(1)
    print(f"explain: {answer.outcome}, because {answer.reason}")


if __name__ == "__main__":
    asyncio.run(main())
