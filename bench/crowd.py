"""Whether admission stays as fast when the store has many jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count, islice
from statistics import mean, median

from bench.measure import Pair, Plan, Reading, alternate, at_most, below, percentile, shown
from bench.targets import NoRoom, Target
from bench.workload import Invoice, enqueue_invoices, open_app


def crowd(plan: Plan, target: Target) -> Iterator[Reading]:
    """Measure new keys in a store with many jobs and in an empty one."""
    crowds = target.quick_crowds if plan.quick else target.crowds
    with target.empty_store("crowd") as crowded_url, target.empty_store("crowd-empty") as empty_url:
        for finished, live in crowds:
            try:
                yield from beside(plan, target, (crowded_url, empty_url), finished, live)
            except NoRoom as error:
                plan.say(f"left out: {error}")


def beside(plan: Plan, target: Target, urls: tuple[str, str], finished: int, live: int) -> Iterator[Reading]:
    """Measure beside one crowd."""
    number = plan.size(2000, 500)
    crowded_url, empty_url = urls
    for url in urls:
        enqueue_invoices(url, [])
    target.fill(crowded_url, finished, live, plan.say)
    crowded_app, crowded = open_app(crowded_url)
    empty_app, empty = open_app(empty_url)
    customers = count(target.count(crowded_url) + target.count(empty_url))  # none of them has an invoice
    in_crowd: list[float] = []
    alone: list[float] = []

    def admit(task: Invoice, took: list[float]) -> float:
        found = admissions(task, list(islice(customers, number)))
        took += found
        return median(found)

    admit(crowded, [])
    admit(empty, [])
    pair = alternate(plan, lambda: admit(crowded, in_crowd), lambda: admit(empty, alone))
    crowded_app.close_sync()
    empty_app.close_sync()

    title = f"admission beside {finished:,} finished, {live:,} live, {target.label}"
    yield at_most(f"{title}, p50", pair, target.bars["crowd"] or 1, against="ours, empty")
    yield shown(
        f"{title}, mean",
        Pair(mean(in_crowd), mean(alone), mean(in_crowd) / mean(alone)),
        unit="ms",
        against="ours, empty",
    )
    slow = f"{title}, p99", percentile(in_crowd, 99)
    yield (
        Reading(*slow, "ms") if target.software else below(*slow, 5)
    )  # on a server this depends on its own background work


def admissions(task: Invoice, customers: list[int]) -> list[float]:
    """Return how many milliseconds each admission of a new key takes."""
    took = []
    for customer in customers:
        began = time.perf_counter()
        admission = task.enqueue_sync(customer, "July")
        took.append((time.perf_counter() - began) * 1000)
        assert admission.outcome == "created"
    return took
