"""The program that the deployment files run: an app whose store is named by the environment."""

import os

from onejob import App, Unique

app = App(os.environ.get("JOBS_URL", "sqlite:///jobs.db"))


@app.task(unique=Unique(by="customer_id"))
async def send_invoice(customer_id: int) -> str:
    """Stand for your work."""
    return f"invoice for customer {customer_id}"
