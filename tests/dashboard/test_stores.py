"""Every page answers on every store, with the same jobs."""

from __future__ import annotations

import pytest

from onejob.http import dashboard
from tests.dashboard.shop import PATHS, Client, fill, make_shop


@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_the_pages_answer_on_a_server(request: pytest.FixtureRequest, kind: str) -> None:
    async with make_shop(request.getfixturevalue(f"{kind}_url")) as app:
        await fill(app)
        client = Client(dashboard(app))
        letter, holder = (await app.jobs(state="discarded"))[0], (await app.jobs(task="send_invoice"))[0]
        assert holder.key is not None
        for path in (
            *PATHS,
            f"/jobs/{letter.id}",
            f"/keys/{holder.key.hex()}",
            "/why?q=send_invoice order=7",
        ):
            await client.text(path)
        assert "holds this key" in await client.text(f"/keys/{holder.key.hex()}")
        html = await client.post(
            "/jobs/act", "/jobs/confirm?act=cancel&q=task:sync_customer", act="cancel", q="task:sync_customer"
        )
        assert "4 jobs cancelled." in html
