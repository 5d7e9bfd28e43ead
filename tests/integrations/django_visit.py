"""What a Django project does with onejob: each function is one case; run by test_django.py."""

import asyncio
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import django
from django.db import DEFAULT_DB_ALIAS, connection, connections, transaction
from django.utils import timezone

sys.path.insert(0, str(Path.cwd()))
django.setup()

from django.contrib.auth.models import User  # noqa: E402 - after the setup
from django.core.management import call_command  # noqa: E402 - as above
from django.test import Client  # noqa: E402 - as above
from shop import tasks  # noqa: E402 - as above
from shop.jobs import app, send_invoice  # noqa: E402 - as above
from shop.models import Invoice, Order  # noqa: E402 - as above

from onejob.errors import ForeignConnection, InvalidCall, StoreError  # noqa: E402 - as above
from onejob.integrations.django import enqueue_on_commit  # noqa: E402 - as above

try:
    from django.tasks.exceptions import TaskResultDoesNotExist
except ImportError:
    from django_tasks.exceptions import TaskResultDoesNotExist


def raised(kind: type[Exception], act: Any) -> str:
    """Return the sentence of the error that an act raises."""
    try:
        act()
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was not raised")


def work() -> None:
    """Run all due jobs."""
    asyncio.run(app.worker(drain=True).run())


def a_view_enqueues_in_its_transaction() -> None:
    client = Client()
    answer = client.get("/orders?customer=7").json()
    assert app.job_sync(answer["job"]).arguments == {"order_id": answer["order"]}
    raised(RuntimeError, lambda: client.get("/orders?customer=8&fail=1"))
    assert len(app.jobs_sync()) == Order.objects.count() == 1

    work()
    assert Invoice.objects.count() == 1


def a_duplicate_inside_a_transaction_is_answered_truthfully() -> None:
    committed = send_invoice.enqueue_sync(1)
    with transaction.atomic():
        bound = send_invoice.options(connection=connection)
        assert bound.enqueue_sync(1).job.id == committed.job.id
        first, second = bound.enqueue_sync(2), bound.enqueue_sync(2)
        assert second.deduplicated
        assert second.job.id == first.job.id
        transaction.set_rollback(True)
    assert not send_invoice.enqueue_sync(2).deduplicated


def a_wrong_database_is_refused() -> None:
    settings = connections[DEFAULT_DB_ALIAS].settings_dict
    connections.databases["other"] = settings | {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": ":memory:",
        "OPTIONS": {},
    }
    connections.settings = connections.configure_settings(connections.databases)
    other = connections["other"]
    with transaction.atomic(using="other"):
        told = raised(ForeignConnection, lambda: send_invoice.options(connection=other).enqueue_sync(1))
    assert told.startswith("connection= ")
    told = raised(StoreError, lambda: send_invoice.options(connection=connection).enqueue_sync(1))
    assert "transaction.atomic()" in told
    assert app.jobs_sync() == []


def on_commit_enqueues_after_the_commit() -> None:
    with transaction.atomic():
        enqueue_on_commit(send_invoice, 1)
        assert app.jobs_sync() == []
    with transaction.atomic():
        enqueue_on_commit(send_invoice, 2)
        transaction.set_rollback(True)
    assert [job.arguments for job in app.jobs_sync()] == [{"order_id": 1}]


def the_tasks_framework_runs_on_onejob() -> None:
    later = timezone.now() + timedelta(hours=1)
    result, waiting = tasks.greet.enqueue("Ada"), tasks.greet.using(run_after=later).enqueue("Bob")
    counted = asyncio.run(tasks.count.aenqueue([1, 2]))
    assert result.status == "READY"
    job = app.job_sync(result.id)
    assert (job.queue, job.priority) == ("mail", 5)

    work()
    result.refresh()
    assert (result.return_value, result.attempts) == ("Hello Ada", 1)
    assert asyncio.run(tasks.count.aget_result(counted.id)).return_value == 4  # 1 + 2 and the attempt
    assert tasks.greet.get_result(waiting.id).status == "READY"
    raised(TaskResultDoesNotExist, lambda: tasks.greet.get_result("unknown"))
    raised(TaskResultDoesNotExist, lambda: tasks.greet.get_result(send_invoice.enqueue_sync(9).job.id))


def a_failed_task_says_why() -> None:
    failed = tasks.fail.enqueue()
    work()
    failed.refresh()
    assert failed.status == "READY"  # it will be retried
    assert failed.errors[0].exception_class is ValueError
    assert "no stock" in failed.errors[0].traceback


def arguments_that_do_not_fit_are_refused_at_once() -> None:
    for act in (
        tasks.greet.enqueue,
        lambda: tasks.greet.enqueue("Ada", 2),
        lambda: tasks.greet.enqueue("Ada", nme="Bob"),
        lambda: tasks.greet.enqueue(7),
        lambda: tasks.count.enqueue(["one"]),
        lambda: tasks.remind.enqueue("soon"),
        lambda: tasks.remind.enqueue(date(2026, 1, 2)),
    ):
        raised(InvalidCall, act)
    told = raised(InvalidCall, lambda: tasks.greet.enqueue(name=7))
    assert "name" in told
    told = raised(InvalidCall, lambda: tasks.remind.enqueue(day=date(2026, 1, 2)))
    assert told.startswith("shop.tasks.remind: argument 'day': ")
    raised(InvalidCall, lambda: enqueue_on_commit(send_invoice, "seven"))
    assert app.jobs_sync() == []

    reminder = tasks.remind.enqueue("2026-01-02", note="stock")
    work()
    reminder.refresh()
    assert reminder.return_value == "2026-01-02: stock"


def a_task_is_rolled_back_with_the_transaction() -> None:
    with transaction.atomic():
        tasks.greet.enqueue("Ada")
        transaction.set_rollback(True)
    assert app.jobs_sync() == []


def the_admin_leads_to_the_dashboard() -> None:
    User.objects.create_superuser("ada", password="secret")
    User.objects.create_user("bob", password="secret", is_staff=True)
    client = Client()
    assert client.login(username="ada", password="secret")
    assert b"/admin/onejob/dashboard/" in client.get("/admin/").content
    assert client.get("/admin/onejob/dashboard/").headers["Location"] == "/jobs/"
    assert client.login(username="bob", password="secret")
    assert client.get("/admin/onejob/dashboard/").status_code == 403


if __name__ == "__main__":
    call_command("migrate", verbosity=0, run_syncdb=True)
    for case in sys.argv[1:]:
        globals()[case]()
        for left in app.jobs_sync():
            asyncio.run(app.delete(left.id, force=True))
        Order.objects.all().delete()
    app.close_sync()
    connections.close_all()
