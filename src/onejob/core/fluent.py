"""The fluent form of `Unique`: unique.by("tenant_id").until("finish").within("5m").or_update()."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from onejob.core.durations import Duration
from onejob.core.job import State
from onejob.core.merge import Reducer
from onejob.core.policy import Edges, OnActive, Strength, Unique, Until
from onejob.errors import InvalidPolicy


class Fluent:
    """The fluent form of `Unique`: each method returns the policy with one more setting.

    Examples:
        >>> unique.by("tenant_id").until("finish").within("5m").or_update()
    """

    def __init__(self, **choices: Any) -> None:
        self._choices = choices

    @property
    def policy(self) -> Unique:
        """The policy with all settings so far."""
        return Unique(**self._choices)

    def __repr__(self) -> str:
        """Return the settings so far."""
        return f"unique({', '.join(f'{name}={value!r}' for name, value in self._choices.items())})"

    def _with(self, **choices: Any) -> Fluent:
        return Fluent(**self._choices | choices)

    def by(self, *names: str) -> Fluent:
        """Name the arguments that make the same work; none for one job per task."""
        return self._with(by=names)

    def key(self, key: str | Callable[..., object]) -> Fluent:
        """Give the key as a string or as a function of the arguments."""
        return self._with(key=key)

    def per_queue(self) -> Fluent:
        """Make the queue a part of the key."""
        return self._with(queue=True)

    def meta(self, *names: str) -> Fluent:
        """Make fields of the metadata a part of the key."""
        return self._with(meta=names)

    def family(self, name: str) -> Fluent:
        """Share the key with other tasks of this family."""
        return self._with(family=name)

    def until(self, until: Until) -> Fluent:
        """Hold the key until "start", "finish", "failure" or "forever"."""
        return self._with(until=until)

    def states(self, *states: State | str) -> Fluent:
        """Hold the key in exactly these states."""
        return self._with(states=states)

    def within(self, window: Duration) -> Fluent:
        """Hold the key for at most this long."""
        return self._with(within=window)

    def or_keep(self) -> Fluent:
        """Let a duplicate get the existing job."""
        return self._with(on_conflict="keep")

    def or_reject(self) -> Fluent:
        """Reject a duplicate: its request raises Duplicate."""
        return self._with(on_conflict="reject")

    def or_update(self, *also: str) -> Fluent:
        """Let a duplicate overwrite the waiting job's payload.

        Args:
            *also: What else it overwrites: "queue", "priority", "time", "place", "retry", "timeout".
        """
        return self._with(on_conflict="update", fields=also)

    def or_replace(self, *, keep_schedule: bool = False) -> Fluent:
        """Let a duplicate take the waiting job's place.

        Args:
            keep_schedule: Whether it runs at the time of the job that it replaces.
        """
        return self._with(on_conflict="replace", keep_schedule=keep_schedule)

    def while_active(self, on_active: OnActive) -> Fluent:
        """Choose what a request does while the holder runs.

        Args:
            on_active: "keep", "reject", "rerun" afterwards, or "cancel" the run.
        """
        return self._with(on_active=on_active)

    def version(self, name: str) -> Fluent:
        """Let the highest value of this argument win; a request with a lower one is stale."""
        return self._with(version=name)

    def merge(self, how: Mapping[str, str | Reducer] | Reducer, *, cap: int = 1000) -> Fluent:
        """Combine payloads instead of overwriting them.

        Args:
            how: A reducer for each argument, such as {"ids": "union"}, or a function of both payloads.
            cap: The largest number of items that a merged argument may have.
        """
        return self._with(merge=how, merge_cap=cap)

    def debounce(self, wait: Duration, max_wait: Duration | None = None) -> Fluent:
        """Run with the last payload when no request has arrived for a while.

        Args:
            wait: How long no request may arrive before the job runs.
            max_wait: How long after the first request the job runs at the latest; None means no limit.
        """
        return self._with(on_conflict="update", wait=wait, max_wait=max_wait)

    def throttle(self, every: Duration, edges: Edges = "first") -> Fluent:
        """Admit one job per key and window.

        Args:
            every: The length of the window, which begins with the first request.
            edges: "first" runs the first request of a window; "first+last" also the last one, at its end.
        """
        return self._with(until="forever", within=every, edges=edges)

    def bump(self) -> Fluent:
        """Let a duplicate raise the waiting job's priority or bring its time forward."""
        return self._with(bump=True)

    def or_mismatch_error(self) -> Fluent:
        """Reject a request that has the same key but another payload."""
        return self._with(on_mismatch="error")

    def demand(self, strength: Strength) -> Fluent:
        """Refuse stores that guarantee less than this."""
        return self._with(strength=strength)

    def in_shadow(self) -> Fluent:
        """Decide and count, but admit every request."""
        return self._with(shadow=True)


unique = Fluent()


def policy_of(value: Unique | Fluent | bool | None) -> Unique | None:  # noqa: FBT001 - unique=True is the shortest policy
    """Return a policy that is given in any of its forms; None for False and None."""
    if isinstance(value, Fluent):
        return value.policy
    if isinstance(value, bool):
        return Unique() if value else None
    if value is not None and not isinstance(value, Unique):
        raise InvalidPolicy(f"unique={value!r} is no policy: write {instead_of_policy(value)}.")
    return value


def instead_of_policy(value: Any) -> str:
    """Return what to write instead of a value that is no policy."""
    match value:
        case str() | list() | tuple():
            return f"Unique(by={value!r})"
        case _ if callable(value) and getattr(value, "__qualname__", "").startswith("Unique"):
            return f"{value.__qualname__}(…)"
        case _:
            return "Unique(by=…), unique.by(…) or True"
