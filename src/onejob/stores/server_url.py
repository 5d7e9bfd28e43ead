"""What a URL of a server must not contain, so that no part of its password is taken for something else."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_ambiguous(url: str) -> bool:
    """Return whether a part of the user or the password may be read as another part of the URL."""
    parts = urlsplit(url)
    is_text = url.isprintable() and " " not in url
    return not is_text or "#" in url or "@" in parts.path or parts.netloc.count("@") > 1
