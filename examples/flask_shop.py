"""A shop on Flask: views enqueue without await, and the dashboard is mounted through a bridge."""

from a2wsgi import ASGIMiddleware
from flask import Flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from onejob import App, Unique
from onejob.http import dashboard

app = App("memory://")
site = Flask(__name__)


@app.task(unique=Unique(by="customer_id"))
def send_invoice(customer_id: int) -> str:
    """Return what was sent."""
    return f"invoice for {customer_id}"


@site.post("/invoices/<int:customer_id>")
def invoice(customer_id: int) -> dict[str, object]:
    """Enqueue, and say whether the request made a job."""
    admission = send_invoice.enqueue_sync(customer_id)
    return {"job": admission.job.id, "deduplicated": admission.deduplicated}


pages = dashboard(app, token="a long secret", hosts=["localhost"])  # noqa: S106 - it protects nothing
board = ASGIMiddleware(pages)  # type: ignore[arg-type] # a2wsgi has types of its own for ASGI
site.wsgi_app = DispatcherMiddleware(site.wsgi_app, {"/jobs": board})  # type: ignore[dict-item,method-assign]

if __name__ == "__main__":
    client = site.test_client()
    first, second = client.post("/invoices/7").json, client.post("/invoices/7").json
    assert first is not None
    assert second is not None
    print("the same job:", first["job"] == second["job"], second["deduplicated"])
    app.run_worker(drain=True)
    print("state:", str(app.job_sync(first["job"]).state))
    print("dashboard without its token:", client.get("/jobs/", buffered=True).status_code)
    signed_in = client.get("/jobs/", buffered=True, headers={"Authorization": "Bearer a long secret"})
    print("dashboard:", signed_in.status_code, "Overview" in signed_in.text)
    app.close_sync()
