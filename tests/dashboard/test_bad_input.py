"""Whatever is written into an address or a form is answered by a sentence in place, never by a traceback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from onejob import App
from onejob.http import dashboard
from tests.chaos.proxy import Proxy, through
from tests.dashboard.shop import Client, fill, make_shop

# Values that some layer may not expect: a store's text, Unicode, a number's range, a path, quotation marks.
BAD = (
    *("", " ", "0", "-1", "x", "'", '"', "\\", "%", "../..", "\x00", "a\x00b", "\ud800", "\uffff", "٣٤٥٦"),
    *(
        "9" * 40,
        "01a1",
        "f" * 64,
        "F" * 64,
        "g" * 64,
        "a" * 5000,
        "task:",
        "state:?",
        'args.x:"',
        "is:",
        "=",
        "{}",
    ),
    *(
        "send_invoice order=",
        "send_invoice order=x",
        "send_invoice nothing=1",
        "nothing",
        "[",
        "null",
        "1e999",
    ),
)
PATHS = (
    *(
        "/jobs?q={}",
        "/jobs?before={}",
        "/jobs?q=state:completed&before={}",
        "/jobs?q=task:{}",
        "/jobs?q=queue:{}",
    ),
    *("/jobs?q=id:{}", "/jobs?q=key:{}", "/jobs?q=args.order:{}", "/jobs?q=args.{}:1", "/jobs?note={}"),
    *("/jobs/{}", "/jobs/confirm?act=cancel&id={}", "/jobs/confirm?act=cancel&q={}", "/jobs/confirm?act={}"),
    *(
        "/keys/{}",
        "/chains/{}",
        "/why?q={}",
        "/why?a={}&b={}",
        "/dedup?by={}",
        "/dead?task={}",
        "/dead?error={}",
    ),
    *("/system?examine={}", "/queues?x={}", "/workers?{}", "/cron?{}", "/{}", "/static/{}"),
)
FORMS = {
    "/queues": ("queue", "act"),
    "/cron": ("name", "act"),
    "/dead/replay": ("task", "error"),
    "/jobs/act": ("act", "q", "id"),
    "/jobs/{}/cancel": (),
    "/jobs/{}/delete": (),
    "/jobs/{}/replay": ("args",),
    "/keys/{}/release": ("job", "reason"),
    "/keys/{}/force": (),
    "/chains/{}/cancel": (),
    "/sign-in": ("token",),
}
REFUSED = {400, 404}  # beside 200 and a redirection


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL"}
    url = urls.get(request.param) or request.getfixturevalue(f"{request.param}_url")
    async with make_shop(url) as made:
        await fill(made)
        yield made


def written(value: str) -> str:
    """Return a value as it stands in an address."""
    return quote(value, safe="", errors="surrogatepass")


async def test_no_address_leads_to_a_traceback(app: App, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(dashboard(app))
    for path in PATHS:
        for value in BAD:
            response = await client.get(path.replace("{}", written(value)))
            found = (path, value, response.status_code, response.text[-300:])
            assert response.status_code in {200, 303, 307, *REFUSED, *({405} if value == "" else set())}, (
                found
            )
            assert "Traceback" not in response.text, found
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_no_form_leads_to_a_traceback(app: App, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(dashboard(app))
    csrf = await client.csrf("/queues")
    for path, names in FORMS.items():
        for value in BAD:
            fields = dict.fromkeys(names, value)
            place = path.replace("{}", written(value))
            body = "&".join(f"{name}={written(text)}" for name, text in [("csrf", csrf), *fields.items()])
            kind = {"content-type": "application/x-www-form-urlencoded"}
            response = await client.http.post(place, content=body, headers=kind)
            found = (path, value, response.status_code, response.text[-300:])
            assert response.status_code in {200, 303, 401, 405, *REFUSED}, found
            assert "Traceback" not in response.text, found
            if response.status_code == 303 and "note=" in response.headers["location"]:
                assert 'class="note' in (await client.get(response.headers["location"])).text, found
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


# ── a store that goes away ────────────────────────────────────────────────────────────────────────

EVERY = (
    *("/", "/jobs", "/jobs?q=state:active", "/dedup", "/dedup?by=log", "/why?q=send_invoice order=7"),
    *("/chains", "/queues", "/cron", "/workers", "/dead", "/system", "/metrics"),
)


@pytest.fixture(params=["postgres", "redis"])
def distant(request: pytest.FixtureRequest) -> Iterator[tuple[Proxy, str]]:
    with through(request.getfixturevalue(f"{request.param}_url")) as both:
        yield both


@pytest.mark.parametrize("how", ["refuses", "is silent"])
async def test_a_store_that_goes_away_gets_a_sentence_on_every_page(
    distant: tuple[Proxy, str], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    proxy, url = distant
    async with make_shop(url, store_timeout=0.5) as app:
        await fill(app)
        site = dashboard(app)
        client = Client(site)
        letter, holder = (await app.jobs(state="discarded"))[0], (await app.jobs(task="send_invoice"))[0]
        assert holder.key is not None
        forms = {"csrf": await client.csrf("/queues"), "queue": "mail", "act": "pause"}
        proxy.close() if how == "refuses" else proxy.silence(new=True)
        site.state.dashboard.sampler.forget()  # what was counted while the store answered
        paths = [*EVERY, f"/jobs/{letter.id}", f"/keys/{holder.key.hex()}", f"/chains/{letter.chain_id}"]
        asked = [
            client.get(path) for path in paths
        ]  # together, as PostgreSQL is given some seconds to return
        answers = await asyncio.gather(*asked, client.http.post("/queues", data=forms))
        for path, answer in zip([*paths, "a form"], answers, strict=True):
            assert answer.status_code == 503, (path, answer.text)
            assert "Traceback" not in answer.text
            assert "works again as soon as the store answers" in answer.text, path
    assert not any("dashboard failed" in record.message for record in caplog.records)


async def test_a_file_that_is_destroyed_gets_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with make_shop(f"sqlite:///{path}") as app:
        await fill(app)
    for name in ("jobs.db-wal", "jobs.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    path.write_bytes(b"nothing of a database" * 1000)
    async with make_shop(f"sqlite:///{path}") as app:
        for place in EVERY:
            answer = await Client(dashboard(app)).get(place)
            assert answer.status_code == 503, (place, answer.text)
            assert "Traceback" not in answer.text
