"""Mistakes of newcomers: each gets one sentence that says what to write instead."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import onejob
from onejob import App, Retry, Snooze, State, Task, Tasks, Unique, chain, current, group, unique
from onejob.errors import (
    AdmissionBusy,
    InvalidCall,
    InvalidPolicy,
    InvalidSchedule,
    OnejobError,
    UnencodableArgument,
    UnknownJob,
)
from onejob.testing import drain, drain_sync


@pytest.fixture
def app() -> App:
    return App("memory://")


@pytest.fixture
def mail(app: App) -> Task[..., int]:
    @app.task
    async def mail(to: int = 0) -> int:
        return to

    return cast("Task[..., int]", mail)


# ── URLs ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:PASSWORD%zz@h/d",
        "postgresql://u:PASSWORD x@h/d",
        "postgresql://u:PASSWORD@[::1/d",
        "postgres ql://u:PASSWORD@h/d",
        "postgresql+psycopg://u:PASSWORD@h/d",
        "postgresql://u:x/PASSWORD@h/d",
        "postgresql://u:PASSWORD/x@h/d",
        "postgresql://u:x@PASSWORD@h/d",
        "postgresql://u:PASSWORD?x@h/d",
        "postgresql://u:PASSWORD?connect_timeout=1@h/d",
        "postgresql://u:PASSWORD#x@h/d",
        "postgresql://u:x\0PASSWORD@h/d",
        "postgresql://u:x\tPASSWORD@h/d",
        "postgresql://h/d?user=u&password=x&PASSWORD",
        "postgresql://h/d?password=x&PASSWORD=y",
        "postgresql://h/d?listen=postgresql://u:x/PASSWORD@h/d",
        "postgresql://h/d?listen=postgresql://u:x&PASSWORD@h/d",
        "redis://u:PASSWORD/x@h",
        "redis://u:PASSWORD#x@h",
        "redis://u:PASSWORD?x@h",
        "redis://u:x@PASSWORD@h",
        "redis://h/0?password=PASSWORD\ud800",
        "redis://u:PASSWORD@[::1",
        "redis://u:PASSWORD@h:70000",
        "redis://u:PASSWORD@h/0?bukets=4",
        "mysql://u:PASSWORD@h/d",
        "u:PASSWORD@h",
    ],
)
def test_a_url_that_cannot_be_read_does_not_show_its_password(url: str) -> None:
    with pytest.raises(InvalidCall) as refusal:
        App(url)
    assert "PASSWORD" not in repr(refusal.value)
    assert refusal.value.__cause__ is None


# ── names ─────────────────────────────────────────────────────────────────────────────────────────

UNPRINTABLE = ["a\0b", "\ud800", "a\nb", "\x1b[31m"]


@pytest.mark.parametrize("name", UNPRINTABLE)
def test_a_name_is_printable_text(app: App, mail: Task[..., int], name: str) -> None:
    places: list[Callable[[], object]] = [
        lambda: app.task(name=name)(lambda: None),
        lambda: app.task(queue=name)(lambda: None),
        lambda: app.queue(name),
        lambda: App("memory://", namespace=name),
        lambda: app.worker(name=name),
    ]
    for place in places:
        with pytest.raises(InvalidPolicy, match="is printable text"):
            place()
    with pytest.raises(InvalidSchedule, match="is printable text"):
        app.cron("* * * * *", name=name)(mail)


@pytest.mark.parametrize("name", UNPRINTABLE)
@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "redis"])
async def test_a_strange_id_is_unknown(
    kind: str, name: str, request: pytest.FixtureRequest, tmp_path: Any
) -> None:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'jobs.db'}"}
    async with App(urls.get(kind) or request.getfixturevalue(f"{kind}_url")) as app:

        @app.task
        async def work() -> None: ...

        calls: list[Callable[[], Any]] = [
            lambda: app.job(name),
            lambda: app.cancel(name),
            lambda: app.delete(name),
            lambda: app.run_now(name),
            lambda: app.run_now([name, name]),
            lambda: app.reschedule(name, delay="5m"),
            lambda: app.dead.replay(name),
            lambda: app.chain(name).status(),
            lambda: work.options(after=[name]).enqueue(),
        ]
        for call in calls:
            with pytest.raises(UnknownJob):
                await call()
        assert await app.dead.replay_many([name]) == [None]
        lists: list[Callable[..., Any]] = [app.jobs, app.dead.list]
        for listing in lists:
            for filter_ in ("task", "queue"):
                with pytest.raises(InvalidCall, match="write printable text"):
                    await listing(**{filter_: name})
        with pytest.raises(InvalidCall, match="write printable text"):
            await app.jobs(before=name)
        with pytest.raises(InvalidCall, match="write printable text"):
            await app.activity.advice(task=name)
        assert await app.jobs(limit=10**30, offset=10**30) == []
        limited: list[Callable[..., Any]] = [
            app.holds,
            app.chains,
            app.dead.list,
            app.activity.absorbed,
            app.activity.releases,
        ]
        for listing in limited:
            assert await listing(limit=10**30) == []
            with pytest.raises(InvalidCall, match="write a whole number that is not negative"):
                await listing(limit=-1)

        job = await app.cancel((await work.enqueue()).job.id, reason="caf\udce9")
        assert job.reason == r"caf\udce9"


async def test_the_message_of_an_error_cannot_forge_a_line_of_the_log(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(retry=Retry.never())
    async def fail() -> None:
        raise ValueError("first\n2026-01-01 ERROR forged \x1b[31mred")

    await fail.enqueue()
    with caplog.at_level(logging.DEBUG, "onejob"):
        await drain(app)
    [message] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert message.endswith(r"ValueError: first\n2026-01-01 ERROR forged \x1b[31mred")


# ── declarations ──────────────────────────────────────────────────────────────────────────────────


def mail_to(sender: int, to: int) -> int:
    return sender + to


def declare_cron_below_task(app: App) -> None:
    app.task(app.cron("* * * * *")(lambda: None))


def declare_limits(app: App) -> None:
    app.queue("q", concurrency=1)
    app.queue("q", concurrency=2)


def declare_method(app: App) -> None:
    class Shop:
        @app.task
        def sell(self, what: str) -> None: ...


DECLARATIONS: dict[str, tuple[Callable[[App], object], str]] = {
    "a name instead of a function": (lambda app: app.task("mail"), "write name='mail'"),  # type: ignore[call-overload]
    "a retention without states": (lambda _: App("memory://", retention="7d"), "names no states: write"),  # type: ignore[arg-type]
    "cron below task": (declare_cron_below_task, "write @app.cron above @app.task"),
    "a method": (declare_method, "sell is a method, whose object no worker has"),
    "two windows": (lambda _: Unique.throttle("10m", within="5m"), "leave within= out"),  # type: ignore[call-arg]
    "no name": (lambda app: app.task(partial(mail_to, 1)), "has no name: write name=…"),
    "no retry": (lambda app: app.task(retry=False)(len), r"retry=False: write Retry.never\(\)"),  # type: ignore[call-overload]
    "a class without a signature": (
        lambda app: app.task(int),
        "int has no signature: write a function that calls it",
    ),
    "retries of an app": (lambda _: App("memory://", retry=3), r"retry=3: write Retry\(attempts="),  # type: ignore[arg-type]
    "a name for a policy": (
        lambda app: app.task(unique="to")(lambda to: to),  # type: ignore[call-overload]
        r"unique='to' is no policy: write Unique\(by='to'\)",
    ),
    "a preset that is not called": (
        lambda app: app.task(unique=Unique.coalesce)(lambda to: to),  # type: ignore[call-overload]
        r"is no policy: write Unique.coalesce\(…\)",
    ),
    "a class for a policy": (
        lambda app: app.task(unique=Unique)(lambda to: to),  # type: ignore[call-overload]
        r"is no policy: write Unique\(…\)",
    ),
    "a rate without a span": (lambda app: app.queue("r", rate=10), 'rate=10 is not a rate: write "100/1m"'),  # type: ignore[arg-type]
    "a unit for a span": (lambda app: app.queue("r", rate="10/m"), "rate='10/m' is not a rate: write"),
    "two limits": (
        declare_limits,
        "declared twice with different limits",
    ),
}


@pytest.mark.parametrize("mistake", DECLARATIONS)
def test_a_mistake_in_a_declaration_is_named(app: App, mistake: str) -> None:
    declare, says = DECLARATIONS[mistake]
    with pytest.raises(InvalidPolicy, match=says):
        declare(app)


def test_a_queue_may_be_declared_again_with_the_same_limits(app: App) -> None:
    app.task(queue="q")(lambda: None)
    app.queue("q", concurrency=1)
    app.queue("q", concurrency=1)


def test_a_cron_line_is_asked_for_where_it_is_missing(app: App) -> None:
    for line in ((), (lambda: None,), (5,)):
        with pytest.raises(InvalidSchedule, match="write"):
            app.cron(*line)
        with pytest.raises(InvalidSchedule, match="write"):
            Tasks().cron(*line)


def test_a_schedule_is_added_with_a_call(app: App, mail: Task[..., int]) -> None:
    for call in (mail, "mail"):
        with pytest.raises(InvalidSchedule, match=r"is no call: write task.call\(…\)"):
            app.schedules.add_sync("digest", call, "* * * * *")  # type: ignore[arg-type]


def test_tasks_that_are_included_twice_are_named(app: App) -> None:
    tasks = Tasks()
    tasks.task(name="once")(lambda: None)
    app.include(tasks)
    with pytest.raises(InvalidPolicy, match=r"once is included already: call app.include\(…\) once"):
        app.include(tasks)


def test_a_url_is_text() -> None:
    for url in (Path("jobs.db"), None):
        with pytest.raises(InvalidCall, match="write text, such as 'sqlite:///jobs"):
            App(url)  # type: ignore[arg-type]


# ── calls ─────────────────────────────────────────────────────────────────────────────────────────

CALLS: dict[str, tuple[Callable[[Task[..., int]], object], str]] = {
    "a list of calls in a group": (
        lambda mail: group([mail.call("Ada")]),  # type: ignore[arg-type]
        "Calls come one by one, not as a list",
    ),
    "tasks in a chain": (lambda mail: chain(mail, mail), "<Task mail> is no call: write task.call"),  # type: ignore[arg-type]
    "a key that is not unique": (lambda mail: mail.options(unique=False, key="k"), "contradict each other"),
    "an expiry before the delay": (
        lambda mail: mail.options(delay="1h", expires_in="10m").enqueue_sync(),
        "mail would expire before its run time",
    ),
    "an expiry before the time": (
        lambda mail: mail.options(
            run_at=datetime.now(UTC) + timedelta(hours=2), expires_at=datetime.now(UTC) + timedelta(hours=1)
        ).enqueue_sync(),
        "mail would expire before its run time",
    ),
    "an expiry before the delay in a chain": (
        lambda mail: chain(mail.call(1), mail.options(delay="1h", expires_in="10m").step()).enqueue_sync(),
        "mail would expire before its run time",
    ),
}


@pytest.mark.parametrize("mistake", CALLS)
def test_a_mistake_in_a_call_is_named(mail: Task[..., int], mistake: str) -> None:
    call, says = CALLS[mistake]
    with pytest.raises(InvalidCall, match=says):
        call(mail)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({1: 2}, r"The arguments: to has the key 1, which is not text: write '1'"),
        (object(), "The arguments: to cannot be written as JSON: object has no JSON form"),
        (float("inf"), "The arguments: to is inf, which JSON cannot express"),
        ([datetime(2026, 1, 1)], r"The arguments: to\[0\] has no time zone: write an aware datetime"),  # noqa: DTZ001 - the naive one is the case
    ],
)
def test_an_argument_that_cannot_be_stored_is_named(mail: Task[..., int], value: object, says: str) -> None:
    with pytest.raises(UnencodableArgument, match=says):
        mail.enqueue_sync(value)


async def test_an_argument_of_the_wrong_type_is_refused_and_named(app: App, mail: Task[..., int]) -> None:
    says = "^The arguments do not fit mail: to: Expected `int`, got `str`.$"
    with pytest.raises(InvalidCall, match=says):
        await mail.enqueue("seven")
    with pytest.raises(InvalidCall, match=says):
        mail.enqueue_sync("seven")
    with pytest.raises(InvalidCall, match=says):
        await app.enqueue_many([mail.call(1), mail.call("seven")])
    assert await app.jobs() == []


async def test_a_stored_argument_of_the_wrong_type_is_named_and_not_retried(app: App) -> None:
    @app.task(check=False)
    async def mail(to: int) -> None: ...

    asked = await mail.enqueue("seven")  # type: ignore[arg-type]
    await drain(app)
    job = await app.job(asked.job.id)
    assert (job.state, job.attempt) == (State.DISCARDED, 1)
    assert job.failures[0]["message"] == "The arguments do not fit mail: to: Expected `int`, got `str`."


def test_one_call_is_no_list_of_calls(app: App, mail: Task[..., int]) -> None:
    says = r"<Call mail> is one call: write enqueue_many\(\[…\]\), or enqueue it"
    with pytest.raises(InvalidCall, match=says):
        app.enqueue_many_sync(mail.call(1))  # type: ignore[arg-type]
    with pytest.raises(InvalidCall, match=says):
        app.enqueue_many(mail.call(1))  # type: ignore[arg-type, unused-coroutine]


def test_pages_of_jobs_have_whole_numbers(app: App) -> None:
    for page in ({"limit": "10"}, {"limit": -1}, {"offset": -1}, {"offset": None}):
        with pytest.raises(InvalidCall, match="write a whole number"):
            app.jobs_sync(**page)


def test_a_job_may_be_named_by_itself_its_admission_or_its_id(app: App, mail: Task[..., int]) -> None:
    admission = mail.enqueue_sync(1)
    for name in (admission, admission.job, admission.job.id, admission.job.id[:23]):
        assert app.job_sync(name).id == admission.job.id
        assert app.why_sync(name).job == admission.job
    assert [job.id for job in app.jobs_sync(task=mail)] == [admission.job.id]
    assert app.cancel_sync(admission).state == State.CANCELLED
    assert app.delete_sync(admission.job).id == admission.job.id
    for call in (app.job_sync, app.cancel_sync, app.delete_sync, app.dead.replay_sync):
        with pytest.raises(InvalidCall, match="5 is no job: give a job, what enqueue returned, or an id"):
            call(5)  # type: ignore[arg-type]


async def test_dead_letters_are_replayed_by_their_short_ids(app: App) -> None:
    @app.task(retry=Retry.never())
    async def fail(number: int) -> None:
        raise ValueError(number)

    dead = [await fail.enqueue(number) for number in (1, 2)]
    await drain(app)
    answers = await app.dead.replay_many([dead[0].job.id[:23], dead[1], "nobody"])
    assert [answer is not None for answer in answers] == [True, True, False]


def test_half_a_key_is_no_key(app: App, mail: Task[..., int]) -> None:
    key = mail.options(key="k").enqueue_sync(1).key
    assert key is not None
    assert len(app.jobs_sync(key=key)) == 1
    for call in (lambda: app.jobs_sync(key=key[:12]), lambda: app.release_sync(key[:12])):
        with pytest.raises(InvalidCall, match="is not a key: give its 64 hexadecimal digits"):
            call()


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("job_id", "write current\\(\\).job.id"),
        ("retries", "write current\\(\\).attempt"),
        ("retry", "write raise onejob.RetryLater"),
        ("attemp", "write attempt\\b"),
    ],
)
def test_what_a_running_job_has_elsewhere_is_answered(app: App, word: str, instead: str) -> None:
    @app.task(retry=Retry.never())
    def ask() -> None:
        getattr(current(), word)

    ask.enqueue_sync()
    with pytest.raises(AttributeError, match=instead):
        drain_sync(app, raises=True)


async def test_a_result_that_cannot_be_stored_says_why(app: App) -> None:
    async def later() -> None: ...

    coroutine = later()
    forgotten = app.task(name="forgotten", retry=Retry.never())(lambda: coroutine)
    returned = app.task(name="returned", retry=Retry.never())(lambda: Snooze("5s"))
    jobs = [(await task.enqueue()).job for task in (forgotten, returned)]
    await drain(app)
    coroutine.close()
    messages = [(await app.job(job)).failures[0]["message"] for job in jobs]
    assert "it is a coroutine that was not awaited: write async def and await" in messages[0]
    assert "Snooze has no JSON form: raise it" in messages[1]


async def test_a_blocking_call_on_a_loop_is_refused_by_the_name_that_was_written(app: App) -> None:
    for call, name in (
        (app.dead.list_sync, "app.dead.list"),
        (app.queues.list_sync, "app.queues.list"),
        (lambda: drain_sync(app), "drain"),
    ):
        with pytest.raises(InvalidCall, match=rf"^{name}_sync would block .* write await {name}\("):
            call()


def test_an_enqueue_beside_an_open_transaction_of_the_same_process_says_how_to_join_it(
    tmp_path: Path,
) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db", admission_timeout="50ms")
    work = app.task(name="work")(lambda: None)
    app.maintenance.migrate()
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            AdmissionBusy, match=r"in a transaction of this process: .*options\(connection=…\)"
        ):
            work.enqueue_sync()
    app.close_sync()


@pytest.mark.usefixtures("mail")
def test_resuming_a_queue_that_is_not_there_is_refused(app: App) -> None:
    with pytest.raises(OnejobError, match="No queue is named 'mial'"):
        app.queues.resume_sync("mial")
    app.queues.pause_sync("default")
    app.queues.resume_sync("default")


# ── words of other systems ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("delay", "write mail.enqueue_sync"),
        ("send", "write mail.enqueue_sync"),
        ("defer", "write mail.enqueue_sync"),
        ("apply_async", "write mail.options"),
        ("s", r"write mail.call\("),
        ("delay_on_commit", r"write mail.options\(connection=…\)"),
        ("schedule", "write mail.options"),
        ("kiq", "write await mail.enqueue"),
        ("map", r"write app.enqueue_many_sync\(\[mail.call"),
        ("retry", r"raise onejob.RetryLater\("),
        ("perform_async", "write mail.enqueue_sync"),
        ("call_local", r"write mail\(…\), which calls the function"),
        ("enque", "write enqueue$"),
    ],
)
def test_a_method_of_another_system_is_answered(mail: Task[..., int], word: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=instead):
        getattr(mail, word)
    assert word not in dir(mail)
    assert not hasattr(mail, word)


@pytest.mark.parametrize(
    ("option", "value", "instead"),
    [
        ("delay", "5s", "delay=…"),
        ("countdown", 5, "delay=…"),
        ("eta", None, "run_at=…"),
        ("max_retries", 3, r"retry=Retry\(attempts=…\)"),
    ],
)
def test_an_option_beside_the_arguments_is_answered(
    mail: Task[..., int], option: str, value: object, instead: str
) -> None:
    says = rf"unexpected keyword argument '{option}': write \.options\({instead}\)\.enqueue\(…\)\."
    with pytest.raises(InvalidCall, match=says):
        mail.enqueue_sync(7, **{option: value})


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("countdown", "mail.options has no countdown=: write delay=…"),
        ("max_retries", r"mail.options has no max_retries=: write retry=Retry\(attempts=…\)"),
        ("colour", "mail.options has no colour=: leave it out"),
        ("dealy", "mail.options has no dealy=: write delay=…"),
        ("at", "mail.options has no at=: write run_at=…"),
        ("_defer_by", "mail.options has no _defer_by=: write delay=…"),
    ],
)
def test_an_option_that_does_not_exist_is_answered(mail: Task[..., int], option: str, says: str) -> None:
    change: Any = mail.options
    with pytest.raises(InvalidCall, match=says):
        change(**{option: 3})


def test_a_misspelled_argument_is_named_with_those_there_are(mail: Task[..., int]) -> None:
    with pytest.raises(InvalidCall, match=r"\(it has no too, but to\)"):
        mail.enqueue_sync(too=1)


def test_the_arguments_of_the_key_may_come_first() -> None:
    assert Unique("tenant") == Unique(by="tenant")


def test_what_is_printed_of_an_app_and_a_policy_is_short_and_has_no_password() -> None:
    app = App("postgresql://ada:PASSWORD@db/shop?password=PASSWORD", namespace="eu")
    assert repr(app) == "<App postgresql://db/shop namespace='eu'>"
    assert repr(Unique.coalesce("x", within="5m")) == (
        "Unique(by=('x',), within=datetime.timedelta(seconds=300), on_conflict='update', on_active='rerun')"
    )
    assert repr(unique.by("x").until("start")) == "unique(by=('x',), until='start')"


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("shared_task", r"tasks = onejob.Tasks\(\), @tasks.task, and app.include\(tasks\)"),
        ("task", "and @app.task"),
        ("Celery", r"app = onejob.App\("),
        ("crontab", "@app.cron"),
        ("get_current_job", r"onejob.current\(\)"),
        ("AsyncResult", r"app.job_sync\(id\)"),
        ("chord", r"onejob.batch\(…, on_success=…\)"),
    ],
)
def test_a_name_that_modules_of_other_systems_have_is_answered(name: str, instead: str) -> None:
    with pytest.raises(ImportError, match=f"onejob has no {name}: write .*{instead}"):
        exec(f"from onejob import {name}")  # noqa: S102 - a constant
    assert not hasattr(onejob, "nothing")


def test_a_task_that_is_declared_as_a_job_is_answered(app: App) -> None:
    with pytest.raises(InvalidCall, match=r"^app.job\(…\) reads a job: write @app.task above send\.$"):

        @app.job  # type: ignore[arg-type]
        def send() -> None: ...


async def test_a_policy_that_is_raised_is_answered(app: App) -> None:
    @app.task(retry=Retry.never())
    def send() -> None:
        raise Retry(attempts=3)  # type: ignore[misc]

    job = (await send.enqueue()).job
    await drain(app)
    [failure] = (await app.job(job.id)).failures
    assert failure["type"] == "TypeError"
    assert 'to try again later, write raise onejob.RetryLater("30s")' in failure["message"]
    assert "RetryLater" in failure["traceback"]


def test_a_call_is_checked_without_being_enqueued(app: App, mail: Task[..., int]) -> None:
    mail.call(7).check()
    for call in (mail.call("seven"), mail.call(7, 8), mail.options(queue="mial").call(7)):
        with pytest.raises(OnejobError):
            call.check()
    assert app.jobs_sync() == []


def test_an_argument_may_be_named_like_an_option(app: App) -> None:
    @app.task
    def wait(delay: int, eta: str) -> None: ...

    assert wait.enqueue_sync(delay=5, eta="soon").job.arguments == {"delay": 5, "eta": "soon"}


def test_an_option_of_a_task_elsewhere_is_answered(app: App) -> None:
    declare: Any = app.task
    with pytest.raises(InvalidPolicy, match=r"no option max_retries=: write retry=Retry\(attempts=…\)"):
        declare(max_retries=3)(lambda: None)
    with pytest.raises(InvalidPolicy, match="no option job_timeout=: write timeout=…"):
        declare(job_timeout=60)(lambda: None)
    with pytest.raises(
        InvalidPolicy, match=r"no option job_id=: write task\.options\(key=…\)\.enqueue\(…\) for"
    ):
        declare(job_id="a")(lambda: None)
    with pytest.raises(InvalidPolicy, match=r"no option prioritty=: write priority=…\.$"):
        declare(prioritty=3)(lambda: None)
    with pytest.raises(InvalidPolicy, match=r"no option concurrency=: write app.queue\(name, concurr"):
        declare(concurrency=3)(lambda: None)
    with pytest.raises(InvalidPolicy, match=r"no option colour=: leave it out\.$"):
        declare(colour=3)(lambda: None)


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("enqueue", r"write task.enqueue\(…\)"),
        ("enqueue_sync", r"write task.enqueue_sync\(…\)"),
        ("send_task", r"write app.task_named\(name\).enqueue_sync\(…\)"),
        ("autodiscover_tasks", "--import"),
        ("enqueue_job", r"write task.enqueue\(…\)"),
        ("schedule", "write @app.cron"),
        ("stat", "write stats$"),
    ],
)
def test_a_method_that_apps_of_other_systems_have_is_answered(app: App, word: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=instead):
        getattr(app, word)
    assert not hasattr(app, word)


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("id", "write admission.job.id"),
        ("get", r"write admission.result_sync\("),
        ("status", r"write app.job_sync\(admission.job.id\).state"),
        ("outcom", "write outcome$"),
    ],
)
def test_an_attribute_that_answers_of_other_systems_have_is_answered(
    mail: Task[..., int], word: str, instead: str
) -> None:
    admission = mail.enqueue_sync()
    with pytest.raises(AttributeError, match=instead):
        getattr(admission, word)
    assert not hasattr(admission, word)


@pytest.mark.parametrize(
    ("make", "says"),
    [  # they are errors for type checkers, too
        (lambda: Retry(max_retries=3), r"^Retry has no max_retries=: write attempts=…"),  # type: ignore[call-arg]
        (lambda: Retry(countdown=60), r"^Retry has no countdown=: write raise onejob.RetryLater\(\"30s\"\)"),  # type: ignore[call-arg]
        (lambda: Retry(bse=3), r"^Retry has no bse=: write base=…\.$"),  # type: ignore[call-arg]
        (lambda: Unique(period=3), r"^Unique has no period=: write within=…\.$"),  # type: ignore[call-arg]
        (lambda: Unique.once(lock_key="x"), r"^Unique has no lock_key=: write key=…\.$"),  # type: ignore[call-arg]
        (lambda: App(broker="x"), r"^App has no broker=: write App\(\"redis://…\"\)\.$"),  # type: ignore[call-arg]
        (lambda: App("memory://", namspace="x"), r"^App has no namspace=: write namespace=…\.$"),  # type: ignore[call-arg]
        (lambda: App("memory://", colour="x"), r"^App has no colour=: leave it out\.$"),  # type: ignore[call-arg]
        (lambda: Unique("a", "b"), "positional arguments"),  # type: ignore[call-arg]
    ],
)
def test_an_argument_of_a_class_that_does_not_exist_is_answered(
    make: Callable[[], object], says: str
) -> None:
    with pytest.raises(TypeError, match=says):
        make()
