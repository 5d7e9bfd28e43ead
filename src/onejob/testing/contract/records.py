"""Records: queries, counters, observations and settings; and what is left after a close."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from onejob.app.app import App
from onejob.core.decide import Outcome
from onejob.core.job import Job, State
from onejob.core.policy import Unique
from onejob.stores.contract import SCHEDULES, Observation, Tally
from onejob.stores.queries import ByKey, Ended, Expired, Late, Listed, Prunable
from onejob.testing.contract.acts import complete, everything, lease, mailer, run
from onejob.testing.contract.suite import Given, case


def ids(jobs: list[Job]) -> list[str]:
    """Return the ids of jobs."""
    return [job.id for job in jobs]


@case
async def jobs_are_listed_by_state_queue_and_task_in_pages(given: Given) -> None:
    mail, note = mailer(given.app), mailer(given.app, name="note", queue="slow")
    made = [(await mail.enqueue(number)).job.id for number in range(3)]
    other = (await note.enqueue(1)).job.id
    find = given.store.find
    assert ids(await find(Listed(namespace=""))) == [other, *reversed(made)]
    assert ids(await find(Listed(namespace="", newest_first=False, limit=2))) == made[:2]
    assert ids(await find(Listed(namespace="", limit=2, offset=1))) == [made[2], made[1]]
    assert ids(await find(Listed(namespace="", before=made[1]))) == [made[0]]
    assert ids(await find(Listed(namespace="", since=made[1]))) == [other, made[2], made[1]]
    assert ids(await find(Listed(namespace="", since=made[1], newest_first=False))) == [*made[1:], other]
    assert ids(await find(Listed(namespace="", since=made[0], before=made[2], offset=1))) == [made[0]]
    assert ids(await find(Listed(namespace="", queue="slow"))) == [other]
    assert ids(await find(Listed(namespace="", task="note", states=[State.AVAILABLE]))) == [other]
    assert await find(Listed(namespace="", states=[State.COMPLETED])) == []
    assert await find(Listed(namespace="other")) == []


@case
async def jobs_of_each_state_are_listed_by_queue_and_task_in_pages(given: Given) -> None:
    mail, note = mailer(given.app), mailer(given.app, name="note", queue="slow")
    made = [(await mail.options(delay="1h").enqueue(number)).job.id for number in range(3)]
    other = (await note.options(delay="1h").enqueue(1)).job.id
    waiting = (await mail.enqueue(3)).job.id

    async def listed(state: State, **filters: Any) -> list[str]:
        return ids(await given.store.find(Listed(namespace="", states=[state], **filters)))

    for state in (State.SCHEDULED, State.CANCELLED):
        assert await listed(state) == [other, *reversed(made)]
        assert await listed(state, limit=2, offset=1) == [made[2], made[1]]
        assert await listed(state, since=made[1], before=other) == [made[2], made[1]]
        assert await listed(state, newest_first=False) == [*made, other]
        assert await listed(state, queue="slow") == await listed(state, task="note") == [other]
        assert await listed(state, held=True) == []
        for job_id in (*made, other) if state is State.SCHEDULED else ():
            await given.app.cancel(job_id)
    assert await listed(State.AVAILABLE) == [waiting]
    assert await listed(State.AVAILABLE, since=waiting) == [waiting]
    assert await given.store.find(Listed(namespace="other", states=[State.CANCELLED])) == []


@case
async def active_jobs_are_listed_by_queue_and_task_in_pages(given: Given) -> None:
    mail, note = mailer(given.app), mailer(given.app, name="note", queue="slow")
    made = [(await mail.enqueue(number)).job.id for number in range(3)]
    other = (await note.enqueue(1)).job.id
    started = set(ids(await lease(given.app)))
    assert started == {*made, other}
    waiting = (await mail.enqueue(3)).job.id

    async def active(**filters: Any) -> list[str]:
        return ids(await given.store.find(Listed(namespace="", states=[State.ACTIVE], **filters)))

    assert await active() == [other, *reversed(made)]
    assert await active(limit=2, offset=1) == [made[2], made[1]]
    assert await active(before=made[1]) == [made[0]]
    assert await active(since=made[1]) == [other, made[2], made[1]]
    assert await active(newest_first=False) == [*made, other]
    assert await active(queue="slow") == await active(task="note") == [other]
    assert await active(held=True) == []
    assert waiting not in await active(queue="default")
    assert await given.store.find(Listed(namespace="other", states=[State.ACTIVE])) == []


@case
async def jobs_are_found_by_id_in_input_order(given: Given) -> None:
    mail = mailer(given.app)
    one, two = (await mail.enqueue(1)).job, (await mail.enqueue(2)).job
    assert await given.store.get([two.id, "unknown", one.id, two.id]) == [two, None, one, two]


@case
async def the_jobs_of_a_key_are_found_newest_first(given: Given) -> None:
    mail = mailer(given.app, Unique(by="to"))
    first = (await mail.enqueue(1)).job
    await run(given.app)
    second = (await mail.enqueue(1)).job
    await mail.enqueue(2)
    assert first.key is not None
    assert ids(await given.store.find(ByKey(namespace="", key=first.key))) == [second.id, first.id]


@case
async def jobs_are_found_by_their_times(given: Given) -> None:
    mail = mailer(given.app)
    job = (await mail.options(expires_in="1m").enqueue(1)).job
    now, soon = given.clock(), given.clock() + timedelta(minutes=1)
    assert await given.store.find(Late(namespace="", by=now)) == []
    assert ids(await given.store.find(Late(namespace="", by=soon))) == [job.id]
    [active] = await lease(given.app)
    assert active.lease_until is not None
    assert await given.store.find(Expired(namespace="", by=now)) == []
    assert ids(await given.store.find(Expired(namespace="", by=active.lease_until))) == [job.id]
    ended = await complete(given.app, active)
    assert ended.kept_until is not None
    assert ids(await given.store.find(Ended(namespace="", state=State.COMPLETED))) == [job.id]
    assert await given.store.find(Prunable(namespace="", by=now)) == []
    assert ids(await given.store.find(Prunable(namespace="", by=ended.kept_until))) == [job.id]


@case
async def jobs_are_counted_by_queue_task_and_state(given: Given) -> None:
    mail = mailer(given.app, Unique(by="to"))
    for number in range(3):
        await mail.enqueue(number)
    [job] = await lease(given.app, total=1)
    counts = await given.store.counts("")
    found = {key: number for key, number in counts.jobs.items() if number}
    assert found == {("default", "mail", State.AVAILABLE): 2, ("default", "mail", State.ACTIVE): 1}
    assert counts.keys_waiting == 2
    await complete(given.app, job)
    assert (await given.store.counts("")).jobs[("default", "mail", State.COMPLETED)] == 1


@case
async def counters_add_up_and_fold_when_their_job_is_gone(given: Given) -> None:
    job = (await mailer(given.app).enqueue(1)).job
    schedule = f"{SCHEDULES}nightly"
    for of in (job.id, job.id, "gone", schedule):
        given.store.count([Tally("", "mail", "kept", of, 2), Tally("other", "mail", "kept", of, 1)])

    async def counted() -> dict[str, int]:
        return {one.job_id: one.count for one in await given.store.tallies("")}

    assert await counted() == {job.id: 4, "gone": 2, schedule: 2}
    some = await given.store.tallies("", [schedule, job.id, "unknown"])
    assert sorted((one.job_id, one.count) for one in some) == [(job.id, 4), (schedule, 2)]
    assert await given.store.tallies("", []) == []
    assert {one.last_at for one in await given.store.tallies("")} == {given.clock()}
    assert await given.store.fold("") == 1
    assert await counted() == {job.id: 4, "": 2, schedule: 2}
    assert await given.store.tallies("", ["gone"]) == []
    assert sum(one.count for one in await given.store.tallies("other")) == 4


@case
async def a_counter_keeps_what_made_its_last_request(given: Given) -> None:
    now = given.clock()

    async def add(ago: float, by: str, count: int = 1) -> str:
        at = now - timedelta(seconds=ago)
        given.store.count([Tally("", "mail", "kept", "job", count, at, at, by)])
        [found] = await given.store.tallies("")
        return found.last_by

    assert await add(9, "") == ""
    assert await add(8, "a") == "a"
    assert await add(7, "b", 0) == "b"
    assert await add(8, "late") == "b"
    assert await add(3, "") == "b"
    assert await add(1, "c") == "c"
    assert await add(2, "d") == "c"
    [counted] = await given.store.tallies("")
    assert counted.count == 6
    assert (counted.last_at, counted.first_at) == (now - timedelta(seconds=1), now - timedelta(seconds=9))
    assert await given.store.fold("") == 1
    assert [one.last_by for one in await given.store.tallies("")] == [""]


@case
async def a_step_adds_to_the_counters_in_its_own_write(given: Given) -> None:
    mail = mailer(given.app, Unique.coalesce(by="to"))
    first = await mail.enqueue(1, 1)
    await mail.enqueue(1, 2)
    [counted] = await given.store.tallies("")  # before the app has written anything that it counts itself
    assert (counted.task, counted.outcome, counted.job_id) == ("mail", "updated", first.job.id)
    assert (counted.count, counted.first_at, counted.last_at) == (1, given.clock(), given.clock())
    assert await given.store.tallies("", [first.job.id]) == [counted]


@case
async def observations_are_limited_per_subject_number_and_age(given: Given) -> None:
    def seen(number: int, subject: str) -> Observation:
        given.clock.advance("1s")
        return Observation("", "kind", f"{number}", subject, given.clock(), f'{{"n":{number}}}')

    written = [seen(number, "even" if number % 2 == 0 else "odd") for number in range(6)]
    await given.store.observe(written, most=2)
    read = given.store.observations
    assert await read("", "kind") == [written[5], written[4], written[3], written[2]]
    assert await read("", "kind", subject="odd", limit=1) == [written[5]]
    assert await read("", "other kind") == []
    changed = seen(5, "odd")
    given.store.observe_sync([changed], most=2)
    assert (await read("", "kind", subject="odd"))[0] == changed
    assert await given.store.forget("", "kind", before=written[3].at, most=2) == 2
    assert [one.id for one in await read("", "kind")] == ["5", "4"]


@case
async def settings_are_written_read_and_removed(given: Given) -> None:
    store = given.store
    await store.put_setting("", "kind", "one", b"1")
    await store.put_setting("", "kind", "one", b"\x00\xff")
    await store.put_setting("", "kind", "two", b"2")
    await store.put_setting("other", "kind", "three", b"3")
    assert await store.settings("", "kind") == {"one": b"\x00\xff", "two": b"2"}
    await store.put_setting("", "kind", "one", None)
    assert await store.settings("", "kind") == {"two": b"2"}
    assert await store.settings("", "unknown") == {}


@case
async def clear_removes_the_records_of_one_namespace(given: Given) -> None:
    store, now = given.store, given.clock()
    for name in ("", "other"):
        store.count([Tally(name, "mail", "kept", "job", 1)])
        await store.observe([Observation(name, "kind", "id", "subject", now, "{}")], most=9)
        await store.put_setting(name, "kind", "name", b"1")
    await store.clear("")
    for name, left in (("", 0), ("other", 1)):
        assert len(await store.tallies(name)) == left
        assert len(await store.observations(name, "kind")) == left
        assert len(await store.observations(name, "kind", subject="subject")) == left
        assert len(await store.settings(name, "kind")) == left


@case
async def a_store_that_is_durable_keeps_its_jobs_and_keys(given: Given) -> None:
    if given.store.guarantees.durability == "none":
        return
    mail = mailer(given.app, Unique())
    first = await mail.enqueue(1)
    await given.app.close()
    async with App(store=given.open_store(clock=given.clock)) as again:
        assert await everything(again) == [first.job]
        assert (await mailer(again, Unique()).enqueue(1)).outcome is Outcome.KEPT
