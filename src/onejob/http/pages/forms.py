"""Read a form that one of our own pages sent."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request

from onejob.http.guard import equal
from onejob.http.pages.state import state_of

LARGEST = 256 * 1024  # bytes of a form


class Form:
    """The fields of a form."""

    def __init__(self, fields: dict[str, list[str]]) -> None:
        self._fields = fields

    def one(self, name: str) -> str:
        """Return a field's value; empty if it is missing."""
        return self._fields.get(name, [""])[0].strip()

    def all(self, name: str) -> list[str]:
        """Return every value of a field."""
        return self._fields.get(name, [])


async def form_of(request: Request) -> Form:
    """Return the fields of a form; raise a 403 unless it carries the value that only our pages contain."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST:
            raise HTTPException(413, "The form is too large.")
    form = Form(parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True))
    if not equal(form.one("csrf"), state_of(request).rules.sign("form")):
        raise HTTPException(403, "The form is out of date: load the page again and repeat the action.")
    return form
