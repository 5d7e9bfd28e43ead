"""Run tasks on a schedule: once per tick, correct when clocks change, with a rule for missed ticks.

    python examples/schedules.py

This example moves the clock itself, so that a week takes no time. In your code, leave out `store=`.
"""

import asyncio
from datetime import UTC, datetime

from onejob import App, Unique, current
from onejob.testing import Clock, MemoryStore, drain

clock = Clock(datetime(2026, 3, 28, 0, 0, tzinfo=UTC))  # the day before clocks go forward in Berlin
app = App("memory://", store=MemoryStore(clock=clock))


@app.cron("30 2 * * *", timezone="Europe/Berlin", overlap=Unique.coalesce(), missed="one")
@app.task
async def back_up() -> None:
    """Run every night at half past two, even in the night that skips that time."""
    print("back up for", current().job.metadata["tick"])


async def main() -> None:
    """Let nine nights pass."""
    schedule = await app.schedules.get("back_up")
    print("it runs", schedule.description)
    for moment in schedule.upcoming(clock(), 3):
        print("next:", moment)

    await drain(app)  # a worker sees the schedule for the first time
    for _ in range(2):
        clock.advance("1d")
        await drain(app)

    clock.advance("7d")  # no worker for a week: one run replaces all missed ticks
    await drain(app)
    [standing] = await app.schedules.list()
    print("ticks that came to no job:", dict(standing.absorbed))

    await app.schedules.add("hourly", back_up.call(), every="1h")
    await app.schedules.pause("back_up")
    print("not paused:", [one.name for one in await app.schedules.all() if not one.paused])


if __name__ == "__main__":
    asyncio.run(main())
