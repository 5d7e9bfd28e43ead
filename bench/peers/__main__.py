"""Let another job system drain: python -m bench.peers huey|pgqueuer|dramatiq|taskiq URL COUNT."""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> None:
    """Run one peer and print how many jobs it did per second."""
    peer, url, number = sys.argv[1:]
    print(float(import_module(f"bench.peers.{peer}").drain(url, int(number))))


if __name__ == "__main__":
    main()
