"""Does a recorded history show what onejob promises? `check` lists where it does not.

*Order.* For each key there must be one order of all operations on it in which each takes effect at one
moment between its call and its return, and every answer is what `tests.races.model` would have given. From
that follow, for the history at hand:

- a key never has two holders, nor two successors (I1);
- a duplicate names a job that was committed and standing at a moment inside the call, in the state and with
  the token, attempt, payload and version that the answer shows (I2);
- a job has one lease at a time, tokens rise by one, and a lost lease changes nothing (I11, I12);
- a run has the newest payload that was accepted, and an older version's result is never kept (I15);
- a successor never runs beside its predecessor, and is promoted as soon as that one ends (I16, I17);
- a job that was cancelled while it waited never starts (I19);
- a batch is some sequence of its calls, in their order (I6).

*Scans.* Without relying on the model or the search, `tests.races.scans` checks the simplest of these once
more, and for what no order can show: every accepted request is followed by the start of a run, of its job
or of the one that superseded it, unless a client cancelled it; no job is left over; and jobs and counters
add up to the calls (I29).

What this does not show: how long a lease lasts; windows, merging, chains, replay and the policies that are
not in `model.RULES`; and that a store outlives its own crash, for which see tests/chaos. It judges one
history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from tests.races.history import FOREVER, Ended, History, Op, Start
from tests.races.model import RULES
from tests.races.records import JobRecords, gather, mentioned, token_of
from tests.races.scans import Violation, scan
from tests.races.search import explain

Watch = Callable[[str, int], object]
"""Called repeatedly with the key that is searched and the number of worlds."""


def unwatched(key: str, worlds: int) -> None:
    """Do nothing."""


def check(history: History, watch: Watch = unwatched) -> list[Violation]:
    """Return what contradicts the promises."""
    records = gather(history)
    return [*scan(history, records), *orders(history, records, watch)]


def orders(history: History, records: JobRecords, watch: Watch) -> Iterator[Violation]:
    """Yield keys whose answers no order of events explains."""
    ended: defaultdict[str, list[Ended]] = defaultdict(list)
    for job in history.jobs.values():
        ended[job.key].append(job)
    for key in history.keys:
        rules = RULES.get(key.partition("/")[0])
        if rules is None:
            continue
        ops, orphans = prepared(history, records, key, ended[key])
        if stuck := explain(rules, ops, orphans, ended[key], partial(watch, key)):
            yield Violation("order", key, str(stuck))


def prepared(
    history: History, records: JobRecords, key: str, ended: Sequence[Ended]
) -> tuple[list[Op], list[str]]:
    """Return a key's operations with the leases that have no answer, and the jobs whose creation has none."""
    ops = history.keys[key]
    ids = {end.job.job for end in ended} | {seen.job for op in ops for seen in mentioned(op)}
    orphans = sorted(job_id for job_id in ids if not records[job_id].creations)
    return [*ops, *unseen_starts(history, records, ids)], orphans


def unseen_starts(history: History, records: JobRecords, ids: Iterable[str]) -> Iterator[Op]:
    """Yield the leases that killed workers must have got without recording them."""
    if not history.leases_lost:
        return
    for job_id in ids:
        known = {token_of(op) for op in records[job_id].starts}
        for token in set(range(1, records[job_id].tokens + 1)) - known:
            yield Op(Start(job_id, token), None, min(history.leases_lost), FOREVER)
