"""Transactions of the caller: for a store that has the protocol `Transactions`."""

from __future__ import annotations

from contextlib import suppress

from onejob.core.decide import Outcome
from onejob.core.policy import Unique
from onejob.stores.contract import Tally, Transactions
from onejob.testing.contract.acts import everything, mailer
from onejob.testing.contract.suite import Given, case


class RollBack(Exception):
    """Ends a transaction without a commit."""


@case
async def a_job_exists_when_the_caller_commits(given: Given) -> None:
    if not isinstance(given.store, Transactions):
        return
    mail = mailer(given.app, Unique())
    async with given.store.transaction() as connection:
        admission = await mail.options(connection=connection).enqueue(1)
        assert admission.outcome is Outcome.CREATED
        assert (await mail.options(connection=connection).enqueue(1)).outcome is Outcome.KEPT
    assert [job.id for job in await everything(given.app)] == [admission.job.id]


@case
async def a_rollback_leaves_neither_job_nor_hold_nor_count(given: Given) -> None:
    if not isinstance(given.store, Transactions):
        return
    mail = mailer(given.app, Unique())
    with suppress(RollBack):
        async with given.store.transaction() as connection:
            await mail.options(connection=connection).enqueue(1)
            await given.store.count_within(connection, [Tally("", "mail", "kept", "job", 1)])
            raise RollBack
    assert await everything(given.app) == []
    assert await given.store.tallies("") == []
    assert (await mail.enqueue(1)).outcome is Outcome.CREATED
