"""Pay exactly once, even if the worker is killed between the payment and its commit.

    python examples/exactly_once.py

The handler's writes and the completion of its job are one transaction. The first worker is killed after
its writes and before its commit. The second worker rescues the job.
"""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from onejob import App, Unique, current

app = App(os.environ.get("BANK", "memory://"))  # the programs below share one file


@app.task(unique=Unique(by="order", until="forever"))
async def pay(order: int, amount: int) -> int:
    """Take the amount from the account and complete the job, in one transaction."""
    async with current().transaction() as tx:
        tx.execute("UPDATE account SET balance = balance - ?", (amount,))
        tx.execute("INSERT INTO payments VALUES (?, ?)", (order, amount))
        if os.environ.get("DIES"):
            os.kill(os.getpid(), signal.SIGKILL)  # simulate a crash
        left: int = tx.execute("SELECT balance FROM account").fetchone()[0]
        return current().returns(left)


async def work() -> None:
    """Run a worker until the order is paid."""
    async with app, app.worker(lease="500ms"):
        admission = await pay.enqueue(1, 30)
        print(f"asked for order 1: {admission.outcome}")
        print(f"balance as the job returned it: {await admission.result(timeout=30)}")


def main(bank: Path) -> None:
    """Open an account, kill one worker, and let another one pay."""
    with closing(sqlite3.connect(bank, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE account (balance INTEGER)")
        connection.execute("CREATE TABLE payments (number INTEGER, amount INTEGER)")  # without a primary key
        connection.execute("INSERT INTO account VALUES (100)")

        def run(**environment: str) -> int:
            command = [sys.executable, __file__, "work"]
            sys.stdout.flush()
            return subprocess.run(command, env=os.environ | environment, check=False).returncode  # noqa: S603 - ours

        url = f"sqlite:///{bank}"
        print("the first worker was killed:", run(BANK=url, DIES="yes") == -signal.SIGKILL)
        print("it left behind:", connection.execute("SELECT * FROM payments").fetchall())
        run(BANK=url)
        print("payments:", connection.execute("SELECT * FROM payments").fetchall())
        print("balance:", connection.execute("SELECT balance FROM account").fetchone()[0])


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        asyncio.run(work())
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder) / "bank.db")
