"""Others who drain queues: each fills its own, empties it at its best setting, and tells the rate.

All have everything enqueued before the clock starts, and stop it when their store holds no unfinished job.
"""

from __future__ import annotations

from importlib import import_module


def drain(peer: str, url: str, number: int) -> float:
    """Let a peer drain so many jobs, and tell how many per second."""
    return float(import_module(f"bench.peers.{peer}").drain(url, number))
