"""Policies are frozen values that refuse contradictions when they are made or registered."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import datetime, timedelta
from typing import Any

import pytest

from onejob import App, Replay, Retry, State, Unique, unique
from onejob.core.fluent import Fluent
from onejob.core.job import INCOMPLETE, TERMINAL, WAITING
from onejob.errors import InvalidCall, InvalidDuration, InvalidPolicy, OnejobError, UnknownQueue
from onejob.tasks.task import builder_of


@pytest.fixture
def app() -> App:
    return App("memory://")


def mail(to: int, text: str = "", *, seq: int = 0) -> str:
    return f"{to}: {text} {seq}"


# ── contradictions ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("choices", "advice"),
    [
        ({"by": "to", "key": "k"}, "write one of them"),
        ({"by": ("to",), "key": str}, "write one of them"),
        ({"key": ""}, r"write Unique\.singleton\(\)"),
        ({"key": 5}, "function"),
        ({"by": 5}, "argument"),
        ({"by": [5]}, "argument"),
        ({"family": ""}, "name the family, or leave it out"),
        (
            {"family": "mails", "merge": {"ids": "union"}, "on_conflict": "update"},
            "leave merge= or family= out",
        ),
        ({"until": "end"}, "write one of 'start', 'finish', 'failure', 'forever'"),
        ({"until": None}, "write one of 'start', 'finish', 'failure', 'forever'"),
        ({"states": []}, "leave unique out"),
        ({"states": ["running"]}, "write some of scheduled, available"),
        ({"states": "running"}, "write some of scheduled, available"),
        ({"states": ["active"], "until": "start"}, "write one of them"),
        ({"within": 0}, 'write within="5m"'),
        ({"on_conflict": "skip"}, "write one of 'keep', 'reject', 'update', 'replace'"),
        ({"on_conflict": None}, "write one of 'keep', 'reject', 'update', 'replace'"),
        ({"on_active": "wait"}, "write one of 'keep', 'reject', 'rerun', 'cancel'"),
        ({"on_active": "rerun", "until": "start"}, "leave it out"),
        ({"on_active": "cancel", "until": "start", "on_conflict": "update"}, "leave it out"),
        ({"merge": {"text": "union"}}, 'write on_conflict="update"'),
        ({"merge": {"text": "union"}, "on_conflict": "replace"}, 'write on_conflict="update"'),
        ({"merge": {"text": "union"}, "on_conflict": "update", "version": "seq"}, "write one of them"),
        ({"merge": {"text": "concat"}, "on_conflict": "update"}, "write one of union, append"),
        ({"merge": {"text": 5}, "on_conflict": "update"}, "or a function"),
        ({"merge": "union", "on_conflict": "update"}, "function"),
        ({"merge": {"text": "union"}, "on_conflict": "update", "merge_cap": 0}, "at least one"),
        ({"fields": ["args"], "on_conflict": "update"}, "choose from place, priority, queue, retry, time, t"),
        ({"fields": ["priority"]}, 'write on_conflict="update"'),
        ({"keep_schedule": True}, 'belongs to on_conflict="replace"'),
        ({"keep_schedule": True, "on_conflict": "update"}, 'belongs to on_conflict="replace"'),
        ({"wait": "5s"}, 'write on_conflict="update"'),
        ({"wait": "5s", "on_conflict": "replace"}, 'write on_conflict="update"'),
        ({"max_wait": "5s", "on_conflict": "update"}, "give wait= as well"),
        ({"wait": "5s", "max_wait": "1s", "on_conflict": "update"}, "make it at least as long"),
        ({"edges": "last"}, "write one of 'first', 'first\\+last'"),
        ({"edges": "first+last"}, r"write Unique\.throttle"),
        ({"edges": "first+last", "within": "1m"}, r"write Unique\.throttle"),
        (
            {"edges": "first+last", "within": "1m", "until": "forever", "on_conflict": "update"},
            "leave on_conf",
        ),
        ({"edges": "first+last", "within": "1m", "until": "forever", "on_active": "rerun"}, "leave on_conf"),
        ({"edges": "first+last", "within": "1m", "until": "forever", "bump": True}, "leave"),
        ({"edges": "first+last", "within": "1m", "until": "forever", "on_mismatch": "error"}, "leave"),
        ({"bump": True, "on_conflict": "update"}, "use fields="),
        ({"bump": True, "on_conflict": "reject"}, 'on_conflict="keep"'),
        ({"on_mismatch": "raise"}, "write one of 'ignore', 'error'"),
        ({"on_mismatch": "error", "on_conflict": "update"}, 'on_conflict="keep"'),
        ({"strength": "weak"}, "write one of 'strong', 'best-effort'"),
        ({"strength": None}, "write one of 'strong', 'best-effort'"),
    ],
    ids=str,
)
def test_a_contradiction_is_refused_with_what_to_write_instead(choices: dict[str, Any], advice: str) -> None:
    with pytest.raises(InvalidPolicy, match=advice) as caught:
        Unique(**choices)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize("name", ["within", "wait", "max_wait"])
@pytest.mark.parametrize("value", [-1, "-5m", timedelta(seconds=-1), "soon", float("nan"), True, "1 month"])
def test_a_duration_that_cannot_be_meant_is_refused(name: str, value: object) -> None:
    choices: dict[str, Any] = {"on_conflict": "update", "wait": "1s", name: value}
    with pytest.raises(InvalidDuration, match="write"):
        Unique(**choices)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Unique.throttle(-1),
        lambda: Unique.throttle(0),
        lambda: Unique.debounce(-1),
        lambda: Unique.debounce("5s", "1s"),
        lambda: Unique.until_executing(on_active="rerun"),
        lambda: Unique.throttle("1m", "first+last", on_conflict="reject"),
        lambda: Unique.singleton(key="k"),
        lambda: unique.by("to").key("k").policy,
        lambda: unique.until("start").while_active("rerun").policy,
        lambda: unique.within("-1s").policy,
    ],
)
def test_presets_and_the_fluent_form_refuse_the_same(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidPolicy):
        make()


def test_the_errors_share_a_root() -> None:
    assert issubclass(InvalidDuration, InvalidPolicy)
    assert issubclass(InvalidPolicy, OnejobError)
    assert issubclass(InvalidPolicy, ValueError)


def test_a_policy_is_a_frozen_value() -> None:
    policy = Unique(by="to", within="5m")
    assert policy == Unique(by=["to"], within=timedelta(minutes=5))
    with pytest.raises(FrozenInstanceError):
        policy.until = "start"  # type: ignore[misc]


# ── what a policy says ────────────────────────────────────────────────────────────────────────────


def test_until_names_the_states_that_hold() -> None:
    assert Unique(until="start").held_states == WAITING
    assert Unique().held_states == INCOMPLETE
    assert Unique(until="failure").held_states == INCOMPLETE | {State.COMPLETED}
    assert Unique(until="forever").held_states == INCOMPLETE | TERMINAL
    assert Unique(states=["active", State.COMPLETED]).held_states == {State.ACTIVE, State.COMPLETED}


@pytest.mark.parametrize(
    ("on_conflict", "while_active"),
    [("keep", "keep"), ("reject", "reject"), ("update", "rerun"), ("replace", "rerun")],
)
def test_on_active_follows_on_conflict(on_conflict: Any, while_active: str) -> None:
    assert Unique(on_conflict=on_conflict).while_active == while_active
    assert Unique(on_conflict=on_conflict, on_active="cancel").while_active == "cancel"


def test_presets_are_spelled_out() -> None:
    assert Unique.until_executing(by="to") == Unique(by="to", until="start")
    assert Unique.until_executed() == Unique()
    assert Unique.once() == Unique(until="failure")
    assert Unique.singleton() == Unique(by=())
    assert Unique.coalesce() == Unique(on_conflict="update", on_active="rerun")
    assert Unique.latest("to", "seq") == Unique(by="to", version="seq", on_conflict="update")
    assert Unique.debounce("5s", "30s") == Unique(on_conflict="update", wait="5s", max_wait="30s")
    assert Unique.throttle("1m") == Unique(until="forever", within="1m")
    assert Unique.throttle("1m", "first+last") == Unique(until="forever", within="1m", edges="first+last")


@pytest.mark.parametrize(
    ("fluent", "policy"),
    [
        (unique, Unique()),
        (
            unique.by("tenant_id").until("finish").within("5m").or_update(),
            Unique(by="tenant_id", until="finish", within="5m", on_conflict="update"),
        ),
        (unique.by(), Unique.singleton()),
        (unique.by("a", "b.c").per_queue(), Unique(by=("a", "b.c"), queue=True)),
        (unique.key("k").family("mails"), Unique(key="k", family="mails")),
        (unique.meta("tenant", "region"), Unique(meta=("tenant", "region"))),
        (unique.states("active", State.PENDING), Unique(states=["active", "pending"])),
        (unique.or_keep().bump(), Unique(bump=True)),
        (unique.or_keep().or_mismatch_error(), Unique(on_mismatch="error")),
        (unique.or_reject(), Unique(on_conflict="reject")),
        (unique.or_update("priority", "time"), Unique(on_conflict="update", fields=("priority", "time"))),
        (
            unique.or_replace(keep_schedule=True).while_active("keep"),
            Unique(on_conflict="replace", keep_schedule=True, on_active="keep"),
        ),
        (unique.by("to").version("seq").or_update(), Unique.latest("to", "seq")),
        (
            unique.or_update().merge({"text": "append"}, cap=5),
            Unique(on_conflict="update", merge={"text": "append"}, merge_cap=5),
        ),
        (unique.debounce("5s", "30s"), Unique.debounce("5s", "30s")),
        (unique.throttle("1m", "first+last"), Unique.throttle("1m", "first+last")),
        (unique.demand("strong").in_shadow(), Unique(strength="strong", shadow=True)),
    ],
)
def test_the_fluent_form_is_equal_in_power(fluent: Fluent, policy: Unique) -> None:
    assert fluent.policy == policy


def test_a_builder_is_not_changed_by_its_steps() -> None:
    base = unique.by("to")
    base.within("5m")
    assert base.policy == Unique(by="to")
    assert unique.policy == Unique()


def test_a_policy_describes_itself() -> None:
    text = Unique(by="to", queue=True, meta=["tenant"], within="5m", on_conflict="update").describe()
    for part in ("to", "queue", "meta.tenant", "5m", "update", "run once more"):
        assert part in text


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (Unique(), "a duplicate gets the existing job, also while it runs"),
        (Unique(on_conflict="reject"), "a duplicate is rejected, also while it runs"),
        (Unique.coalesce(), "a duplicate updates the waiting job, or makes a running one run once more"),
        (
            Unique(on_conflict="replace", on_active="cancel"),
            "a duplicate replaces the waiting job, or stops a running one and runs after it",
        ),
        (Unique.until_executing(), "a duplicate gets the existing job"),
        (Unique.debounce("5s"), "once more; it runs 5s after the last request"),
        (
            Unique.debounce("5s", "1m"),
            "it runs 5s after the last request, and at the latest 1m after the first",
        ),
        (Unique.throttle("10m", "first+last"), "; the last request of a window runs at its end"),
        (Unique.latest("to", "seq"), "once more; a request whose seq is not newer is stale"),
    ],
)
def test_a_policy_says_what_a_duplicate_does(policy: Unique, says: str) -> None:
    assert policy.describe().endswith(says)


def test_a_policy_of_several_tasks_names_its_family() -> None:
    assert Unique(by="to", family="mails").describe().startswith("unique by family 'mails' + to, held")


# ── registration ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (Unique(by="customer"), "customer"),
        (Unique(by=["to", "customer.id"]), "customer"),
        (Unique(by=""), "''"),
        (Unique.latest(by="to", version="revision"), "revision"),
        (Unique.coalesce(merge={"words": "union"}), "words"),
        (Unique(key=lambda customer: customer), "customer"),
        (unique.by("customer"), "customer"),
    ],
)
def test_a_policy_that_names_what_the_task_does_not_have_is_refused(
    app: App, policy: Unique | Fluent, named: str
) -> None:
    with pytest.raises(InvalidPolicy, match=named) as caught:
        app.task(unique=policy)(mail)
    assert "to, text, seq" in str(caught.value)  # what it could have named
    assert app.tasks == {}

    task = app.task(mail)
    with pytest.raises(InvalidPolicy, match=named):
        task.options(unique=policy)


def test_a_policy_that_names_arguments_and_paths_is_accepted(app: App) -> None:
    policy = Unique(by=["to", "text.id"], version="seq", on_conflict="update")
    assert builder_of(app.task(unique=policy)(mail)).policy == policy


@pytest.mark.parametrize("policy", ["coalesce", 5, Unique])
def test_what_is_no_policy_is_refused(app: App, policy: Any) -> None:
    with pytest.raises(InvalidPolicy, match="Unique"):
        app.task(unique=policy)(mail)
    with pytest.raises(InvalidPolicy, match="Unique"):
        app.task(name="other")(mail).options(unique=policy)


def test_true_means_the_default_policy(app: App) -> None:
    assert builder_of(app.task(unique=True)(mail)).policy == Unique()
    assert builder_of(app.task(unique=False, name="other")(mail)).policy is None


def test_two_tasks_of_one_name_are_refused(app: App) -> None:
    app.task(mail)
    with pytest.raises(InvalidPolicy, match="another name"):
        app.task(mail)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"delay": "1s", "run_at": datetime.now().astimezone()}, InvalidCall),
        ({"run_at": datetime(2026, 1, 1)}, InvalidCall),  # noqa: DTZ001 - a naive one is refused
        ({"delay": -1}, InvalidDuration),
        ({"delay": "soon"}, InvalidDuration),
        ({"timeout": -1}, InvalidDuration),
        ({"key": ""}, InvalidCall),
        ({"key": 5}, InvalidCall),
        ({"priority": 2**31}, InvalidCall),
        ({"priority": True}, InvalidCall),
        ({"priority": "high"}, InvalidCall),
        ({"meta": {"when": object()}}, InvalidCall),
        ({"queue": "nowhere"}, UnknownQueue),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(
    app: App, options: dict[str, Any], error: type[OnejobError]
) -> None:
    task = app.task(unique=True)(mail)
    with pytest.raises(error) as caught:
        task.options(**options).enqueue_sync(1)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retry(attempts=0),
        lambda: Retry(attempts=True),
        lambda: Retry(base=-1),
        lambda: Retry(cap="-1s"),
        lambda: Retry(factor=0.5),
        lambda: Retry(jitter=2),
        lambda: Retry(jitter=-0.1),
    ],
)
def test_a_retry_that_cannot_be_meant_is_refused(make: Callable[[], Retry]) -> None:
    with pytest.raises(InvalidPolicy):
        make()


def test_a_replay_waits_longer_each_time_up_to_its_cap() -> None:
    replay = Replay(times=5, after="1h", factor=3, cap="1d")
    hours = [replay.delay(replays).total_seconds() / 3600 for replays in range(5)]
    assert hours == [1, 3, 9, 24, 24]
    assert Replay(after="1d", factor=1000, cap="365d").delay(10**6) == timedelta(days=365)


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: Replay(times=0), "leave replay= out"),
        (lambda: Replay(times=True), "1 or more"),
        (lambda: Replay(times=1.5), "1 or more"),  # type: ignore[arg-type]
        (lambda: Replay(after="-1h"), "negative|duration"),
        (lambda: Replay(factor=0.5), "factor"),
        (lambda: Replay(factor=float("nan")), "factor"),
        (lambda: Replay(after="2h", cap="1h"), "less than after="),
    ],
)
def test_a_replay_that_cannot_be_meant_is_refused(make: Callable[[], Replay], advice: str) -> None:
    with pytest.raises(OnejobError, match=advice):
        make()


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: App("mysql://host/db"), "sqlite:///"),
        (lambda: App("sqlite:///"), "sqlite:///jobs.db"),
        (lambda: App("sqlite:///jobs.db?mode=fast"), "synchronous"),
        (lambda: App("memory://", secret="pepper"), "leave it out"),
        (lambda: App("memory://", retention={"finished": "1d"}), "completed"),
        (lambda: App("memory://", retention={"completed": -1}), "negative"),
        (lambda: App("memory://", retention={"active": "1d"}), "completed"),
        (lambda: App("memory://", admission_timeout=-1), "negative"),
        (lambda: App("memory://").queue("narrow", concurrency=0), "at least one"),
        (lambda: App("memory://").worker(concurrency=0), "at least one"),
        (lambda: App("memory://").worker(queues=["nowhere"]), r"app\.queue"),
        (lambda: App("memory://").task_named("nobody"), "nobody"),
    ],
)
def test_an_app_that_cannot_be_meant_is_refused(make: Callable[[], object], advice: str) -> None:
    with pytest.raises(OnejobError, match=advice):
        make()


@pytest.mark.parametrize(
    "preset", [Unique.until_executing, Unique.until_executed, Unique.coalesce, Unique.once]
)
def test_a_preset_without_a_duration_takes_by_first(preset: Any) -> None:
    assert preset("tenant") == preset(by="tenant")
    assert preset(["tenant", "order.id"], shadow=True).by == ("tenant", "order.id")
    assert preset(key="k").by is None


def test_a_retry_first_waits_its_base() -> None:
    retry = Retry(base="20s", factor=3, cap="10m", jitter=0)
    assert [retry.delay(failures).total_seconds() for failures in (1, 2, 3, 4, 5)] == [20, 60, 180, 540, 600]


def test_a_retry_first_waits_its_base_also_if_that_is_longer_than_the_cap() -> None:
    retry = Retry(base="10m", jitter=0)  # the cap is five minutes
    assert [retry.delay(failures).total_seconds() for failures in (1, 2, 3)] == [600, 600, 600]


def test_a_typo_in_a_preset_is_an_error_for_type_checkers() -> None:
    """The ignored lines are errors for mypy, which reports an ignore that is not needed."""
    with pytest.raises(TypeError, match="bye"):
        Unique.coalesce(bye="tenant")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="untill"):
        Unique.throttle("5m", untill="start")  # type: ignore[call-arg]
    with pytest.raises(InvalidPolicy, match="done"):
        Unique.once("tenant", on_active="done")  # type: ignore[arg-type]
