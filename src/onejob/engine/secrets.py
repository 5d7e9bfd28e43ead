"""Notice processes that use different secrets in one namespace: their requests get different keys.

Each process leaves a fingerprint of its secret among the settings of its namespace. A secret may be changed:
a different one is reported, not refused.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta

from onejob.errors import StoreError
from onejob.stores.contract import FullStore

log = logging.getLogger("onejob")

KIND = "secret"
RECENT = timedelta(days=7)  # how long a fingerprint counts
REFRESH = timedelta(days=1)  # how old a process lets its own become


def fingerprint_of(secret: bytes | None) -> str | None:
    """Return a name of a secret, from which it cannot be guessed; None without a secret."""
    return None if secret is None else hmac.digest(secret, b"onejob secret fingerprint", "sha256")[:8].hex()


async def announce_secret(store: FullStore, namespace: str, secret: bytes | None) -> None:
    """Leave the fingerprint of this process's secret, and log a warning if others use another one."""
    own = fingerprint_of(secret)
    try:
        seen = await read_fingerprints(store, namespace)
        await leave_fingerprint(store, namespace, seen, own)
    except StoreError:  # the caller's own request meets it, too
        return
    if (last := last_other(seen, own, store.now())) is not None:
        log.warning(
            "another process has used another secret in this namespace, last on %s: duplicates between the "
            "two are not recognised; give all processes the same secret",
            f"{last:%Y-%m-%d %H:%M} UTC",
        )


async def read_fingerprints(store: FullStore, namespace: str) -> dict[str, datetime]:
    """Return the fingerprints of a namespace, and when each was left."""
    found = await store.settings(namespace, KIND)
    return {name: datetime.fromisoformat(value.decode()) for name, value in found.items()}


async def leave_fingerprint(
    store: FullStore, namespace: str, seen: Mapping[str, datetime], own: str | None
) -> None:
    """Write this process's fingerprint unless a fresh one is there, and remove those that no longer count."""
    now = store.now()
    if own is not None and (own not in seen or now - seen[own] > REFRESH):
        await store.put_setting(namespace, KIND, own, now.isoformat().encode())
    for name, at in seen.items():
        if name != own and now - at > RECENT:
            await store.put_setting(namespace, KIND, name, None)


def last_other(seen: Mapping[str, datetime], own: str | None, now: datetime) -> datetime | None:
    """Return when another secret was last used; None if that is long ago or never was."""
    return max((at for name, at in seen.items() if name != own and now - at <= RECENT), default=None)
