"""How to reach the server, and how to introduce oneself there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onejob.errors import StoreUnavailable
from onejob.stores.sql.flows import Ask

PAUSE = 0.1  # seconds between two tries to connect


@dataclass(frozen=True, slots=True)
class Account:
    """What every connection of a store has in common."""

    url: str
    place: str  # the server's name, without a password
    settings: Mapping[str, Any]
    first: Sequence[Ask]  # what is said once over every connection
    patience: float  # seconds for a server that starts again, and for a free connection

    def lost(self) -> StoreUnavailable:
        """Say that no connection lasts."""
        return StoreUnavailable(f"{self.place}: the connection is lost, and so is every other.")
