"""Every error that onejob raises, in one hierarchy.

OnejobError
├── InvalidPolicy            a Unique, Retry or option that contradicts itself
│   ├── InvalidDuration
│   └── InvalidSchedule      a cron line, time zone or schedule that cannot be read
├── InvalidCall              a request that was refused before anything was stored
│   ├── UnencodableArgument
│   ├── MissingKeyField
│   ├── ArgumentsTooLarge
│   ├── MergeFailed
│   ├── BlockerCycle         a job would wait for itself
│   ├── UnknownTask
│   ├── UnknownQueue
│   └── UnknownSchedule
├── Duplicate                on_conflict="reject" met a holder; carries the Admission
│   └── PayloadMismatch      on_mismatch="error" met a holder with another payload
├── QueueFull                the queue has as many waiting jobs as max_depth= allows
├── StoreError
│   ├── AdmissionBusy        the key's holder is in a transaction that is still open
│   ├── TransactionConflict  another transaction wrote the same rows: roll yours back and run it again
│   ├── StoreUnavailable     disk full, read-only file, lost connection
│   │   └── StoreTimeout     the store did not answer within store_timeout=
│   ├── StoreRefused         the server denies this user what onejob needs
│   ├── SchemaMismatch       not our database, or one from a newer version
│   ├── ForeignConnection    connection= belongs to another database
│   ├── NoTransactions       the store has no transactions that your writes could be part of
│   └── WeakStore            the task demands a strength that the store does not declare
├── Unsealable               no key of the app's codec opens what the store has
├── UnknownJob
├── ResultError
│   ├── JobFailed
│   ├── JobCancelled
│   ├── ResultGone
│   ├── NotCovered
│   └── WouldDeadlock
├── CompletionError          transaction() did not complete the job; your writes are rolled back
│   ├── LeaseLost
│   ├── Superseded
│   └── NotCommitted
├── NoCurrentJob
└── ContinuationError
"""

from __future__ import annotations

from typing import Any, Protocol


class OnejobError(Exception):
    """The base class of every error of onejob."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.__doc__)


class InvalidPolicy(OnejobError, ValueError):
    """The policy contradicts itself."""


class InvalidDuration(InvalidPolicy):
    """The duration cannot be read; write "30s", "5m", 1.5, a timedelta or "PT10M"."""


class InvalidSchedule(InvalidPolicy):
    """The schedule cannot be read; write a cron line such as "*/5 * * * *"."""


class InvalidCall(OnejobError, ValueError):
    """The call cannot become a job."""


class UnencodableArgument(InvalidCall):
    """An argument has no JSON form."""


class MissingKeyField(InvalidCall):
    """A field that the key is made of is missing from the call."""


class ArgumentsTooLarge(InvalidCall):
    """The arguments are larger than the app allows."""


class MergeFailed(InvalidCall):
    """The new payload could not be merged into the waiting one, which is unchanged."""


class BlockerCycle(InvalidCall):
    """The job would wait for itself, by way of others."""


class UnknownTask(InvalidCall):
    """No task of that name is registered."""


class UnknownQueue(InvalidCall):
    """No queue of that name is declared."""


class UnknownSchedule(InvalidCall):
    """No schedule has that name."""


class _Admission(Protocol):
    """What a `Duplicate` carries: see `onejob.Admission`."""

    @property
    def reason(self) -> str: ...
    @property
    def job(self) -> Any: ...
    @property
    def holder(self) -> Any: ...
    @property
    def key(self) -> str | None: ...
    @property
    def payload_differs(self) -> bool: ...


class Duplicate(OnejobError):
    """The key is held and the policy rejects duplicates.

    Attributes:
        admission: The answer to the request.
        job: The job that exists already.
        holder: The job that held the key when the request was decided.
        key: The key in hexadecimal digits.
        payload_differs: Whether that job was requested with another payload.
    """

    def __init__(self, admission: _Admission) -> None:
        super().__init__(admission.reason)
        self.admission: Any = admission  # an Admission
        self.job = admission.job
        self.holder = admission.holder
        self.key = admission.key
        self.payload_differs = admission.payload_differs


class PayloadMismatch(Duplicate):
    """The key is held by a job with another payload."""


class QueueFull(OnejobError):
    """The queue has as many waiting jobs as its `max_depth` allows.

    Attributes:
        queue: The name of the queue.
        depth: How many jobs wait in it.
        limit: Its `max_depth`.
    """

    def __init__(self, queue: str, depth: int, limit: int) -> None:
        super().__init__(
            f"Queue {queue!r} has {depth} waiting jobs, and max_depth={limit} allows no more: try later."
        )
        self.queue = queue
        self.depth = depth
        self.limit = limit


class StoreError(OnejobError):
    """The store refused."""


class AdmissionBusy(StoreError):
    """The key is being admitted in a transaction that is still open; try again."""


class TransactionConflict(StoreError):
    """Another transaction wrote the same rows: roll yours back and run it again."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or written."""


class StoreTimeout(StoreUnavailable):
    """The store did not answer within the app's `store_timeout`.

    Attributes:
        may_exist: Whether the request may have been stored all the same.
    """

    def __init__(self, seconds: float, *, may_exist: bool) -> None:
        stored = "the job may exist" if may_exist else "nothing was stored"
        super().__init__(f"The store did not answer within {seconds:g} s; {stored}.")
        self.may_exist = may_exist


class StoreRefused(StoreError):
    """The server denies this user what onejob needs."""


class SchemaMismatch(StoreError):
    """The database is not one that this version of onejob can use."""


class ForeignConnection(StoreError):
    """connection= belongs to another database than the app's; pass a connection to the app's own."""


class NoTransactions(StoreError):
    """This store has no transactions: use SQLite or PostgreSQL, or complete the job by returning."""


class WeakStore(StoreError):
    """The task demands more than the store guarantees."""


class Unsealable(OnejobError):
    """What the store has is sealed, and the app cannot open it."""


class UnknownJob(OnejobError, LookupError):
    """No job has that id, or several begin with it."""


class ResultError(OnejobError):
    """There is no result to give."""


class JobFailed(ResultError):
    """The job failed for good."""


class JobCancelled(ResultError):
    """The job was cancelled."""


class ResultGone(ResultError):
    """The job's record has been pruned, and its result with it."""


class NotCovered(ResultError):
    """No run that starts after this request is due."""


class WouldDeadlock(ResultError):
    """This job runs only after the present one ends, so awaiting it here would never return."""


class CompletionError(OnejobError):
    """The job could not be completed in this transaction."""


class LeaseLost(CompletionError):
    """The run is no longer this worker's: another may have taken it over, so nothing was committed."""


class Superseded(CompletionError):
    """A newer request has taken this run's place, so nothing was committed."""


class NotCommitted(CompletionError):
    """The handler ended, but the transaction that completes its job was not committed: commit it."""


class NoCurrentJob(OnejobError, RuntimeError):
    """onejob.current() works only inside a running job."""


class ContinuationError(OnejobError):
    """continue_with can only be called once."""
