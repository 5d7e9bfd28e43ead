"""Tasks of Django's own Tasks framework, which onejob runs."""

from datetime import date
from typing import Any

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


@task(queue_name="mail", priority=5)
def greet(name: str) -> str:
    """Return a greeting."""
    return f"Hello {name}"


@task(takes_context=True)
async def count(context: Any, numbers: list[int]) -> int:
    """Return a sum, and the number of this attempt."""
    return sum(numbers) + int(context.attempt)


@task
def remind(day: date, note: str = "") -> str:
    """Return a reminder; the day comes as JSON, which is text."""
    return f"{day}: {note}"


@task
def fail() -> None:
    """Raise."""
    raise ValueError("no stock")
