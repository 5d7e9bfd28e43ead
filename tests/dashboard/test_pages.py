"""Every page answers, says what is there, and does what its forms promise."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from urllib.parse import parse_qsl

import msgspec
import pytest

from onejob import (
    AbsorbedRequest,
    App,
    Job,
    Percentiles,
    State,
    Times,
    Timings,
    Unique,
    WorkerStatus,
    current,
)
from onejob.engine.presence import report
from onejob.http import dashboard
from onejob.http.pages.charts import Lane, draw_area, draw_lanes, draw_sparks, nice
from onejob.http.pages.live import events
from onejob.http.pages.samples import MOST_LINKED, Point, count, digest, saved_words
from onejob.http.pages.text import limits, span
from tests.dashboard.shop import HUGE, PATHS, Client, fill, make_shop


@pytest.mark.parametrize("path", PATHS)
async def test_a_page_of_an_empty_store_says_what_will_appear(client: Client, path: str) -> None:
    html = await client.text(path)
    assert "<h1>" in html
    assert "None" not in re.sub(r"<[^>]*>", "", html).replace("-&gt; None", "")


@pytest.mark.parametrize("path", PATHS)
async def test_a_page_of_a_full_store_answers(full: Client, path: str) -> None:
    html = await full.text(path)
    assert "Traceback" not in html


async def test_the_overview_counts(app: App, full: Client) -> None:
    stats = await app.stats()
    absorbed = sum(n for outcomes in stats.absorbed.values() for n in outcomes.values())
    assert absorbed == 10
    html = await full.text("/")
    assert f'<dd class="figure">{absorbed}</dd>' in html
    assert f'<dd class="figure">{stats.waiting}</dd>' in html


async def test_the_overview_accounts_for_every_request(app: App, full: Client) -> None:
    stats = await app.stats()
    jobs = sum(stats.by_state.values())
    rerun = sum(outcomes.get("rerun", 0) for outcomes in stats.absorbed.values())
    found = figures(await full.text("/"))
    received = jobs + 10 - rerun
    assert [int(found[name]) for name in ("Received", "Created", "Absorbed", "Lost")] == [
        *(received, received - 10, 10, 0)
    ]


def figures(html: str) -> dict[str, str]:
    """Return the cards of a page: label and figure."""
    return dict(re.findall(r'<dt>([^<]*)</dt><dd class="figure">([^<]*)</dd>', html))


def cards(html: str) -> dict[str, str]:
    """Return the cards of a page: label and meaning."""
    return dict(
        re.findall(r'<dt>([^<]*)</dt><dd class="figure">[^<]*</dd><dd class="meaning">([^<]*)</dd>', html)
    )


async def test_the_overview_answers_what_an_operator_asks_first(app: App, full: Client) -> None:
    await app.tasks["send_invoice"].enqueue(order=8)
    html = await full.text("/")
    assert cards(html)["Running"] == "on 0 live workers"
    assert re.fullmatch(r"in queue (mail|sync)", cards(html)["Oldest due"])
    assert float(figures(html)["Throughput"]) > 0  # fill() has run jobs
    async with app.worker(name="press-1", queues=["mail"]):
        while not await app.activity.workers():  # noqa: ASYNC110 - a task of the worker writes its row
            await asyncio.sleep(0.01)
        site = Client(dashboard(app))
        html = await site.text("/")
        assert cards(html)["Running"] == "on 1 live worker"
        assert '<span>Workers</span><span class="count">1</span>' in html


async def test_absorbed_requests_are_weighed_by_the_runs_of_their_task(app: App) -> None:
    sample = await count(app)
    run = Percentiles(count=9, p50=90.0, p95=95.0, p99=99.0)
    timings = {"1h": Timings({"embed": Times(Percentiles(), run)}, {})}
    absorbed = {"embed": {"kept": 3, "rerun": 5}, "fetch": {"kept": 7}}  # fetch has not run lately
    stats = replace(sample.stats, timings=timings, absorbed=absorbed)
    assert saved_words(stats) == " · 4\u202fm 30\u202fs of runs saved"
    assert saved_words(sample.stats) == ""


async def test_overview_and_dedup_count_a_rerun_once(app: App) -> None:
    runs, ends = asyncio.Event(), asyncio.Event()

    @app.task(unique=Unique.coalesce(by="number"))
    async def reindex(number: int) -> None:  # noqa: ARG001 - the key
        runs.set()
        await ends.wait()

    await reindex.enqueue(1)
    working = asyncio.create_task(app.worker(drain=True).run())
    await runs.wait()
    outcomes = [(await reindex.enqueue(1)).outcome for _ in range(2)]
    assert outcomes == ["rerun", "kept"]  # both are absorbed, and the first creates a job
    ends.set()
    await working
    client = Client(dashboard(app))
    overview, dedup = await client.text("/"), await client.text("/dedup")
    assert [figures(overview)[name] for name in ("Received", "Created", "Absorbed")] == ["3", "1", "2"]
    assert [figures(dedup)[name] for name in ("Requests", "Created", "Absorbed")] == ["3", "1", "2"]
    for page in (overview, dedup):
        assert "67 % of requests" in page  # two of three were absorbed, on both pages
        assert '<span>Jobs</span><span class="count">2</span>' in page


async def test_the_overview_says_first_what_is_not_well(app: App, client: Client) -> None:
    assert 'role="alert"' not in await client.text("/")
    worker = WorkerStatus(
        name="gone", host="x", process=1, version="1", queues={}, tasks=[], running=[], concurrency=1,
        started_at=datetime.now(UTC) - timedelta(minutes=9), seen_at=datetime.now(UTC) - timedelta(minutes=5),
    )  # fmt: skip
    before = digest(None, await count(app))
    await report(app._engine, worker)
    assert digest(None, await count(app)) != before  # open pages show it
    html = await Client(dashboard(app)).text("/")
    assert '<div class="problem" role="alert"><p><strong>Worker gone has been silent for 5m' in html


async def test_a_lost_job_leads_to_the_doctor(app: App) -> None:
    sample = await count(app)
    site = dashboard(app)
    lost = replace(sample, stats=replace(sample.stats, lost=2))
    site.state.dashboard.sampler._sample = lost
    site.state.dashboard.sampler._good_until = monotonic() + 60
    html = await Client(site).text("/")
    assert "<strong>Lost: 2.</strong>" in html
    assert 'href="/system?examine=1"' in html


@pytest.mark.parametrize("path", ["/", "/queues"])
async def test_queues_show_how_late_jobs_are(full: Client, path: str) -> None:
    html = await full.text(path)
    for label in ("oldest due", "wait p95", "run p95"):
        shown = re.findall(rf'data-label="{label}">([^<]*)<', html)
        assert len(shown) == 3
        assert any(re.fullmatch(r"\S+\s?m?s", text) for text in shown), shown


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_search_finds_by_state_task_queue_and_argument(app: App, full: Client) -> None:
    html = await full.text("/jobs?q=task:sync_customer args.customer_id:2")
    found = await app.jobs(task="sync_customer")
    assert [job.id for job in found if f"job-{job.id}" in html] == [
        job.id for job in found if job.arguments["customer_id"] == 2
    ]
    assert "No job matches" in await full.text("/jobs?q=state:completed task:sync_customer")


async def test_integers_of_any_size_are_exact(app: App, full: Client) -> None:
    assert f"number = {HUGE}" in await full.text(f"/jobs?q=args.number:{HUGE}")
    [job] = await app.jobs(task="send_invoice")
    assert str(HUGE) in await full.text(f"/jobs/{job.id}")


@pytest.mark.parametrize(
    ("search", "sentence"),
    [
        ("state:nonsense", "is no state: write one of scheduled"),
        ("colour:red", "There is no field"),
        ("task:", "has no value"),
        ('note:"open', "quotation mark is not closed"),
        ("key:abc", "64 hexadecimal digits"),
        ("task:a task:b", "appears twice"),
        ("is:odd", "write is: and one of holder"),
        ("x" * 1001, "longer than 1000 characters"),
    ],
)
async def test_a_search_that_cannot_be_read_gets_a_sentence(
    client: Client, search: str, sentence: str
) -> None:
    response = await client.http.get("/jobs", params={"q": search})
    assert response.status_code == 400
    assert sentence in response.text


async def test_pages_follow_each_other_without_gap_or_repetition(app: App, client: Client) -> None:
    await app.enqueue_many([app.tasks["fetch"].call(number) for number in range(120)])
    expected = [job.id for job in await app.jobs(limit=200)]
    path: str | None = "/jobs?q=task:fetch"
    seen: list[str] = []
    while path is not None:
        html = await client.text(path)
        seen += re.findall(r'id="job-([0-9a-f-]+)"', html)
        link = re.search(r'rel="next" href="([^"]+)"', html)
        path = link[1].replace("&amp;", "&") if link else None
    assert seen == expected


async def test_a_cursor_of_another_search_gets_a_sentence(app: App, client: Client) -> None:
    await app.enqueue_many([app.tasks["fetch"].call(number) for number in range(60)])
    link = re.search(r"before=([^\"&]+)", await client.text("/jobs?q=task:fetch"))
    assert link is not None
    response = await client.get(f"/jobs?q=task:parse&before={link[1]}")
    assert response.status_code == 400
    assert "belongs to another search" in response.text


async def test_a_search_over_arguments_is_bounded_and_goes_on(
    app: App, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onejob.app.listing.FIRST_TESTED", 200)
    monkeypatch.setattr("onejob.http.pages.jobs.SEARCHES_FOR", 0.0)
    await app.enqueue_many([app.tasks["fetch"].call(number) for number in range(500)])
    html = await client.text("/jobs?q=args.number:3")
    assert "None of the 200 newest jobs matches" in html
    link = re.search(r'rel="next" href="([^"]+)"', html)
    assert link is not None
    monkeypatch.setattr("onejob.http.pages.jobs.SEARCHES_ON_FOR", 60.0)
    html = await client.text(
        link[1].replace("&amp;", "&")
    )  # the reader asked for more, so it may take longer
    assert "number = 3</code>" in html


async def test_many_jobs_are_cancelled_after_a_question_with_their_number(app: App, full: Client) -> None:
    question = await full.text("/jobs/confirm?act=cancel&q=task:sync_customer")
    assert "Cancel 4 jobs?" in question
    html = await full.post(
        "/jobs/act", "/jobs/confirm?act=cancel&q=task:sync_customer", act="cancel", q="task:sync_customer"
    )
    assert "4 jobs cancelled." in html
    assert {job.state for job in await app.jobs(task="sync_customer")} == {State.CANCELLED}


async def test_an_action_says_how_many_jobs_do_not_allow_it(app: App, full: Client) -> None:
    question = await full.text("/jobs/confirm?act=replay&q=task:send_invoice")
    assert "None of the 1 job found can be replayed" in question
    assert 'action="/jobs/act"' not in question
    html = await full.post("/jobs/act", "/queues", act="replay", q="task:send_invoice")
    assert "0 jobs replayed. 1 job did not allow it." in html
    jobs = await app.jobs(limit=100)
    ended = sum(job.is_terminal for job in jobs)
    question = await full.text("/jobs/confirm?act=cancel&q=")
    assert f"Cancel {len(jobs) - ended} jobs?" in question
    assert f"{ended} other jobs cannot be cancelled, and are left alone." in question


async def test_a_chip_changes_the_state_of_the_search_and_nothing_else(full: Client) -> None:
    html = await full.text('/jobs?q=queue:sync state:active "July invoice"')
    links = {
        query.partition("state%3A")[2]: query
        for query in re.findall(r'class="chip" href="/jobs\?q=([^"]*)"', html)
    }
    assert links["completed"] == "queue%3Async%20%22July%20invoice%22%20state%3Acompleted"
    assert links[""] == "queue%3Async%20%22July%20invoice%22"  # the one that is chosen, to leave it out


async def test_selected_jobs_are_deleted(app: App, full: Client) -> None:
    first, second = await app.jobs(state="discarded")
    page = f"/jobs/confirm?act=delete&id={first.id}"
    assert "Delete 1 job?" in await full.text(page)
    await full.post("/jobs/act", page, act="delete", id=first.id)
    assert [job.id for job in await app.jobs(state="discarded")] == [second.id]


# ── one job ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_dead_letter_shows_its_traceback_and_is_replayed_with_other_arguments(
    app: App, full: Client
) -> None:
    job = (await app.jobs(state="discarded"))[0]
    html = await full.text(f"/jobs/{job.id}")
    assert "It failed for good" in html
    assert "Traceback (most recent call last)" in html
    edited = f'{{"entry": "{job.arguments["entry"]}", "model": "large"}}'
    assert "is replayed" in await full.post(f"/jobs/{job.id}/replay", f"/jobs/{job.id}", args=edited)
    replayed = await app.job(job.id)
    assert (replayed.state, replayed.arguments["model"]) == (State.AVAILABLE, "large")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [("{", "are not JSON"), ("[]", "are not a JSON object"), ('{"entry": "other"}', "would change")],
)
async def test_a_replay_that_is_not_allowed_gets_a_sentence(
    app: App, full: Client, args: str, sentence: str
) -> None:
    job = (await app.jobs(state="discarded"))[0]
    html = await full.post(f"/jobs/{job.id}/replay", f"/jobs/{job.id}", args=args)
    assert sentence in html or (sentence == "would change" and 'class="note bad"' in html)
    assert (await app.job(job.id)).state is State.DISCARDED


async def test_a_replay_whose_key_is_held_names_the_reason(app: App, full: Client) -> None:
    job = (await app.jobs(state="discarded"))[0]
    await app.tasks["embed"].options(delay="1h").enqueue(job.arguments["entry"])
    page = f"/jobs/{job.id}"
    assert "holds the key, so a replay now would be absorbed" in await full.text(page)
    assert "Not replayed:" in await full.post(f"{page}/replay", page)


@pytest.mark.parametrize("choice", ["cancel", "release"])
async def test_a_replay_may_take_the_key_from_its_holder_with_a_reason(
    app: App, full: Client, choice: str
) -> None:
    job = (await app.jobs(state="discarded"))[0]
    holder = (await app.tasks["embed"].options(delay="1h").enqueue(job.arguments["entry"])).job
    page = f"/jobs/{job.id}"
    assert f'value="{choice}"' in await full.text(page)
    act = f"{page}/replay"
    form = {"conflict": choice, "holder": holder.id}
    assert "give a reason" in await full.post(act, page, **form)
    wrong = await full.post(act, page, conflict=choice, holder="another", reason="newer text")
    assert 'class="note bad"' in wrong
    invalid = await full.post(act, page, **form, reason="newer text", args='{"entry": "other"}')
    assert 'class="note bad"' in invalid
    assert app.is_holding(await app.job(holder.id))  # nothing was taken by a request that was refused
    assert (await app.job(job.id)).state is State.DISCARDED
    assert "is replayed" in await full.post(act, page, **form, reason="newer text")
    assert app.is_holding(await app.job(job.id))
    after = await app.job(holder.id)
    assert after.state is (State.CANCELLED if choice == "cancel" else State.SCHEDULED)
    if choice == "cancel":
        assert after.reason == "newer text"
    else:
        assert [entry.reason for entry in await app.activity.releases()] == ["newer text"]


async def test_a_waiting_job_is_cancelled_and_an_ended_one_deleted(app: App, full: Client) -> None:
    job = (await app.jobs(task="sync_customer"))[0]
    assert "The job is cancelled." in await full.post(f"/jobs/{job.id}/cancel", f"/jobs/{job.id}")
    assert "is deleted" in await full.post(f"/jobs/{job.id}/delete", f"/jobs/{job.id}")
    assert (await full.get(f"/jobs/{job.id}")).status_code == 404


async def test_the_beginning_of_an_id_leads_to_its_job(app: App, full: Client) -> None:
    [job] = await app.jobs(task="send_invoice")
    response = await full.get(f"/jobs/{job.id[:30]}")
    assert response.headers["location"] == f"/jobs/{job.id}"
    shown = f"{job.id[:4]}…{job.id[-8:-4]}"
    assert (await full.get(f"/jobs/{shown}")).headers["location"] == f"/jobs/{job.id}"
    assert f"/jobs/{job.id}" in await full.text(f"/jobs?q={shown}")
    assert f"/jobs/{job.id}" not in await full.text(f"/jobs?q={job.id[:4]}…zzzz")
    ambiguous = await full.get(f"/jobs/{job.id[:4]}")
    assert ambiguous.status_code == 404
    assert "is the beginning of several ids" in ambiguous.text
    assert (await full.get("/jobs/ffff")).status_code == 404


async def test_a_job_of_another_namespace_is_unknown() -> None:
    async with make_shop("memory://", namespace="a") as app, App(store=app._engine.store, namespace="b") as b:
        admission = await app.tasks["fetch"].enqueue(1)
        response = await Client(dashboard(b)).get(f"/jobs/{admission.job.id}")
        assert response.status_code == 404
        assert "other namespaces are unknown" in response.text


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────


async def test_dedup_lists_held_keys_and_counts_by_task(app: App, full: Client) -> None:
    html = await full.text("/dedup")
    held = [job for job in await app.holds() if job.is_holder]
    assert all(f"hold-{job.id}" in html for job in held)
    assert (
        "<code>customer_id = 3</code>" in html
    )  # what the key is made of, without the rest of the arguments
    assert "rev = " not in html
    counts = await full.text("/dedup?by=tasks")
    assert "sync_customer" in counts
    assert (await full.get("/dedup?by=colour")).status_code == 400


async def test_a_key_is_released_only_with_a_reason_from_the_job_that_was_shown(
    app: App, full: Client
) -> None:
    [job] = await app.jobs(task="send_invoice")
    assert job.key is not None
    page, act = f"/keys/{job.key.hex()}", f"/keys/{job.key.hex()}/release"
    html = await full.text(page)
    assert "A new request would <strong>not start a job</strong>: the completed job" in html
    assert "holds this key" in html
    assert "give a reason" in await full.post(act, page, job=job.id, reason=" ")
    assert "holds the key now" in await full.post(act, page, job="another", reason="wrong customer")
    assert app.is_holding(await app.job(job.id))
    assert "The key is free" in await full.post(act, page, job=job.id, reason="wrong customer")
    assert not app.is_holding(await app.job(job.id))
    assert "wrong customer" in await full.text(page)
    [entry] = await app.activity.releases()
    assert (entry.job, entry.reason, entry.key) == (job.id, "wrong customer", job.key.hex())


async def test_running_and_busy_holders_are_listed_however_many_keys_are_held(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = (await app.tasks["embed"].enqueue("one")).job
    calls = [app.tasks["sync_customer"].call(number) for number in (*range(9), 0)]
    busy = (await app.enqueue_many(calls))[-1]  # absorbed by the first
    assert busy.deduplicated
    now = (await count(app)).at
    described = dict.fromkeys(("name", "host", "version"), "x") | dict.fromkeys(
        ("started_at", "seen_at"), now
    )
    worker = WorkerStatus(**described, process=1, queues={}, tasks=[], running=[running.id], concurrency=1)  # type: ignore[arg-type]
    await report(app._engine, worker)
    monkeypatch.setattr("onejob.http.pages.samples.MOST_HOLDS", 5)
    html = await Client(dashboard(app)).text("/dedup")
    assert html.index(f"hold-{busy.job.id}") < html.index(f"hold-{running.id}")  # by absorbed requests
    assert html.count('id="hold-') == 7


async def test_a_run_is_forced_with_the_newest_arguments(app: App, full: Client) -> None:
    [job] = await app.jobs(task="send_invoice")
    assert job.key is not None
    page = f"/keys/{job.key.hex()}"
    assert "is admitted, and holds the key" in await full.post(f"{page}/force", page)
    newest, before = await app.jobs(task="send_invoice")
    assert (newest.arguments, newest.key, before.id) == (job.arguments, job.key, job.id)
    assert app.is_holding(newest)
    assert not app.is_holding(before)
    await app.tasks["send_invoice"].options(key="by phone").enqueue(order=9)
    other = (await app.jobs(task="send_invoice"))[0]
    assert other.key is not None
    page = f"/keys/{other.key.hex()}"  # whose key its task would not make
    assert f'action="{page}/force"' not in await full.text(page)
    assert "Not started:" in await full.post(f"{page}/force", page)


async def test_absorbed_requests_are_listed_with_their_callers(app: App, full: Client) -> None:
    entries = await app.activity.absorbed()
    assert sum(entry.times for entry in entries) == 10
    listed, callers = await full.text("/dedup?by=log"), await full.text("/dedup?by=callers")
    for entry in entries:
        assert entry.line in listed
        assert entry.line in callers
        assert f"/jobs/{entry.job}" in listed
        page = await full.text(f"/keys/{entry.key}")
        assert entry.line in page
        assert f'title="{entry.request}"' in page
        ticks = [one for one in entries if one.key == entry.key]
        of_jobs = page.partition('id="log-title"')[0]  # from the counters, which outlive the log
        caller = f"{ticks[0].line} · {ticks[0].host}:{ticks[0].process}"
        assert f'title="{caller}"><code>{ticks[0].line.rpartition("/")[2]}</code>' in of_jobs
        assert page.count('<line class="tick') == len(ticks)
        assert page.count('<line class="tick many"') == sum(one.times > 1 for one in ticks)


async def test_advice_is_shown_with_its_figures_and_other_policies(app: App, client: Client) -> None:
    assert "No request was recorded in the last hour" in await client.text("/dedup?by=advice")
    fetch = app.tasks["fetch"]
    await app.enqueue_many([fetch.call(number % 20) for number in range(60)])
    await app.tasks["parse"].enqueue(1)
    html = await Client(dashboard(app)).text("/dedup?by=advice")
    assert "67 % of 60 requests of fetch in the last " in html
    assert '<code data-copy="Unique.coalesce()">Unique.coalesce()</code>' in html
    assert '<p class="accent">40 of 60 requests</p>' in html
    assert "<td><code>Unique.until_executed()</code></td>" in html
    assert "fewer than 50, so there is no advice yet" in html
    assert html.index("Advice for fetch") < html.index("Nothing to advise") < html.index("task:parse")


async def test_advice_is_computed_at_most_once_a_minute(app: App, client: Client) -> None:
    empty = await client.text("/dedup?by=advice")
    await app.enqueue_many([app.tasks["fetch"].call(1) for _ in range(60)])
    assert "No request was recorded" in empty
    assert "No request was recorded" in await client.text("/dedup?by=advice")


async def test_workers_are_listed_while_they_run(app: App, full: Client) -> None:
    assert "No worker has reported" in await full.text("/workers")
    async with app.worker(name="press-1", queues=["mail"]):
        while not await app.activity.workers():  # noqa: ASYNC110 - a task of the worker writes its row
            await asyncio.sleep(0.01)
        html = await full.text("/workers")
        assert "press-1" in html
        assert "alive" in html
        assert "mail:" in html
    assert "No worker has reported" in await full.text("/workers")


@pytest.mark.parametrize(("key", "status"), [("ab" * 32, 404), ("zz", 400), ("ab", 400)])
async def test_a_key_that_was_never_held_gets_a_sentence(full: Client, key: str, status: int) -> None:
    response = await full.get(f"/keys/{key}")
    assert response.status_code == status
    assert "key" in response.text


# ── why ───────────────────────────────────────────────────────────────────────────────────────────


async def test_why_explains_a_call_without_making_it(app: App, full: Client) -> None:
    before = (await app.stats()).by_queue
    html = await full.text("/why?q=send_invoice order=7 note=August")
    assert "It would <strong>be kept</strong>" in html
    assert "--force" in html
    assert "holds the key. <strong>The hold does not end by itself.</strong>" in html
    assert "It would <strong>start a new job</strong>" in await full.text("/why?q=send_invoice order=8")
    assert (await app.stats()).by_queue == before


async def test_why_explains_a_job_and_a_key(app: App, full: Client) -> None:
    [job] = await app.jobs(task="send_invoice")
    assert job.key is not None
    assert "It completed" in await full.text(f"/why?q={job.id}")
    assert (await full.get(f"/why?q={job.key.hex()}")).headers["location"] == f"/keys/{job.key.hex()}"
    paused = (await app.jobs(task="sync_customer"))[0]
    assert "queue &#39;sync&#39; is paused" in await full.text(f"/why?q={paused.id}")


async def test_why_compares_two_jobs(app: App, full: Client) -> None:
    one, other = (await app.jobs(task="sync_customer"))[:2]
    html = await full.text(f"/why?a={one.id}&b={other.id}")
    assert "Their keys differ first in args.customer_id." in html
    assert "leaves out customer_id would have made them one" in html  # rev differs too, outside the key


@pytest.mark.parametrize("question", ["nothing order=1", "send_invoice 7", 'send_invoice note="', "ffffffff"])
async def test_a_question_that_cannot_be_answered_gets_a_sentence(full: Client, question: str) -> None:
    response = await full.http.get("/why", params={"q": question})
    assert response.status_code in {400, 404}
    assert 'class="problem"' in response.text


# ── queues, cron, chains, dead letters, system ────────────────────────────────────────────────────


async def test_a_queue_is_paused_and_resumed(app: App, full: Client) -> None:
    assert "Queue sync runs again." in await full.post("/queues", "/queues", queue="sync", act="resume")
    assert await app.queues.paused() == frozenset()
    assert "is paused" in await full.post("/queues", "/queues", queue="mail", act="pause")
    assert await app.queues.paused() == {"mail"}
    html = await full.post("/queues", "/queues", queue="nonsense", act="pause")
    assert 'class="note bad"' in html


async def test_a_schedule_is_paused_and_resumed(app: App, full: Client) -> None:
    assert "is paused" in await full.post("/cron", "/cron", schedule="nightly", act="pause")
    assert (await app.schedules.get("nightly")).paused
    assert "runs again" in await full.post("/cron", "/cron", schedule="nightly", act="resume")
    assert not (await app.schedules.get("nightly")).paused


async def test_a_chain_is_drawn_with_its_blockers_and_cancelled(app: App, full: Client) -> None:
    waiting = next(job for job in await app.jobs(task="parse") if job.is_blocked)
    html = await full.text(f"/chains/{waiting.chain_id}")
    assert html.count('<rect class="box"') == 2
    assert html.count('<path class="edge"') == 1
    page = f"/chains/{waiting.chain_id}"
    assert "The chain is cancelled" in await full.post(f"{page}/cancel", page)
    assert (await full.get("/chains/ffff")).status_code == 404


async def test_dead_letters_are_grouped_and_replayed(app: App, full: Client) -> None:
    html = await full.text("/dead")
    assert "<strong>ValueError</strong>" in html
    assert "two has no text and 1 other message" in html
    html = await full.post("/dead/replay", "/dead", task="embed", error="ValueError")
    assert "2 replayed." in html
    assert (await app.stats()).dead == 0


async def test_the_system_page_shows_what_the_doctor_finds(app: App, full: Client) -> None:
    assert "uniqueness among" in await full.text("/system")
    html = await full.text("/system?examine=1")
    for finding in await app.doctor():
        assert finding.message.split("'")[0][:30].split("<")[0] in html


async def test_a_large_store_is_examined_only_if_that_is_asked_for(
    full: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = 'hx-get="/system?examine=1"'
    assert asks in await full.text("/system")
    monkeypatch.setattr("onejob.http.pages.system.EXAMINED_UNASKED", 3)
    html = await full.text("/system")
    assert asks not in html
    assert "it is done when you ask for it" in html


async def test_an_unknown_page_gets_a_sentence(client: Client) -> None:
    response = await client.get("/nonsense")
    assert response.status_code == 404
    assert "There is no such page." in response.text


async def test_a_store_that_is_gone_gets_a_sentence(
    app: App, full: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onejob.errors import StoreUnavailable

    async def gone(*_: object, **__: object) -> None:
        raise StoreUnavailable("The store cannot be reached.")

    monkeypatch.setattr(app._engine, "find", gone)
    response = await full.get("/jobs?q=state:active")
    assert response.status_code == 503
    assert "The store cannot be reached." in response.text
    assert "works again as soon as the store answers" in response.text


async def test_a_mounted_dashboard_links_to_itself() -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    async with make_shop("memory://") as app:
        await fill(app)
        client = Client(Starlette(routes=[Mount("/ops", dashboard(app))]))
        for path in PATHS:
            html = await client.text(f"/ops{path}")
            links = re.findall(r'(?:href|src|action)="(/[^"]*)"', html)
            assert links
            assert [link for link in links if not link.startswith("/ops/")] == []


# ── charts ────────────────────────────────────────────────────────────────────────────────────────


def points(*depths: int, apart: timedelta = timedelta(seconds=5)) -> list[Point]:
    begin = datetime(2026, 11, 18, 3, tzinfo=UTC)
    return [Point(begin + apart * place, 5, 0, 0, {"mail": one}) for place, one in enumerate(depths)]


def test_the_lines_of_a_chart_have_their_own_values() -> None:
    quiet = draw_area(points(0, 0))
    assert quiet is not None
    assert [label for _, label in quiet.lines] == ["0.5", "1"]
    assert [label for _, _, label in quiet.times] == ["03:00:00", "03:00:01", "03:00:03", "03:00:05"]
    hour = draw_area(points(0, 0, apart=timedelta(hours=1)))
    assert hour is not None
    assert [label for _, _, label in hour.times] == ["03:00", "03:20", "03:40", "04:00"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 ms"), (0.0001, "<1 ms"), (0.41, "410 ms"), (3.72, "3.7 s"), (67, "1 m 07 s")],
)
def test_a_duration_is_never_rounded_to_nothing(seconds: float, shown: str) -> None:
    assert span(seconds).replace("\u202f", " ") == shown


@pytest.mark.parametrize("value", [1, 1.2, 9.9, 10.0, 61, 99.5, 1024, 123_456])
def test_a_chart_is_at_least_half_full(value: float) -> None:
    assert value <= nice(value) <= 1.6 * value + 1


async def test_a_hold_is_drawn_for_as_long_as_it_lasts(app: App, full: Client) -> None:
    now, hour = datetime.now(UTC), timedelta(hours=1)
    [job] = await app.jobs(task="send_invoice")
    key = job.key.hex() if job.key else ""
    [entry, *_] = await app.activity.absorbed(key=key)
    job = msgspec.structs.replace(job, created_at=now - 2 * hour, finished_at=now - hour)
    entry = msgspec.structs.replace(entry, at=now - hour / 2)

    def lane(entries: list[AbsorbedRequest], holder: Job | None) -> Lane:
        drawn = draw_lanes([job], {}, entries, holder)
        assert drawn is not None
        return drawn.lanes[0]

    held = lane([entry], job)
    assert held.held == pytest.approx(held.width, abs=1)  # an hour of work, and an hour until now
    assert held.ticks[0][0] == pytest.approx(held.x + held.width * 1.5, abs=1)
    assert lane([], None).held == 0
    assert lane([entry], None).held == pytest.approx(held.width / 2, abs=1)  # at least until then
    assert '<rect class="held"' in await full.text(f"/keys/{key}")


def test_a_queue_has_a_line_of_how_many_jobs_waited() -> None:
    assert draw_sparks(points(3)) == {}
    spark = draw_sparks(points(0, 4, 2))["mail"]
    assert (spark.lowest, spark.highest) == (0, 4)
    assert spark.line == "0,19 48,1 96,10"


async def test_queues_draw_their_depths_with_the_numbers_in_a_table(app: App) -> None:
    site = dashboard(app)
    site.state.dashboard.sampler.points.extend(points(0, 4))
    html = await Client(site).text("/queues")
    assert html.count('<svg class="spark"') == 1
    assert "Between 0 and 4 jobs waited" in html
    assert "<td>2026-11-18 03:00:05 UTC</td>" in html
    [mail] = [one for one in await app.queues.list() if one.queue.name == "mail"]
    assert limits(mail) == "100 per 1m · at most 50 waiting"


# ── live updates ──────────────────────────────────────────────────────────────────────────────────


class Request:
    """As much of a request as the stream needs."""

    def __init__(self, site: object, **query: str) -> None:
        self.app = site
        self.headers = {name: value for name, value in query.items() if name == "last-event-id"}
        self.query_params = query

    async def is_disconnected(self) -> bool:
        return False


async def stream_of(client: Client, path: str) -> dict[str, str]:
    """Return what a page says about itself when it connects."""
    found = re.search(r'hx-sse:connect="/live\?([^"]*)"', await client.text(path))
    assert found is not None
    return dict(parse_qsl(found[1].replace("&amp;", "&")))


async def test_live_updates_say_when_something_changed(app: App) -> None:
    site = dashboard(app)
    client = Client(site)
    await site.state.dashboard.sampler.fingerprint()
    stream = events(Request(site, **await stream_of(client, "/jobs")))  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        assert "live" in await anext(stream)  # nothing has changed since the page was read
        await app.tasks["fetch"].enqueue(1)
        assert "event: changed" in await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_page_that_was_away_learns_that_something_changed(app: App) -> None:
    site = dashboard(app)
    sampler = site.state.dashboard.sampler
    seen = await sampler.fingerprint()
    await app.tasks["fetch"].enqueue(1)
    sampler.forget()
    sampler._looked_until = 0.0
    for query in ({"seen": seen}, {"seen": "older", "last-event-id": seen}, {}):
        stream = events(Request(site, **query))  # type: ignore[arg-type]
        assert "event: changed" in await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
    current = await sampler.fingerprint()
    stream = events(Request(site, seen="older", **{"last-event-id": current}))  # type: ignore[arg-type]
    assert "live" in await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]


async def test_the_beginning_and_the_death_of_a_worker_are_events(app: App) -> None:
    sample = await count(app)
    described = dict.fromkeys(("name", "host", "version"), "x") | dict.fromkeys(
        ("started_at", "seen_at"), sample.at
    )
    dead = WorkerStatus(**described, process=1, queues={}, tasks=[], running=[], concurrency=1)  # type: ignore[arg-type]
    alive = msgspec.structs.replace(dead, alive=True)
    assert len({digest([], replace(sample, workers=some)) for some in ([], [alive], [dead])}) == 3


async def test_the_page_of_a_job_follows_its_progress(app: App) -> None:
    runs, steps = asyncio.Event(), asyncio.Event()

    @app.task
    async def crawl() -> None:
        runs.set()
        await steps.wait()
        current().progress(0.5, "half")
        await asyncio.Event().wait()

    job = (await crawl.enqueue()).job
    await app.tasks["fetch"].options(delay="1h").enqueue(1)  # so that it is not the newest
    async with app.worker(grace="0s"):
        await runs.wait()
        site = dashboard(app)
        await site.state.dashboard.sampler.fingerprint()
        page = await stream_of(Client(site), f"/jobs/{job.id}")
        assert page["job"] == job.id
        async with asyncio.timeout(30):
            stream = events(Request(site, **page))  # type: ignore[arg-type]
            steps.set()
            heard = [await anext(stream)]
            while "changed" not in heard[-1]:
                heard.append(await anext(stream))
        await stream.aclose()  # type: ignore[attr-defined]
        assert "50 %" in await Client(site).text(f"/jobs/{job.id}")


async def test_the_stream_of_an_unknown_job_goes_on(app: App) -> None:
    site = dashboard(app)
    stream = events(Request(site, job="ffff"))  # type: ignore[arg-type]
    assert "changed" in await anext(stream)
    assert "live" in await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]


async def test_many_open_pages_are_one_reader_of_the_store(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    site = dashboard(app)
    asked = []
    listing = App.jobs

    async def noted(self: App, **options: object) -> object:
        asked.append(options)
        return await listing(self, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(App, "jobs", noted)
    streams = [events(Request(site)) for _ in range(20)]  # type: ignore[arg-type]
    await asyncio.gather(*(anext(stream) for stream in streams))
    assert [one["limit"] for one in asked] == [1, MOST_LINKED]  # the fingerprint, and the sample
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]
