"""Sign in: exchange the token for a cookie that is not the token."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from onejob.http.guard import COOKIE, WEEK, equal
from onejob.http.pages.forms import form_of
from onejob.http.pages.render import base_of, environment
from onejob.http.pages.state import state_of


async def sign_in(request: Request) -> Response:
    """Ask for the token, or accept it."""
    rules = state_of(request).rules
    if request.method != "POST":
        return show(request, "")
    form = await form_of(request)
    if rules.token is not None and not equal(form.one("token"), rules.token):
        return show(request, "That is not the token of this server.", 401)
    response = RedirectResponse(f"{base_of(request)}/", 303)
    response.set_cookie(
        COOKIE,
        rules.sign("cookie"),
        max_age=WEEK,
        path=base_of(request) or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


def show(request: Request, problem: str, status: int = 200) -> Response:
    """Return the form."""
    html = (
        environment()
        .get_template("sign_in.html")
        .render(base=base_of(request), problem=problem, csrf=state_of(request).rules.sign("form"))
    )
    return Response(html, status, media_type="text/html")
