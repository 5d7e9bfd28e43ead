"""Codecs by themselves: sealing, rotating, and what is refused."""

from __future__ import annotations

import hashlib
import sys
from base64 import urlsafe_b64decode
from typing import get_args

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from onejob import App
from onejob.core.job import fingerprint
from onejob.engine.sealing import AesGcmCodec, Field, Sealer, digest_of, hide, place_of, seal, show, unseal
from onejob.errors import InvalidCall, InvalidPolicy, Unsealable

OLD, NEW = (AesGcmCodec.generate_key() for _ in range(2))
SEALER = Sealer(AesGcmCodec(OLD), b"pepper and coarse salt")
PLACE = place_of("", "mail", "1", "args")
FIELDS = get_args(Field)


@given(st.binary())
def test_what_is_sealed_comes_out_as_it_went_in(clear: bytes) -> None:
    sealed = SEALER.seal(clear, PLACE)
    assert unseal(SEALER, sealed, "It", PLACE) == clear
    assert len(sealed) < 4 / 3 * len(clear) + 80


def test_the_stored_bytes_name_their_key_and_are_aes_gcm() -> None:
    sealed = SEALER.seal(b'{"to":"a"}', PLACE).decode()
    body = urlsafe_b64decode(sealed.removeprefix('{"onejob:sealed":"').removesuffix('"}'))
    key = urlsafe_b64decode(OLD)
    assert body[:5] == b"\x01" + hashlib.sha256(b"onejob key id" + key).digest()[:4]
    assert AESGCM(key).decrypt(body[5:17], body[17:], PLACE) == b'{"to":"a"}'


def test_the_first_key_seals_and_every_key_unseals() -> None:
    both = AesGcmCodec(NEW, OLD)
    assert both.unseal(AesGcmCodec(OLD).seal(b"x", PLACE), PLACE) == b"x"
    assert AesGcmCodec(NEW).unseal(both.seal(b"x", PLACE), PLACE) == b"x"
    with pytest.raises(KeyError):
        AesGcmCodec(OLD).unseal(both.seal(b"x", PLACE), PLACE)


def test_a_value_is_sealed_for_one_place() -> None:
    places = {
        place_of(*names, field)
        for names in [("", "mail", "1"), ("n", "mail", "1"), ("", "mail2", "1"), ("", "mail", "2")]
        for field in FIELDS
    }
    assert len(places) == 4 * len(FIELDS)
    for place in places - {PLACE}:
        with pytest.raises(Unsealable):
            unseal(SEALER, SEALER.seal(b"x", PLACE), "It", place)


@pytest.mark.parametrize("position", [30, 60, -10])
def test_a_change_is_noticed(position: int) -> None:
    sealed = bytearray(SEALER.seal(b"x" * 50, PLACE))
    sealed[position] = ord("A") if sealed[position] != ord("A") else ord("B")
    with pytest.raises(Unsealable, match=r"^It cannot be unsealed: give the app's codec the key"):
        unseal(SEALER, bytes(sealed), "It", PLACE)


def test_a_digest_tells_payloads_apart_and_cannot_be_guessed() -> None:
    digests = {
        digest_of(safe, args, meta)
        for safe in (None, SEALER, Sealer(SEALER.codec, b"salt"))
        for args in (b'{"to":"a"}', b'{"to":"b"}')
        for meta in (b"{}", b'{"of":1}')
    }
    assert len(digests) == 12
    assert digest_of(SEALER, b"{}", b"{}") == digest_of(SEALER, b"{}", b"{}")


def test_without_a_codec_nothing_changes() -> None:
    assert digest_of(None, b'{"to":"a"}', b"{}") == fingerprint(b'{"to":"a"}', b"{}")
    assert seal(None, b"x", PLACE) == unseal(None, b"x", "It", PLACE) == b"x"


def test_hidden_texts_come_back() -> None:
    error = {"type": "ValueError", "message": "m", "traceback": "t", "attempt": 1}
    hidden = hide(SEALER, error, PLACE, "message", "traceback")
    hidden_texts = {"message": "sealed", "traceback": "", "onejob:sealed": hidden["onejob:sealed"]}
    assert hidden == error | hidden_texts
    assert show(SEALER, hidden, "It", PLACE) == error
    assert show(None, error, "It", PLACE) == error


def test_a_codec_needs_a_secret() -> None:
    with pytest.raises(InvalidPolicy, match="codec= without secret= lets a reader of the store guess"):
        App("memory://", codec=AesGcmCodec(OLD))


def test_what_cannot_seal_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidPolicy, match="codec= is a str, which cannot seal") as refusal:
        App("memory://", codec=OLD, secret="pepper and coarse salt")  # type: ignore[arg-type]
    assert OLD not in str(refusal.value)


@pytest.mark.parametrize("key", ["", "short", b"\xff" * 32, "x" * 44])
def test_a_key_that_is_none_is_refused_and_not_shown(key: str | bytes) -> None:
    with pytest.raises(
        InvalidPolicy, match=r"32 bytes in base64: take one from AesGcmCodec\.generate_key"
    ) as refusal:
        AesGcmCodec(OLD, key)
    assert OLD not in str(refusal.value)


def test_keys_may_be_text_or_bytes() -> None:
    assert AesGcmCodec(OLD.encode()).unseal(AesGcmCodec(OLD).seal(b"x", PLACE), PLACE) == b"x"
    assert len(urlsafe_b64decode(OLD)) == 32


def test_keys_are_not_shown() -> None:
    assert repr(AesGcmCodec(OLD)) == "<AesGcmCodec>"


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(InvalidCall, match=r"install onejob\[crypto\]"):
        AesGcmCodec(OLD)


@pytest.mark.parametrize("secret", ["", "pepper", b"fifteen bytes..", "ééééééé"])
def test_a_secret_that_can_be_guessed_is_refused(secret: str | bytes) -> None:
    with pytest.raises(InvalidPolicy, match=r"which can be guessed: give it 16 or more"):
        App("memory://", secret=secret)
    App("memory://", secret="sixteen bytes...")
