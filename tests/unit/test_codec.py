"""Codecs by themselves: sealing, rotating, and what is refused."""

from __future__ import annotations

import sys
from base64 import urlsafe_b64decode

import pytest
from cryptography.fernet import Fernet, InvalidToken
from hypothesis import given
from hypothesis import strategies as st

from onejob import App
from onejob.codec import FernetCodec, Safe, hide, opened, pack, show
from onejob.errors import InvalidCall, InvalidPolicy, Unsealable
from onejob.job import fingerprint

OLD, NEW = (Fernet.generate_key() for _ in range(2))
SAFE = Safe(FernetCodec(OLD), b"pepper")


@given(st.binary())
def test_what_is_sealed_comes_out_as_it_went_in(clear: bytes) -> None:
    sealed = SAFE.seal(clear)
    assert opened(SAFE, sealed, "It") == clear
    assert len(sealed) < 4 / 3 * len(clear) + 150


def test_the_stored_text_is_a_plain_fernet_token() -> None:
    sealed = SAFE.seal(b'{"to":"a"}').decode()
    token = sealed.removeprefix('{"onejob:sealed":"').removesuffix('"}')
    assert Fernet(OLD).decrypt(token) == b'{"to":"a"}'


def test_the_first_key_seals_and_every_key_unseals() -> None:
    both = FernetCodec(NEW, OLD)
    assert both.unseal(FernetCodec(OLD).seal(b"x")) == b"x"
    assert FernetCodec(NEW).unseal(both.seal(b"x")) == b"x"
    with pytest.raises(InvalidToken):
        FernetCodec(OLD).unseal(both.seal(b"x"))


@pytest.mark.parametrize("position", [30, 60, -10])
def test_a_change_is_noticed(position: int) -> None:
    sealed = bytearray(SAFE.seal(b"x" * 50))
    sealed[position] = ord("A") if sealed[position] != ord("A") else ord("B")
    with pytest.raises(Unsealable, match=r"^It cannot be unsealed: give the app's codec the key"):
        opened(SAFE, bytes(sealed), "It")


def test_a_digest_tells_payloads_apart_and_cannot_be_guessed() -> None:
    digests = {
        pack(safe, args, meta)[1]
        for safe in (None, SAFE, Safe(SAFE.codec, b"salt"))
        for args in (b'{"to":"a"}', b'{"to":"b"}')
        for meta in (b"{}", b'{"of":1}')
    }
    assert len(digests) == 12
    assert pack(SAFE, b"{}", b"{}")[1] == pack(SAFE, b"{}", b"{}")[1]


def test_without_a_codec_nothing_changes() -> None:
    assert pack(None, b'{"to":"a"}', b"{}") == (b'{"to":"a"}', fingerprint(b'{"to":"a"}', b"{}"))


def test_hidden_texts_come_back() -> None:
    error = {"type": "ValueError", "message": "m", "traceback": "t", "attempt": 1}
    hidden = hide(SAFE, error, "message", "traceback")
    hidden_texts = {"message": "sealed", "traceback": "", "onejob:sealed": hidden["onejob:sealed"]}
    assert hidden == error | hidden_texts
    assert show(SAFE, hidden, "It") == error
    assert show(None, error, "It") == error


def test_a_codec_needs_a_secret() -> None:
    with pytest.raises(InvalidPolicy, match="codec= without secret= lets whoever reads the store guess"):
        App("memory://", codec=FernetCodec(OLD))


def test_what_cannot_seal_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidPolicy, match="codec= is a bytes, which cannot seal") as refusal:
        App("memory://", codec=OLD, secret="pepper")  # type: ignore[arg-type]
    assert OLD.decode() not in str(refusal.value)


@pytest.mark.parametrize("key", ["", "short", b"\xff" * 32, "x" * 44])
def test_a_key_that_is_none_is_refused_and_not_shown(key: str | bytes) -> None:
    with pytest.raises(
        InvalidPolicy, match=r"32 bytes in base64: take one from Fernet\.generate_key"
    ) as refusal:
        FernetCodec(OLD, key)
    assert OLD.decode() not in str(refusal.value)


def test_keys_may_be_text() -> None:
    assert FernetCodec(OLD.decode()).unseal(FernetCodec(OLD).seal(b"x")) == b"x"
    assert len(urlsafe_b64decode(OLD)) == 32


def test_keys_are_not_shown() -> None:
    assert repr(FernetCodec(OLD)) == "<FernetCodec>"


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    with pytest.raises(InvalidCall, match=r"install onejob\[crypto\]"):
        FernetCodec(OLD)
