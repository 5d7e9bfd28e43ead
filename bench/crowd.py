"""Whether admission stays as fast when the store is full."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count, islice
from statistics import mean, median

from bench.measure import Pair, Plan, Reading, alternate, at_most, below, percentile, shown
from bench.places import NoRoom, Place
from bench.workload import Invoice, job_of, open_app


def crowd(plan: Plan, place: Place) -> Iterator[Reading]:
    """Measure new keys in a full and in an empty store."""
    crowds = place.quick_crowds if plan.quick else place.crowds
    with place.fresh("crowd") as crowded_url, place.fresh("crowd-empty") as empty_url:
        for finished, live in crowds:
            try:
                yield from beside(plan, place, (crowded_url, empty_url), finished, live)
            except NoRoom as error:
                plan.say(f"left out: {error}")


def beside(plan: Plan, place: Place, urls: tuple[str, str], finished: int, live: int) -> Iterator[Reading]:
    """Measure beside one crowd."""
    number = plan.size(2000, 500)
    crowded_url, empty_url = urls
    crowded_app, crowded = open_app(crowded_url)
    empty_app, empty = open_app(empty_url)
    for app in (crowded_app, empty_app):
        app.store.migrate()
    place.fill(crowded_url, finished, live, job_of(crowded, -1, "July"), plan.say)
    customers = count(place.count(crowded_url) + place.count(empty_url))  # none has been sent an invoice
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

    title = f"admission beside {finished:,} finished, {live:,} live, {place.label}"
    yield at_most(f"{title}, p50", pair, place.bars["crowd"] or 1, against="ours, empty")
    yield shown(
        f"{title}, mean",
        Pair(mean(in_crowd), mean(alone), mean(in_crowd) / mean(alone)),
        unit="ms",
        against="ours, empty",
    )
    slow = f"{title}, p99", percentile(in_crowd, 99)
    yield Reading(*slow, "ms") if place.software else below(*slow, 5)  # a server has moods of its own


def admissions(task: Invoice, customers: list[int]) -> list[float]:
    """Tell how many milliseconds each admission takes, all of new keys."""
    took = []
    for customer in customers:
        began = time.perf_counter()
        admission = task.enqueue_sync(customer, "July")
        took.append((time.perf_counter() - began) * 1000)
        assert admission.outcome == "created"
    return took
