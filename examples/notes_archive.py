"""A notes archive: one embedding job per note, one graph maintenance for all of them.

    python examples/notes_archive.py

The rule "at most one waiting or running" is the same for a job of one note and for a job of no note at all.
What you may not expect of such a rule: a request that comes too late for the run under way is not lost.
"""

import asyncio
from collections.abc import Callable, Sequence

from onejob import App, Unique

app = App("memory://")  # "sqlite:///notes.db" keeps the jobs in a file; nothing else changes

# One rule for both tasks: the note is the key, and None ("no note") is a value like any other.
# coalesce: a waiting job takes over the newest payload; a running one is followed by exactly one more run.
one_per_note = Unique.coalesce(by="note_id")
# The same, but a refreshed job does all the steps that anybody asked for.
one_for_the_archive = Unique.coalesce(by="note_id", merge={"steps": "union"})

runs: list[str] = []
finish = asyncio.Event()  # so that this example can look around while jobs are running


@app.task(unique=one_per_note)
async def embed_note(note_id: str, text: str) -> None:
    """Turn a note into a vector (imagine a slow service here)."""
    runs.append(f"embed_note({note_id}, {text!r})")
    await finish.wait()
    # Ask for maintenance from inside a job. "Quietly": should this fail, the note is embedded all the same.
    await graph_maintenance.enqueue_quietly(steps=["edges"])


@app.task(unique=one_for_the_archive)
async def graph_maintenance(note_id: str | None = None, *, steps: Sequence[str]) -> None:
    """Tidy the graph of the whole archive: no note, so there is one of these at a time."""
    runs.append(f"graph_maintenance({', '.join(steps)})")
    await finish.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something to be so."""
    while not condition():
        await asyncio.sleep(0.01)


async def main() -> None:
    """Edit two notes in a hurry, and count what runs."""
    # Nobody works yet. Ten edits of one note wait as one job, which has the newest text.
    for number in range(1, 11):
        edit = await embed_note.enqueue("a", f"draft {number}")
    print(f"the 10th edit was {edit.outcome}: {edit.reason}")

    # A stale maintenance that waits does not swallow a fresh request: it is refreshed.
    await graph_maintenance.enqueue(steps=["snapshot"])
    fresh = await graph_maintenance.enqueue(steps=["edges"])
    print(f"the waiting maintenance was {fresh.outcome}: {fresh.job.arguments['steps']}")

    async with app.worker(concurrency=8):
        await embed_note.enqueue("b", "hello")  # another note: runs beside the first
        await until(lambda: len(runs) == 3)
        print(f"side by side: {sorted(runs)}")

        # Note "a" is running now. Three more edits become one more run, with the last text.
        for number in range(11, 14):
            late = await embed_note.enqueue("a", f"draft {number}")
        print(f"an edit during the run was {late.outcome}: it waits as {late.job.state}")

        # A second maintenance on purpose, without cancelling the one that runs.
        forced = await graph_maintenance.options(force=True).enqueue(steps=["vacuum"])
        await until(lambda: "graph_maintenance(vacuum)" in runs)
        print(f"force=True: {forced.outcome}; now two of them run")

        finish.set()
        await late.covered(timeout=10)  # a run that began after this request has ended
        while await graph_maintenance.pending(steps=[]):
            await asyncio.sleep(0.01)

    print(f"20 requests, {len(runs)} runs:", *runs, sep="\n  ")
    print("absorbed:", (await app.stats()).absorbed["embed_note"])


if __name__ == "__main__":
    asyncio.run(main())
