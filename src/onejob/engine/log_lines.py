"""Log lines for programs: the fields of a line about a job, and lines as JSON objects."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from onejob.core.job import Job
from onejob.core.text import one_line

FIELDS = ("job", "task", "queue", "key", "attempt", "duration", "worker")
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FORMAT_VARIABLE = "ONEJOB_LOG_FORMAT"


def about(job: Job, **more: Any) -> dict[str, Any]:
    """Return what a log line about a job carries as `extra=`; never its arguments."""
    key = None if job.key is None else job.key.hex()
    return {"job": job.id, "task": job.task, "queue": job.queue, "key": key, "attempt": job.attempt} | more


class TextFormatter(logging.Formatter):
    """Lines for people. A traceback is indented and escaped: an error's message cannot forge a line."""

    def __init__(self) -> None:
        super().__init__(LOG_FORMAT)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as logging calls it
        """Return a traceback whose lines look like no line of the log."""
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"    {one_line(line)}" for line in lines)


def escape_traceback(record: logging.LogRecord) -> bool:
    """Write the escaped traceback into a record, from where every formatter takes it; a filter."""
    if record.exc_info and not record.exc_text:
        record.exc_text = TextFormatter().formatException(record.exc_info)
    return True


logging.getLogger("onejob").addFilter(escape_traceback)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the fields of a line about a job."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: vars(record)[name] for name in FIELDS if vars(record).get(name) is not None}
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = type(record.exc_info[1]).__name__
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_formatter(form: str | None = "text") -> logging.Formatter:
    """Return the formatter of `onejob worker`.

    Args:
        form: "json" for one JSON object per line, with the fields of a line about a job; anything else for
            lines that people read, in which no error's message can forge a line.

    Examples:
        >>> handler.setFormatter(log_formatter("json"))
    """
    return JsonFormatter() if form == "json" else TextFormatter()
