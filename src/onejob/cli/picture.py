"""The picture that `onejob top` shows: what is read from the store at one moment, and the last minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onejob import App, Job, Recent, Stats, WorkerStatus

MINUTE = timedelta(seconds=60)
ENDS = {"completed", "cancelled", "discarded", "retryable"}
HOLDS = 200  # held keys that are read, the newest and the busy ones
EVENTS = 10_000  # of one look


@dataclass(frozen=True)
class LastMinute:
    """What happened in the last minute, as far as it was seen."""

    created: int = 0
    absorbed: int = 0
    ended: Sequence[int] = field(default=(0,) * 60)  # runs and jobs that ended, per second, oldest first
    is_complete: bool = True


@dataclass(frozen=True)
class Picture:
    """An app at one moment."""

    at: datetime
    stats: Stats
    workers: Sequence[WorkerStatus]
    holds: Sequence[tuple[Job, int]]  # with the requests that each absorbed, most first
    minute: LastMinute


class Reader:
    """Reads one picture after the other, and remembers the events of the last minute."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._look: Recent | None = None
        self._events: list[tuple[datetime, str, int]] = []  # time, kind and number
        self._incomplete_at: datetime | None = None

    async def read(self) -> Picture:
        """Return the picture of this moment."""
        stats = await self._app.stats()
        workers = await self._app.activity.workers()
        absorbed = await self._app.absorbed()
        held = [(job, absorbed.get(job.id, 0)) for job in await self._app.activity.held(limit=HOLDS)]
        held.sort(key=lambda one: (-one[1], one[0].id))
        self._look = await self._app.activity.recent(since=self._look, limit=EVENTS)
        return Picture(self._look.at, stats, workers, held, self._minute(self._look))

    def _minute(self, look: Recent) -> LastMinute:
        now = look.at  # the store's clock has set the times of the events
        self._events += [(event.at, event.kind, event.times) for event in look.events]
        self._events = [one for one in self._events if now - one[0] < MINUTE]
        if not look.is_complete:
            self._incomplete_at = now
        ended = [0] * 60
        for at, kind, number in self._events:
            if kind in ENDS:
                ended[59 - max((now - at) // timedelta(seconds=1), 0)] += number
        return LastMinute(
            self._count("created"),
            self._count("deduplicated"),
            ended,
            self._incomplete_at is None or now - self._incomplete_at >= MINUTE,
        )

    def _count(self, wanted: str) -> int:
        return sum(number for _, kind, number in self._events if kind == wanted)


def document(picture: Picture) -> dict[str, Any]:
    """Return a picture as JSON values."""
    import msgspec

    minute = picture.minute
    return {
        "at": picture.at.isoformat(),
        "stats": picture.stats.as_dict(),
        "last_minute": {
            "created": minute.created,
            "absorbed": minute.absorbed,
            "ended": sum(minute.ended),
            "ended_by_second": list(minute.ended),
            "is_complete": minute.is_complete,
        },
        "workers": msgspec.to_builtins(picture.workers),
        "holds": [
            {
                "key": job.key.hex() if job.key else None,
                "job": job.id,
                "task": job.task,
                "state": str(job.state),
                "absorbed": number,
            }
            for job, number in picture.holds
        ],
    }
