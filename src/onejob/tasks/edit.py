"""Edit the arguments of a dead letter, or of the next attempt, without making it other work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onejob.core import key
from onejob.core.job import Job, alter
from onejob.engine.sealing import digest_of, open_args, seal_job
from onejob.errors import InvalidCall
from onejob.tasks.declaration import known_names
from onejob.tasks.request import RequestBuilder, version_of
from onejob.tasks.signature import Signature, encode


def edit_job(
    builder: RequestBuilder, job: Job, changes: Mapping[str, Any], *, keeps_key: bool = False
) -> Job:
    """Return a job with other arguments, and without those that its task no longer has.

    With `keeps_key`, a key that the task's policy does not make stays whatever the arguments are.

    Raises:
        InvalidCall: The arguments do not fit the task, or would change the key or the version.
    """
    engine, task = builder.engine, builder.declaration
    if unknown := sorted(changes.keys() - set(task.signature.names)):
        raise InvalidCall(f"{task.name} has no argument {unknown[0]!r} (it has: {known_names(task)}).")
    before = open_args(engine.sealer, job)
    kept = {name: value for name, value in before.arguments.items() if name in task.signature.names}
    after = alter(before, args=encode({**kept, **changes}, "The arguments", engine.max_args))
    try:
        bind_stored(task.signature, after)
    except (TypeError, ValueError) as error:
        raise InvalidCall(f"The edited arguments do not fit {task.name}: {error}.") from None
    if builder.policy is not None or not keeps_key:
        refuse_other_work(builder, before, after)
    digest = digest_of(engine.sealer, after.args, job.meta)
    return seal_job(engine.sealer, alter(after, payload_digest=digest))


def bind_stored(signature: Signature, job: Job) -> dict[str, Any]:
    """Return a job's arguments by name, in the types that the task declares."""
    args, kwargs = signature.restore(job.arguments)
    return signature.bind(tuple(args), kwargs)


def refuse_other_work(builder: RequestBuilder, before: Job, after: Job) -> None:
    """Raise InvalidCall if an edit changes the key or the version, which were fixed at admission."""
    if before.key is None:
        return
    name = builder.declaration.name
    if builder.policy is None:
        raise InvalidCall(
            f"Job {before.id} has a key that {name} does not make, so an edit could change it unnoticed: "
            f"enqueue it anew with {name}.enqueue(…)."
        )
    if identity_of(builder, before) != identity_of(builder, after):
        raise InvalidCall(
            f"The edit would change the key or the version of job {before.id}, which makes it other "
            f"work: enqueue it anew with {name}.enqueue(…)."
        )


def identity_of(builder: RequestBuilder, job: Job) -> tuple[bytes | None, int | None]:
    """Return the key and the version that a job's arguments have now."""
    builder = builder.with_options(queue=job.queue, meta=job.metadata)
    policy = builder.policy
    assert policy is not None  # the caller has checked it
    try:
        bound = bind_stored(builder.declaration.signature, job)
    except (InvalidCall, TypeError, ValueError):  # arguments that do not fit may be why the job died
        bound = job.arguments
    dimensions = builder.dimensions(bound, policy)
    hashed = None if dimensions is None else key.digest(dimensions, builder.engine.secret)
    return hashed, version_of(bound, policy)
