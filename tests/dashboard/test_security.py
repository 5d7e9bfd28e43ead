"""Who may ask, who may change something, and what a page may load."""

from __future__ import annotations

import pytest

from onejob import App
from onejob.errors import InvalidCall
from onejob.http import dashboard
from onejob.http.serve import check_bind, hosts_for
from tests.dashboard.shop import PATHS, Client, fill, shape


@pytest.mark.parametrize("path", [*PATHS, "/static/dashboard.css", "/nonsense", "/jobs?q=state:x"])
async def test_every_response_has_a_strict_policy(client: Client, path: str) -> None:
    headers = (await client.get(path)).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "same-origin"


@pytest.mark.parametrize("path", PATHS)
async def test_no_page_has_inline_script_or_style(full: Client, path: str) -> None:
    for tag, names, *_ in shape(await full.text(path)):
        assert tag != "style"
        assert "style" not in names
        assert not any(name.startswith("on") for name in names)
        assert tag != "script" or "src" in names


# ── the host ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "[::1"])
async def test_a_foreign_host_name_is_refused(client: Client, host: str) -> None:
    response = await client.get("/", host=host)
    assert response.status_code == 400
    assert "does not answer to the host name" in response.text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8080", "localhost:1", "[::1]:8080", "LOCALHOST"])
async def test_a_loopback_name_is_answered(client: Client, host: str) -> None:
    assert (await client.get("/", host=host)).status_code == 200


# ── where it listens ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "shop.example", ""])  # noqa: S104 - refused
def test_an_address_that_others_reach_needs_a_token(host: str) -> None:
    with pytest.raises(InvalidCall, match="write --token, or --host"):
        check_bind(host, None)
    check_bind(host, "secret")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "localhost", "::1"])
def test_a_loopback_address_needs_none(host: str) -> None:
    check_bind(host, None)
    assert host in hosts_for(host, ())


async def test_all_hosts_without_a_token_are_refused() -> None:
    async with App("memory://") as app:
        with pytest.raises(InvalidCall, match="needs a token"):
            dashboard(app, hosts=["*"])


# ── changes ───────────────────────────────────────────────────────────────────────────────────────

ACTIONS = (
    "/queues",
    "/cron",
    "/dead/replay",
    "/jobs/act",
    f"/keys/{'ab' * 32}/release",
    f"/keys/{'ab' * 32}/force",
    "/chains/x/cancel",
    "/jobs/x/cancel",
    "/jobs/x/delete",
    "/jobs/x/replay",
)


@pytest.mark.parametrize("path", ACTIONS)
async def test_a_form_without_our_value_changes_nothing(app: App, full: Client, path: str) -> None:
    before = (await app.stats()).by_queue
    for data in ({}, {"csrf": "0" * 64}, {"csrf": ""}):
        response = await full.http.post(path, data={"queue": "mail", "act": "pause", **data})
        assert response.status_code == 403
    assert await app.queues.paused() == {"sync"}
    assert (await app.stats()).by_queue == before


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
async def test_a_form_from_another_site_changes_nothing(
    app: App, full: Client, headers: dict[str, str]
) -> None:
    data = {"csrf": await full.csrf("/queues"), "queue": "mail", "act": "pause"}
    response = await full.http.post("/queues", data=data, headers=headers)
    assert response.status_code == 403
    assert await app.queues.paused() == {"sync"}


async def test_a_form_of_our_own_origin_is_accepted(full: Client) -> None:
    data = {"csrf": await full.csrf("/queues"), "queue": "mail", "act": "pause"}
    headers = {"origin": "http://127.0.0.1", "sec-fetch-site": "same-origin"}
    assert (await full.http.post("/queues", data=data, headers=headers)).status_code == 303


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_other_methods_are_refused(client: Client, method: str) -> None:
    assert (await client.http.request(method, "/queues")).status_code == 405


async def test_a_very_large_form_is_refused(client: Client) -> None:
    response = await client.http.post("/queues", data={"csrf": "x" * 300_000})
    assert response.status_code == 413


async def test_read_only_shows_no_form_and_accepts_none(app: App) -> None:
    await fill(app)
    writable, client = Client(dashboard(app)), Client(dashboard(app, read_only=True))
    job = (await app.jobs(state="discarded"))[0]
    assert job.key is not None
    for path in (*PATHS, f"/jobs/{job.id}", f"/keys/{job.key.hex()}"):
        assert 'method="post"' not in await client.text(path)
    data = {"csrf": await writable.csrf("/queues"), "queue": "mail", "act": "pause"}
    response = await client.http.post("/queues", data=data)
    assert response.status_code == 403
    assert "read-only" in response.text
    assert await app.queues.paused() == {"sync"}


# ── the token ─────────────────────────────────────────────────────────────────────────────────────


async def test_without_the_token_nothing_is_shown(app: App) -> None:
    await fill(app)
    client = Client(dashboard(app, token="secret"))
    for path in (*PATHS, "/live", "/nonsense"):
        response = await client.get(path)
        assert (response.status_code, response.headers["location"]) == (303, "/sign-in")
        response = await client.get(path, accept="application/json")
        assert response.status_code == 401
    wrong = await client.get("/", authorization="Bearer wrong")
    assert (wrong.status_code, wrong.text) == (401, "That is not the token of this server.")
    assert (await client.get("/", authorization="Bearer secret")).status_code == 200


async def test_signing_in_gives_a_cookie_that_is_not_the_token(app: App) -> None:
    client = Client(dashboard(app, token="secret"))
    csrf = await client.csrf("/sign-in")
    wrong = await client.http.post("/sign-in", data={"csrf": csrf, "token": "wrong"})
    assert (wrong.status_code, "not the token" in wrong.text) == (401, True)
    right = await client.http.post("/sign-in", data={"csrf": csrf, "token": "secret"})
    cookie = right.headers["set-cookie"]
    assert "secret" not in cookie.partition(";")[0]
    assert {"HttpOnly", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
    assert (await client.get("/")).status_code == 200
