"""Sealing: keep payloads in the store so that only the app can read them.

A codec turns bytes into other bytes and back. A sealed value is stored as a JSON object of one field, so that
stores and tools can treat it like any other payload. Every value is sealed for its place: namespace, task,
job and field; elsewhere it cannot be unsealed. So arguments are sealed after the decision, when it is known
which job gets them. Keys and digests are computed before, from the clear payload and with the app's secret:
equal arguments are still the same work.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, runtime_checkable

import msgspec

from onejob.core.decide import Verdict
from onejob.core.job import SEALED, SEALED_FIELD, Job, alter, fingerprint
from onejob.core.step import Changes, View
from onejob.core.text import storable
from onejob.core.ticks import Ticked
from onejob.errors import InvalidCall, InvalidPolicy, Unsealable

HIDDEN = "sealed"  # replaces a text
VERSION = b"\x01"  # of the form that AesGcmCodec writes
KEY, KEY_ID, NONCE = 32, 4, 12  # bytes
SHORTEST_SECRET = 16  # bytes

Field = Literal["args", "result", "error", "progress", "call", "schedule"]


@runtime_checkable
class Codec(Protocol):
    """Seals payloads. Both methods are called on the event loop, so neither may block."""

    def seal(self, clear: bytes, context: bytes) -> bytes:
        """Return bytes that only `unseal` with the same context can read; the context is not secret."""

    def unseal(self, sealed: bytes, context: bytes) -> bytes:
        """Return what was sealed; raise if it cannot be read, or was sealed with another context."""


class AesGcmCodec:
    """Seals with AES-256-GCM, which detects changes and binds a payload to its job.

    Args:
        key: The key that seals: 32 bytes in base64, as `AesGcmCodec.generate_key()` returns it.
        *older: Older keys, which still unseal.

    Raises:
        InvalidCall: The package cryptography is not installed.
        InvalidPolicy: A key is not 32 bytes in base64.

    Examples:
        >>> app = App(codec=AesGcmCodec(key), secret="…")
    """

    def __init__(self, key: str | bytes, *older: str | bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise InvalidCall("AesGcmCodec needs the package cryptography: install onejob[crypto].") from None
        keys = [read_key(one) for one in (key, *older)]
        self._first = key_id(keys[0])
        self._ciphers = {key_id(one): AESGCM(one) for one in reversed(keys)}

    def __repr__(self) -> str:
        """Return the codec's name, without its keys."""
        return "<AesGcmCodec>"

    @staticmethod
    def generate_key() -> str:
        """Return a new random key as text."""
        return urlsafe_b64encode(os.urandom(KEY)).decode()

    def seal(self, clear: bytes, context: bytes) -> bytes:
        """Seal with the first key; the id of the key and a random nonce come first."""
        nonce = os.urandom(NONCE)
        return VERSION + self._first + nonce + self._ciphers[self._first].encrypt(nonce, clear, context)

    def unseal(self, sealed: bytes, context: bytes) -> bytes:
        """Unseal with the key that the id names; raise if there is none, or if anything was changed."""
        if not sealed.startswith(VERSION):
            raise ValueError("it was not sealed by this codec")
        body = sealed[len(VERSION) :]
        named, nonce, hidden = body[:KEY_ID], body[KEY_ID : KEY_ID + NONCE], body[KEY_ID + NONCE :]
        return self._ciphers[named].decrypt(nonce, hidden, context)


def read_key(key: str | bytes) -> bytes:
    """Return the bytes of a key; raise InvalidPolicy, without the key, if it is none."""
    try:
        found = urlsafe_b64decode(key)
    except (NotBase64, ValueError, TypeError):
        found = b""
    if len(found) != KEY:
        raise InvalidPolicy(
            "A key of AesGcmCodec is 32 bytes in base64: take one from AesGcmCodec.generate_key()."
        )
    return found


def key_id(key: bytes) -> bytes:
    """Return a short name of a key, from which it cannot be guessed."""
    return hashlib.sha256(b"onejob key id" + key).digest()[:KEY_ID]


@dataclass(frozen=True, slots=True)
class Sealer:
    """A codec, and the secret for digests of what it seals."""

    codec: Codec
    secret: bytes
    accepts_clear: bool = False  # for jobs from before there was a codec

    @classmethod
    def of(cls, codec: Codec | None, secret: bytes | None, *, accepts_clear: bool = False) -> Self | None:
        """Return a sealer if there is a codec; raise InvalidPolicy if it would protect nothing."""
        if codec is None:
            return None
        if not isinstance(codec, Codec):
            raise InvalidPolicy(
                f"codec= is a {type(codec).__name__}, which cannot seal and unseal: write AesGcmCodec(key)."
            )
        if secret is None:
            raise InvalidPolicy(
                "codec= without secret= lets a reader of the store guess arguments by their key: "
                "write App(…, codec=…, secret=…)."
            )
        return cls(codec, secret, accepts_clear)

    def seal(self, clear: bytes, place: bytes) -> bytes:
        """Return JSON sealed in an envelope, which is JSON, too; raise InvalidCall if the codec fails."""
        try:
            return b'%b%b"}' % (SEALED, urlsafe_b64encode(self.codec.seal(clear, place)))
        except Exception as error:
            raise InvalidCall(f"The codec cannot seal a payload: {type(error).__name__}: {error}.") from error

    def unseal(self, stored: bytes, what: str, place: bytes) -> bytes:
        """Return JSON out of its envelope; raise Unsealable if no key fits or it belongs elsewhere."""
        try:
            return self.codec.unseal(urlsafe_b64decode(stored[len(SEALED) : -2]), place)
        except Exception as error:  # a codec may raise anything
            raise Unsealable(
                f"{what} cannot be unsealed: give the app's codec the key that sealed it. "
                "If it has that key, the payload was changed, or belongs to another job."
            ) from error

    def digest(self, args: bytes, meta: bytes) -> bytes:
        """Return the digest of a clear payload, which can be compared but not guessed."""
        return hmac.digest(self.secret, args + b"\0" + meta, "sha256")

    def name(self, text: str) -> str:
        """Return a digest in place of a text that is only compared."""
        return hmac.digest(self.secret, b"name\0" + text.encode(), "sha256").hex() if text else text


def read_secret(secret: str | bytes | None) -> bytes | None:
    """Return a secret as bytes; raise InvalidPolicy for one that can be guessed."""
    if secret is None:
        return None
    found = storable(secret).encode() if isinstance(secret, str) else secret
    if len(found) < SHORTEST_SECRET:
        raise InvalidPolicy(
            f"secret= has {len(found)} bytes, which can be guessed: give it {SHORTEST_SECRET} or more, as "
            "secrets.token_urlsafe() returns them, or leave it out."
        )
    return found


def place_of(namespace: str, task: str, owner: str, field: Field) -> bytes:
    """Return the name of a place, for which a value is sealed; the owner is a job, a chain or a schedule."""
    return msgspec.json.encode([namespace, task, owner, field])


def place_in(job: Job, field: Field) -> bytes:
    """Return the name of a job's field."""
    return place_of(job.namespace, job.task, job.id, field)


# ── payloads ──────────────────────────────────────────────────────────────────────────────────────


def digest_of(sealer: Sealer | None, args: bytes, meta: bytes) -> bytes:
    """Return the digest of a clear payload."""
    return fingerprint(args, meta) if sealer is None else sealer.digest(args, meta)


def seal(sealer: Sealer | None, clear: bytes, place: bytes) -> bytes:
    """Return JSON as the store keeps it."""
    return clear if sealer is None else sealer.seal(clear, place)


def unseal(sealer: Sealer | None, stored: bytes, what: str, place: bytes) -> bytes:
    """Return clear JSON; raise Unsealable if no key fits, or if it is not sealed although it must be."""
    is_sealed = stored.startswith(SEALED)
    if sealer is None and is_sealed:
        raise Unsealable(f"{what} cannot be unsealed: this app has no codec, so write App(…, codec=…).")
    if sealer is None or (sealer.accepts_clear and not is_sealed):
        return stored
    if not is_sealed:
        raise Unsealable(
            f"{what} is in clear text, which an app with a codec does not accept: if it is from before there "
            "was a codec, write App(…, codec=…, accept_clear=True) until it has run."
        )
    return sealer.unseal(stored, what, place)


def seal_job(sealer: Sealer | None, job: Job) -> Job:
    """Return a job with its arguments sealed."""
    if sealer is None or not job.args or job.is_sealed:
        return job
    return alter(job, args=sealer.seal(job.args, place_in(job, "args")))


def open_args(sealer: Sealer | None, job: Job) -> Job:
    """Return a job with its arguments in clear text."""
    if not job.args or (sealer is None and not job.is_sealed):
        return job
    what = f"The arguments of job {job.id}"
    clear = unseal(sealer, job.args, what, place_in(job, "args"))
    return job if clear is job.args else alter(job, args=clear)


def open_result(sealer: Sealer | None, job: Job) -> bytes | None:
    """Return a job's result as JSON; None if it has none."""
    if job.result is None:
        return None
    return unseal(sealer, job.result, f"The result of job {job.id}", place_in(job, "result"))


def act_sealed(act: Callable[[View], Changes[Any]], sealer: Sealer, view: View) -> Changes[Any]:
    """Run an act, and seal the arguments of the jobs that it writes."""
    changes = act(view)
    if not changes.updates and not changes.inserts:
        return changes
    updates = tuple(seal_job(sealer, job) for job in changes.updates)
    inserts = tuple(seal_job(sealer, job) for job in changes.inserts)
    written = {job.id: job for job in (*updates, *inserts)}
    answer = shown(changes.answer, written)
    return msgspec.structs.replace(changes, answer=answer, updates=updates, inserts=inserts)


def shown(answer: Any, written: Mapping[str, Job]) -> Any:
    """Return an answer with its job as it was written."""
    match answer:
        case Verdict(job=job):
            return msgspec.structs.replace(answer, job=written.get(job.id, job))
        case Ticked(verdict=Verdict() as verdict):
            return Ticked(shown(verdict, written))
        case _:
            return answer


# ── texts: errors and progress of a run ───────────────────────────────────────────────────────────


def hide(sealer: Sealer, document: Mapping[str, Any], place: bytes, *names: str) -> dict[str, Any]:
    """Return a document with some texts sealed; the first is replaced by "sealed", the others by nothing."""
    clear = msgspec.json.encode({name: document[name] for name in names})
    first, *others = names
    try:
        sealed = urlsafe_b64encode(sealer.codec.seal(clear, place)).decode()
    except Exception:  # noqa: BLE001 - a codec may raise anything, and the rest must be stored all the same
        sealed = None
    return {**document, first: HIDDEN, **dict.fromkeys(others, ""), SEALED_FIELD: sealed}


def show(sealer: Sealer | None, document: Mapping[str, Any], what: str, place: bytes) -> dict[str, Any]:
    """Return a document with the texts that `hide` sealed."""
    if document.get(SEALED_FIELD) is None:
        return dict(document)
    stored = b'%b%b"}' % (SEALED, document[SEALED_FIELD].encode())
    clear = {name: value for name, value in document.items() if name != SEALED_FIELD}
    return clear | msgspec.json.decode(unseal(sealer, stored, what, place), type=dict[str, Any])


def reveal(sealer: Sealer | None, job: Job) -> Job:
    """Return a job with everything in clear text that was sealed."""
    place = place_in(job, "error")
    errors = [show(sealer, one, f"An error of job {job.id}", place) for one in job.failures]
    report = None if job.progress is None else msgspec.json.decode(job.progress)
    if report:
        report = show(sealer, report, f"The progress of job {job.id}", place_in(job, "progress"))
    return alter(
        open_args(sealer, job),
        result=open_result(sealer, job),
        errors=msgspec.json.encode(errors),
        progress=report and msgspec.json.encode(report),
    )
