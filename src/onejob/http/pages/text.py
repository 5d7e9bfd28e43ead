"""Numbers, times, ids and JSON as the pages show them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from onejob import Job, QueueStatus, State

THIN = "\u202f"  # a narrow space that does not break
SEALED = {"onejob:sealed"}
ID = 36  # characters of a job's id
LONGEST = 4000  # characters of a value that a page shows
UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
ENDED = {State.COMPLETED, State.CANCELLED, State.DISCARDED}


def number(value: float) -> str:
    """Return a number with thin spaces between thousands."""
    return f"{round(value):,}".replace(",", THIN)


def rate(value: float) -> str:
    """Return a number of events per minute, with a digit after the point below ten."""
    return number(value) if value >= 10 or value == round(value) else f"{value:.1f}"  # noqa: PLR2004 - two digits


def span(value: timedelta | float | None) -> str:
    """Return a duration in two units at most."""
    if value is None:
        return ""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds < 1:
        return f"<1{THIN}ms" if 0 < seconds < 0.001 else f"{seconds * 1000:.0f}{THIN}ms"  # noqa: PLR2004
    if seconds < 10:  # noqa: PLR2004 - then a tenth of a second matters
        return f"{seconds:.1f}{THIN}s"
    for position, (unit, size) in enumerate(UNITS):
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            if unit == "s":
                return f"{whole}{THIN}s"
            smaller, smaller_size = UNITS[position + 1]
            return f"{whole}{THIN}{unit} {rest // smaller_size:02d}{THIN}{smaller}"
    return "0"


def away(moment: datetime | None) -> str:
    """Return how far away a time is."""
    if moment is None:
        return ""
    distance = moment - datetime.now(UTC)
    if abs(distance) < timedelta(seconds=1):
        return "now"
    whole = abs(distance) // timedelta(seconds=1)
    away_by = f"{whole}{THIN}s" if whole < 60 else span(whole)  # noqa: PLR2004 - a minute
    return f"in {away_by}" if distance > timedelta(0) else f"{away_by} ago"


def stamp(moment: datetime | None) -> str:
    """Return a time as ISO 8601 in UTC."""
    return "" if moment is None else moment.astimezone(UTC).isoformat(timespec="milliseconds")


def utc(moment: datetime | None) -> str:
    """Return a time in UTC for people."""
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def short(name: str) -> str:
    """Return the beginning of an id or key, and digits that tell it from its neighbours."""
    if len(name) == ID:  # the last four digits are those of its key, so equal for all jobs of a key
        return f"{name[:4]}…{name[-8:-4]}"
    return name if len(name) < ID else f"{name[:4]}…{name[-4:]}"


def file_name(line: str) -> str:
    """Return a line of code without the folders of its file: views.py:31."""
    return re.split(r"[/\\]", line)[-1]


def key_text(key: bytes | str | None) -> str:
    """Return a key in hexadecimal digits."""
    return "" if key is None else key if isinstance(key, str) else key.hex()


def plain(value: object) -> str:
    """Return a value as JSON on one line, exactly; a sealed one as a word."""
    if isinstance(value, dict) and value.keys() == SEALED:
        return "sealed"
    return cut(json.dumps(value, ensure_ascii=False, default=str))


def pretty(value: object) -> str:
    """Return a value as indented JSON."""
    if isinstance(value, dict) and value.keys() == SEALED:
        return "sealed"
    return cut(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def cut(text: str, longest: int = LONGEST) -> str:
    """Return a text, shortened if it is very long."""
    return (
        text if len(text) <= longest else f"{text[:longest]}… ({number(len(text) - longest)} more characters)"
    )


def arguments(job: Job) -> dict[str, Any]:
    """Return a job's arguments as JSON values; integers of any size stay exact."""
    found: dict[str, Any] = json.loads(job.args) if job.args else {}
    return found


def summary(job: Job) -> str:
    """Return a job's arguments in one line: customer_id = 4711."""
    if job.is_tombstone:
        return "pruned"
    if job.is_sealed:
        return "sealed"
    pairs = (f"{name} = {plain(value)}" for name, value in arguments(job).items())
    return cut(", ".join(pairs), 200)


def decode_json(value: bytes | None) -> Any:
    """Return stored JSON as a value."""
    return None if value is None else json.loads(value)


def policy_of(job: Job) -> str:
    """Return when a hold ends, in words."""
    if job.is_successor:
        return "after the holder"
    if job.holds_until is not None:
        return away(job.holds_until)
    held = {state for position, state in enumerate(State) if job.holds >> position & 1}
    if State.ACTIVE not in held:
        return "when it starts"
    if not held & ENDED:
        return "when it ends"
    return "never" if job.is_terminal or State.DISCARDED in held else "if it fails"


def ending(job: Job) -> str:
    """Return when a holder's hold ends, as a sentence."""
    if job.holds_until is not None:
        return f"The hold ends {away(job.holds_until)}."
    return "The hold does not end by itself." if job.is_terminal else "The hold ends with the job."


def limits(status: QueueStatus) -> str:
    """Return the limits of a queue, beside its concurrency."""
    queue = status.queue
    found = [
        f"{queue.partition_concurrency} at once per partition" if queue.partition_concurrency else "",
        f"{queue.rate}".replace("/", " per ", 1) if queue.rate else "",
        f"at most {number(queue.max_depth)} waiting" if queue.max_depth else "",
    ]
    return " · ".join(filter(None, found))


def plural(count: int, noun: str) -> str:
    """Return a number with its noun: 1 job, 2 jobs."""
    return f"{number(count)} {noun if count == 1 else f'{noun}s'}"


FILTERS = {
    "number": number,
    "rate": rate,
    "span": span,
    "away": away,
    "stamp": stamp,
    "utc": utc,
    "short": short,
    "file_name": file_name,
    "hexadecimal": key_text,
    "plain": plain,
    "pretty": pretty,
    "cut": cut,
    "summary": summary,
    "arguments": arguments,
    "decoded": decode_json,
    "frees": policy_of,
    "ending": ending,
    "limits": limits,
    "plural": plural,
}
