"""A shop on FastAPI: a worker in the server's process, a dependency, and the dashboard under /jobs."""

from typing import Annotated, Any

from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient

from onejob import App, Unique
from onejob.http import dashboard
from onejob.integrations.starlette import get_app, lifespan

app = App("memory://")


@app.task(unique=Unique(by="customer_id"))
async def send_invoice(customer_id: int) -> str:
    """Return what was sent."""
    return f"invoice for {customer_id}"


board = dashboard(app, token="a long secret", hosts=["testserver"])  # noqa: S106 - it protects nothing
site = FastAPI(lifespan=lifespan(app, worker={"concurrency": 4}, dashboard=board))
site.mount("/jobs", board)


@site.post("/invoices/{customer_id}")
async def invoice(customer_id: int) -> dict[str, str]:
    """Enqueue, and return the result."""
    admission = await send_invoice.enqueue(customer_id)
    return {"job": admission.job.id, "result": await admission.result(timeout=10)}


@site.get("/stats")
async def stats(jobs: Annotated[App, Depends(get_app)]) -> dict[str, Any]:
    """Count jobs by state."""
    return {str(state): number for state, number in (await jobs.stats()).by_state.items() if number}


if __name__ == "__main__":
    with TestClient(site) as client:
        print("result:", client.post("/invoices/7").json()["result"])
        print("stats:", client.get("/stats").json())
        print("dashboard without its token:", client.get("/jobs/").status_code)
        signed_in = client.get("/jobs/", headers={"Authorization": "Bearer a long secret"})
        print("dashboard:", signed_in.status_code, "Overview" in signed_in.text)
