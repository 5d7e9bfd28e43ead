"""/health and /ready: for probes, without a token and for any host name, and without names."""

from __future__ import annotations

from pathlib import Path

import pytest

from onejob import App
from onejob.http import dashboard
from onejob.http.pages import readiness
from onejob.stores.memory import MemoryStore
from onejob.testing import Clock
from tests.dashboard.shop import Client

SECRETS = ("send_invoice", "mail", "silent", "default")


@pytest.fixture
def late() -> App:
    """Return an app of which a job is late and no worker is alive."""
    clock = Clock()
    app = App(store=MemoryStore(clock=clock))

    @app.task(queue="mail")
    async def send_invoice(order: int) -> None: ...

    send_invoice.enqueue_sync(7)
    clock.advance("10m")
    return app


async def test_health_says_that_the_process_answers(client: Client) -> None:
    response = await client.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
    assert response.headers["cache-control"] == "no-store"


async def test_health_does_not_ask_the_store(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.write_text("this is no database")
    client = Client(dashboard(App(f"sqlite:///{path}")))
    assert (await client.get("/health")).status_code == 200
    answer = await client.get("/ready")
    assert answer.status_code == 503
    [finding] = answer.json()["checks"]
    assert (finding["check"], finding["level"]) == ("store", "fail")


async def test_ready_says_that_all_is_well(client: Client) -> None:
    response = await client.get("/ready")
    assert response.status_code == 200
    assert response.json()["status"] == "ok"
    checks = [one["check"] for one in response.json()["checks"]]
    assert checks == ["store", "lateness", "workers", "tasks", "holds", "dead letters"]


async def test_ready_says_what_is_not_well(late: App) -> None:
    response = await Client(dashboard(late)).get("/ready")
    assert response.status_code == 503
    failed = {one["check"]: one["message"] for one in response.json()["checks"] if one["level"] == "fail"}
    assert failed.keys() == {"lateness", "workers"}
    assert "queue mail has waited for 10m, more than 5m" in failed["lateness"]


@pytest.mark.parametrize("read_only", [False, True])
async def test_without_a_token_it_shows_no_names(late: App, *, read_only: bool) -> None:
    client = Client(dashboard(late, token="secret", read_only=read_only))
    for path in ("/health", "/ready"):
        response = await client.get(path)
        assert response.status_code in {200, 503}
        assert not any(word in response.text for word in SECRETS)
    assert {"check": "lateness", "level": "fail"} in response.json()["checks"]
    shown = await client.get("/ready", authorization="Bearer secret")
    assert "queue mail" in shown.text


async def test_a_probe_asks_by_address_and_a_foreign_page_learns_no_names(late: App) -> None:
    client = Client(dashboard(late))
    for path in ("/health", "/ready"):
        response = await client.get(path, host="10.1.2.3:8080")
        assert response.status_code in {200, 503}
        assert not any(word in response.text for word in SECRETS)
    assert (await client.get("/", host="10.1.2.3:8080")).status_code == 400


@pytest.mark.parametrize("path", ["/healthy", "/ready/", "/health/x"])
async def test_other_paths_need_the_token(app: App, path: str) -> None:
    client = Client(dashboard(app, token="secret"))
    assert (await client.get(path, accept="text/plain")).status_code == 401


async def test_a_post_changes_nothing(app: App) -> None:
    client = Client(dashboard(app, token="secret"))
    assert (await client.http.post("/ready", headers={"accept": "text/plain"})).status_code == 401


async def test_many_probes_ask_the_store_once(late: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "FRESH", 60.0)
    client = Client(dashboard(late))
    assert (await client.get("/ready")).status_code == 503
    await late.worker(drain=True).run()
    assert (await client.get("/ready")).status_code == 503
    assert (await Client(dashboard(late)).get("/ready")).status_code == 200
