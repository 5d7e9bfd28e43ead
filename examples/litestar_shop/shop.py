"""A shop on Litestar: the app opens with the server, which also runs a worker; handlers await enqueues."""

from typing import Any

from litestar import Litestar, get, post
from litestar.testing import TestClient

from onejob import App, Unique
from onejob.integrations.starlette import lifespan

app = App("memory://")


@app.task(unique=Unique(by="customer_id"))
async def send_invoice(customer_id: int) -> str:
    """Return what was sent."""
    return f"invoice for {customer_id}"


@post("/invoices/{customer_id:int}")
async def invoice(customer_id: int) -> str:
    """Enqueue, and answer with the result."""
    admission = await send_invoice.enqueue(customer_id)
    return await admission.result(timeout="10s")


@get("/stats")
async def stats() -> dict[str, Any]:
    """Answer how many jobs there are."""
    return (await app.stats()).as_dict()


site = Litestar([invoice, stats], lifespan=[lifespan(app, worker={"concurrency": 4})])

if __name__ == "__main__":
    with TestClient(site) as client:
        print("result:", client.post("/invoices/7").text)
        print("completed:", client.get("/stats").json()["by_state"]["completed"])
