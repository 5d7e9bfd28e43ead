"""Sealing: what a job carries can be kept in the store so that only the app can read it.

A codec turns bytes into other bytes and back. What it seals stands in the store as a JSON object of one
field, so that stores and tools take it for what it is: a payload. Keys and digests are made before, from the
clear payload and with the app's secret, so what is sealed anew is still the same work.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import msgspec

from onejob.errors import InvalidCall, InvalidPolicy, Unsealable
from onejob.job import SEALED, SEALED_FIELD, Job, alter, fingerprint

HIDDEN = "sealed"  # stands where a text was


@runtime_checkable
class Codec(Protocol):
    """What seals payloads. Both verbs are called on the event loop, so neither may wait for anything."""

    def seal(self, clear: bytes) -> bytes:
        """Make bytes that only `unseal` can read."""

    def unseal(self, sealed: bytes) -> bytes:
        """Read what `seal` made, or raise."""


class FernetCodec:
    """Seals with Fernet: AES-128 in CBC mode, and an HMAC-SHA-256 by which a change is noticed.

    The first key seals; the others, older ones, still unseal. Keys are what `Fernet.generate_key()` gives.
    """

    def __init__(self, key: str | bytes, *older: str | bytes) -> None:
        try:
            from cryptography.fernet import Fernet, MultiFernet
        except ImportError:
            raise InvalidCall("FernetCodec needs the package cryptography: install onejob[crypto].") from None
        try:
            self._fernet = MultiFernet([Fernet(one) for one in (key, *older)])
        except (ValueError, TypeError):
            raise InvalidPolicy(
                "A key of FernetCodec is 32 bytes in base64: take one from Fernet.generate_key()."
            ) from None

    def __repr__(self) -> str:
        """Name the codec without its keys."""
        return "<FernetCodec>"

    def seal(self, clear: bytes) -> bytes:
        """Seal with the first key."""
        return urlsafe_b64decode(self._fernet.encrypt(clear))  # the envelope writes it in base64 again

    def unseal(self, sealed: bytes) -> bytes:
        """Unseal with whichever key fits."""
        return self._fernet.decrypt(urlsafe_b64encode(sealed))


@dataclass(frozen=True, slots=True)
class Safe:
    """A codec, and the secret with which digests are made of what it seals."""

    codec: Codec
    secret: bytes

    @classmethod
    def of(cls, codec: Codec | None, secret: bytes | None) -> Self | None:
        """Put both together, if there is a codec; refuse what would protect nothing."""
        if codec is None:
            return None
        if not isinstance(codec, Codec):
            raise InvalidPolicy(
                f"codec= is a {type(codec).__name__}, which cannot seal and unseal: write FernetCodec(key)."
            )
        if secret is None:
            raise InvalidPolicy(
                "codec= without secret= lets whoever reads the store guess arguments by their key: "
                "write App(…, codec=…, secret=…)."
            )
        return cls(codec, secret)

    def seal(self, clear: bytes) -> bytes:
        """Put JSON into an envelope, which is JSON too."""
        return b'%b%b"}' % (SEALED, urlsafe_b64encode(self.codec.seal(clear)))

    def unseal(self, stored: bytes, what: str) -> bytes:
        """Take JSON out of its envelope."""
        try:
            return self.codec.unseal(urlsafe_b64decode(stored[len(SEALED) : -2]))
        except Exception as error:  # a codec may raise anything
            raise Unsealable(
                f"{what} cannot be unsealed: give the app's codec the key that sealed it."
            ) from error

    def digest(self, args: bytes, meta: bytes) -> bytes:
        """Digest a clear payload so that it can be compared, but not guessed."""
        return hmac.digest(self.secret, args + b"\0" + meta, "sha256")

    def name(self, text: str) -> str:
        """Stand for a text that is only ever compared."""
        return hmac.digest(self.secret, b"name\0" + text.encode(), "sha256").hex() if text else text


# ── payloads ──────────────────────────────────────────────────────────────────────────────────────


def pack(safe: Safe | None, args: bytes, meta: bytes) -> tuple[bytes, bytes]:
    """Make of clear arguments what the store gets, and the digest of the payload."""
    if safe is None:
        return args, fingerprint(args, meta)
    return safe.seal(args), safe.digest(args, meta)


def opened(safe: Safe | None, stored: bytes, what: str) -> bytes:
    """Read JSON that may have been sealed; what was stored before there was a codec is clear."""
    if not stored.startswith(SEALED):
        return stored
    if safe is None:
        raise Unsealable(f"{what} cannot be unsealed: this app has no codec, so write App(…, codec=…).")
    return safe.unseal(stored, what)


def open_args(safe: Safe | None, job: Job) -> Job:
    """Return a job with its arguments in clear."""
    if not job.is_sealed:
        return job
    return alter(job, args=opened(safe, job.args, f"The arguments of job {job.id}"))


def open_result(safe: Safe | None, job: Job) -> bytes | None:
    """Read what a job returned, as JSON."""
    return None if job.result is None else opened(safe, job.result, f"The result of job {job.id}")


# ── texts: what a run says of itself ──────────────────────────────────────────────────────────────


def hide(safe: Safe, document: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Seal some texts of a document; the word "sealed" stands where they were, or nothing."""
    clear = msgspec.json.encode({name: document[name] for name in names})
    first, *others = names
    try:
        sealed = urlsafe_b64encode(safe.codec.seal(clear)).decode()
    except Exception:  # noqa: BLE001 - a codec may raise anything, and what happened must be told all the same
        sealed = None
    return {**document, first: HIDDEN, **dict.fromkeys(others, ""), SEALED_FIELD: sealed}


def show(safe: Safe | None, document: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Give a document back the texts that `hide` took."""
    if document.get(SEALED_FIELD) is None:
        return dict(document)
    stored = b'%b%b"}' % (SEALED, document[SEALED_FIELD].encode())
    clear = {name: value for name, value in document.items() if name != SEALED_FIELD}
    return clear | msgspec.json.decode(opened(safe, stored, what), type=dict[str, Any])


def reveal(safe: Safe | None, job: Job) -> Job:
    """Return a job with everything in clear that was sealed."""
    errors = [show(safe, one, f"An error of job {job.id}") for one in job.failures]
    told = None if job.progress is None else msgspec.json.decode(job.progress)
    return alter(
        open_args(safe, job),
        result=open_result(safe, job),
        errors=msgspec.json.encode(errors),
        progress=told and msgspec.json.encode(show(safe, told, f"The progress of job {job.id}")),
    )
