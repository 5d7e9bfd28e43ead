"""Counters of absorbed requests in a SQLite file."""

from __future__ import annotations

from collections.abc import Sequence

from onejob.stores.columns import write_time
from onejob.stores.contract import Tally
from onejob.stores.sqlite.session import Row, Session

FOLDED_AT_ONCE = 1000


def count(session: Session, tallies: Sequence[Tally]) -> None:
    """Add to the counters of absorbed requests."""
    rows = [
        (
            t.namespace,
            t.task,
            t.outcome,
            t.job_id,
            t.count,
            write_time(t.last_at or now),
            write_time(t.first_at or now),
            t.last_by,
        )
        for now in [session.now]
        for t in tallies
    ]
    session.write("tally", rows)


def orphans(session: Session, namespace: str) -> list[Row]:
    """Return some counters whose jobs are gone."""
    return session.rows("orphan_tallies", (namespace, FOLDED_AT_ONCE))


def fold(session: Session, gone: Sequence[Row]) -> None:
    """Add counters to those of no job."""
    session.write("fold_tally", gone)
    session.write("delete_tally", gone)
