"""Which requests are answered: host name, token, origin, read-only mode; and the security headers.

A page on another site can make a browser send requests here. Three things stop it: the Host header must be a
name that was allowed (so a foreign name that resolves to this machine is refused), a POST must come from the
same origin, and its form must carry a value that only our own pages contain.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "onejob"
WEEK = 7 * 86400
OPEN_PATHS = ("/static/", "/sign-in")  # answered without a token
PROBES = ("/health", "/ready")  # answered without a token, and for every host name: a probe asks by address
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",  # with no-referrer, Chromium sends our own forms with "Origin: null"
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True)
class Rules:
    """Who may do what.

    Attributes:
        token: The secret that a browser must present; None if all may look.
        read_only: Whether nothing may be changed.
        hosts: The host names by which the server may be addressed.
        secret: Signs the cookie and the forms; derived from the token, so that several processes agree.
    """

    token: str | None
    read_only: bool
    hosts: frozenset[str]
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def sign(self, purpose: str) -> str:
        """Return a value that only a server with this token can make."""
        key = self.token.encode() if self.token else self.secret
        return hmac.new(key, f"onejob dashboard {purpose}".encode(), "sha256").hexdigest()

    def allows_host(self, host: str) -> bool:
        """Return whether a Host header names an allowed host, on any port."""
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        return "*" in self.hosts or name in self.hosts

    def admits(self, request: Request) -> bool:
        """Return whether a request presents the token, in a header or by the cookie of an earlier visit."""
        if self.token is None:
            return True
        given = request.headers.get("authorization", "")
        return equal(given, f"Bearer {self.token}") or equal(
            request.cookies.get(COOKIE, ""), self.sign("cookie")
        )


def equal(one: str, other: str) -> bool:
    """Compare two texts in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


class Guard:
    """Middleware: refuses what the rules forbid, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, *, rules: Rules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        refusal = self._refuse(request)
        path = request.scope["path"].removeprefix(scope.get("root_path", ""))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if not path.startswith("/static/"):
                    headers["cache-control"] = "no-store"
            await send(message)

        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refuse(self, request: Request) -> Response | None:
        """Return the response of a request that is not answered; None if it may pass."""
        rules, headers = self._rules, request.headers
        base = request.scope.get("root_path", "")
        path = request.scope["path"].removeprefix(base)
        if path in PROBES and request.method in {"GET", "HEAD"}:
            return None
        if not rules.allows_host(headers.get("host", "")):
            return PlainTextResponse(
                f"This server does not answer to the host name {headers.get('host', '')!r}.", 400
            )
        if request.method not in {"GET", "HEAD", "POST"}:
            return PlainTextResponse("Only GET, HEAD and POST are answered.", 405)
        if not rules.admits(request) and not path.startswith(OPEN_PATHS):
            if "authorization" in headers:
                return PlainTextResponse("That is not the token of this server.", 401)
            if request.method == "GET" and "text/html" in headers.get("accept", ""):
                return RedirectResponse(f"{base}/sign-in", 303)
            return PlainTextResponse("A token is needed: send it as Authorization: Bearer.", 401)
        if request.method == "POST":
            return self._refuse_post(path, headers)
        return None

    def _refuse_post(self, path: str, headers: Headers) -> Response | None:
        if headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"} or not is_same_origin(
            headers
        ):
            return PlainTextResponse("A request from another site changes nothing here.", 403)
        if self._rules.read_only and path != "/sign-in":
            return PlainTextResponse("This dashboard is read-only: start it without --read-only.", 403)
        return None


def is_same_origin(headers: Headers) -> bool:
    """Return whether a request's Origin header, if it has one, names the host that it was sent to."""
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
