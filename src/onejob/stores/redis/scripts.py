"""The scripts, by name: run by their digest, and sent whole to a server that does not know them yet."""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files

NAMES = ("swap", "claim", "turn", "admit", "fold", "tails")
TEXTS = {name: files(__package__).joinpath(f"{name}.lua").read_bytes() for name in NAMES}
DIGESTS = {name: sha1(text).hexdigest().encode() for name, text in TEXTS.items()}  # noqa: S324 - as Redis names them
