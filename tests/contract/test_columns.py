"""Every field of a job is kept as it is, whichever others a new job has."""

import re
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onejob import App, Job, State
from onejob.core.job import Merging, Replay, Retention, Stand, alter
from onejob.core.manual import arrive
from onejob.core.step import Step
from onejob.stores import columns
from onejob.testing import Clock
from tests.contract.steps import mailer

KEY = bytes(range(32))
RARE: dict[str, Any] = {
    "timeout": 1.5,
    "attempt": 3,
    "started_at": timedelta(seconds=1),
    "finished_at": timedelta(seconds=2),
    "stand": Stand.SUCCESSOR,
    "within": 60.5,
    "holds_until": timedelta(minutes=1),
    "latest_at": timedelta(minutes=2),
    "version": -(2**63),
    "superseded_by": "another",
    "reason": "cancelled",
    "token": 7,
    "worker": "somebody",
    "lease_until": timedelta(minutes=3),
    "cancel_requested": True,
    "errors": b'[{"type":"ValueError"}]',
    "result": b"null",
    "progress": b'{"done":1}',
    "expires_at": timedelta(minutes=4),
    "partition": "",
    "replays": 2,
    "blockers": b'["a chain"]',
    "arrived": b"1",
    "parent_id": "a parent",
    "following": b"[1]",
    "trace": b'{"traceparent":"00-1-2-01"}',
    "chain_index": 1,
    "traits": 16,
    "holds": 31,
    "key": KEY,
    "revision": 12,
    "kept_until": timedelta(days=7),
    "replay": Replay(times=2),
    "retention": Retention(completed=1.5),
    "merging": Merging((("ids", "union"),), 7),
    "held_at": timedelta(seconds=3),
    "newer_policy": b'{"colour":"red"}',
    "newer_more": b'{"weights":[1,{"a":2}]}',
}

KEYED = {"stand"}
STATES = {"finished_at": State.COMPLETED, "stand": State.PENDING, "blockers": State.PENDING}


def test_the_line_that_contributing_shows_for_a_new_field_is_one() -> None:
    """The worked example of CONTRIBUTING stays true: the line makes a column that writes and reads a text."""
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    [line] = re.findall(r"^   (_\w+\(\"time_zone\".*\)),$", page, re.MULTILINE)

    column = eval(line, vars(columns))  # noqa: S307 - a line of our own

    assert column.name == "time_zone"
    assert column.read(column.write("Europe/Berlin")) == "Europe/Berlin"


def test_every_field_that_may_be_left_out_has_a_case() -> None:
    optional = {field.name for field in msgspec.structs.fields(Job) if not field.required}
    assert optional == RARE.keys()


@pytest.mark.parametrize("name", RARE)
async def test_a_job_is_kept_as_it_is(app: App, clock: Clock, name: str) -> None:
    mail = mailer(app)
    plain, ahead = (await mail.enqueue(1)).job, (await mail.enqueue(2)).job
    await app.delete(plain.id)
    await app.delete(ahead.id)
    value = clock() + RARE[name] if isinstance(RARE[name], timedelta) else RARE[name]
    job = alter(plain, state=STATES.get(name, plain.state), key=KEY if name in KEYED else None)
    job = msgspec.structs.replace(job, **{name: value})
    if name == "stand":  # it waits behind a holder
        await put(app, alter(ahead, key=KEY, stand=Stand.HOLDER))
    await put(app, job)
    assert await app._engine.store.get([job.id]) == [job]


async def put(app: App, job: Job) -> None:
    """Write a job as it is."""
    await app._engine.store.apply([Step(partial(arrive, job=job, mark=None), key=job.key)])
