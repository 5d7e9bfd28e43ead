"""A notes archive: one embedding job per note, and one graph maintenance job for the whole archive.

    python examples/notes_archive.py

The rule "at most one waiting or running job" is the same for a job of one note and for a job without a note.
A request that arrives too late for the current run is not lost: it causes one more run.
"""

import asyncio
from collections.abc import Callable, Sequence

from onejob import App, Unique

app = App("memory://")  # "sqlite:///notes.db" keeps the jobs in a file; nothing else changes

# One rule for both tasks: the note is the key, and None ("no note") is a value like any other.
# coalesce: a waiting job gets the newest payload; a running job is followed by exactly one more run.
one_per_note = Unique.coalesce(by="note_id")
# The same, but an updated job does all requested steps.
one_for_the_archive = Unique.coalesce(by="note_id", merge={"steps": "union"})

runs: list[str] = []
finish = asyncio.Event()  # keeps jobs running while this example inspects them


@app.task(unique=one_per_note)
async def embed_note(note_id: str, text: str) -> None:
    """Turn a note into a vector; a real handler would call a slow service."""
    runs.append(f"embed_note({note_id}, {text!r})")
    await finish.wait()
    # Request maintenance from inside a job. enqueue_quietly() logs errors, so the embedding never fails.
    await graph_maintenance.enqueue_quietly(steps=["edges"])


@app.task(unique=one_for_the_archive)
async def graph_maintenance(note_id: str | None = None, *, steps: Sequence[str]) -> None:
    """Tidy the graph of the whole archive. There is no note, so one such job exists at a time."""
    runs.append(f"graph_maintenance({', '.join(steps)})")
    await finish.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    while not condition():
        await asyncio.sleep(0.01)


async def main() -> None:
    """Edit two notes many times, and count the runs."""
    # No worker runs yet. Ten edits of one note become one waiting job, which has the newest text.
    for number in range(1, 11):
        edit = await embed_note.enqueue("a", f"draft {number}")
    print(f"the 10th edit was {edit.outcome}: {edit.reason}")

    # A new request updates the waiting maintenance job, so its steps are not lost.
    await graph_maintenance.enqueue(steps=["snapshot"])
    fresh = await graph_maintenance.enqueue(steps=["edges"])
    print(f"the waiting maintenance was {fresh.outcome}: {fresh.job.arguments['steps']}")

    async with app.worker(concurrency=8):
        await embed_note.enqueue("b", "hello")  # another note: runs at the same time
        await until(lambda: len(runs) == 3)
        print(f"side by side: {sorted(runs)}")

        # The job of note "a" is running now. Three more edits become one more run, with the last text.
        for number in range(11, 14):
            late = await embed_note.enqueue("a", f"draft {number}")
        print(f"an edit during the run was {late.outcome}: it waits as {late.job.state}")

        # Force a second maintenance job without cancelling the running one.
        forced = await graph_maintenance.options(force=True).enqueue(steps=["vacuum"])
        await until(lambda: "graph_maintenance(vacuum)" in runs)
        print(f"force=True: {forced.outcome}; now two of them run")

        finish.set()
        await late.covered(timeout=10)  # waits for a run that started after this request
        while await graph_maintenance.pending(steps=[]):
            await asyncio.sleep(0.01)

    print(f"20 requests, {len(runs)} runs:", *runs, sep="\n  ")
    print("absorbed:", (await app.stats()).absorbed["embed_note"])


if __name__ == "__main__":
    asyncio.run(main())
