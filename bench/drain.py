"""How fast one worker process empties a queue of jobs that do nothing, beside others.

    python -m bench.drain plain|keyed|huey|pgqueuer|dramatiq|taskiq URL COUNT

fills a queue, empties it and prints the rate. All have everything enqueued before the clock starts, and stop
it when the store holds no unfinished job. Ours is leased, fenced, completed and kept.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from bench import peers
from bench.measure import Plan, Reading, alternate, judged, shown, timing
from bench.places import Place
from onejob import App, Unique
from onejob.job import State

CONCURRENCY = 500
PATIENCE = 300.0
OURS = {"plain", "keyed"}


def drain(plan: Plan, place: Place) -> Iterator[Reading]:
    """Measure ours against the others, of whom the fastest counts: first without keys, as theirs."""
    number = plan.size(*place.drained)
    run = partial(in_a_process, place, number)
    plain = {
        peer: alternate(plan, lambda: run("plain"), lambda: run(peer))  # noqa: B023 - called in this turn
        for peer in place.peers
    }
    best = min(plain, key=lambda peer: plain[peer].ratio)
    keyed = alternate(plan, lambda: run("keyed"), lambda: run(best))
    title = f"drain no-ops, {place.label}"
    for peer, pair in plain.items():
        if peer == best:
            yield judged(title, pair, place.bars["drain"], unit="jobs/s", against=peer)
        else:
            yield shown(title, pair, unit="jobs/s", against=peer)
    yield shown(f"drain keyed no-ops, {place.label}", keyed, unit="jobs/s", against=best)


def in_a_process(place: Place, number: int, side: str) -> float:
    """Let one side drain in a process of its own, in an empty store, and see that it has drained all."""
    with place.fresh("drain") as url:
        command = [sys.executable, "-m", "bench.drain", side, url, str(number)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
        assert side not in OURS or place.count(url) == number
    return float(done.stdout)


async def drain_ours(url: str, number: int, *, keyed: bool) -> float:
    """Fill and empty our queue."""
    async with App(url) as app:

        @app.task(unique=Unique() if keyed else None)
        async def nothing(number: int) -> None: ...

        await app.enqueue_many([nothing.call(i) for i in range(number)])
        with timing() as watch:
            await app.worker(concurrency=CONCURRENCY, drain=True).run()
        stats = await app.stats()
    assert stats.by_state[State.COMPLETED] == number
    return watch.rate(number)


def main() -> None:
    """Run one side and print its rate."""
    side, url, number = sys.argv[1:]
    if side in OURS:
        print(asyncio.run(drain_ours(url, int(number), keyed=side == "keyed")))
    else:
        print(peers.drain(side, url, int(number)))


if __name__ == "__main__":
    main()
