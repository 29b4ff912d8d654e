"""What keeps the server safe: headers, a token where it is reachable from other machines, and no foreign origin."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl, urlencode, urlsplit

from fastapi import Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

__all__ = ["HEADERS", "LOOPBACK", "Guard"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TOKEN_COOKIE = "sightline_token"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Guard:
    """Middleware: refuses foreign hosts and origins, asks for the token, and puts the headers on every answer.

    Args:
        hosts: names that the server may be called by; None for any, which needs a token.
        token: what a visitor from another machine must know; None on loopback.
    """

    def __init__(self, hosts: tuple[str, ...] | None, token: str | None) -> None:
        self.hosts, self.token = hosts, token

    async def __call__(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """Answer a request, or refuse it."""
        response = self._refusal(request) or self._admission(request) or await call_next(request)
        for name, value in HEADERS.items():
            response.headers[name] = value
        return response

    def _refusal(self, request: Request) -> Response | None:
        """Refuse a name that is not this machine's (a page elsewhere that points its name here), or another origin."""
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname
        if self.hosts is not None and host not in self.hosts:
            return _no(421, "this server answers on its own machine only; start it with --host and --token")
        origin = request.headers.get("origin")
        if request.method not in ("GET", "HEAD") and origin and urlsplit(origin).netloc != request.headers.get("host"):
            return _no(403, "a page from elsewhere may not use this server")
        return None

    def _admission(self, request: Request) -> Response | None:
        """Ask for the token, if there is one; a token in the address becomes a cookie."""
        if self.token is None:
            return None
        given = request.query_params.get("token")
        if given is not None and request.method == "GET" and self._fits(given):
            rest = [pair for pair in parse_qsl(request.url.query) if pair[0] != "token"]
            response = RedirectResponse(request.url.path + (f"?{urlencode(rest)}" if rest else ""), status_code=303)
            response.set_cookie(TOKEN_COOKIE, given, httponly=True, samesite="strict")
            return response
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._fits(bearer) or self._fits(request.cookies.get(TOKEN_COOKIE, "")):
            return None
        return _no(401, "this server asks for a token; open the address that `sightline app` printed")

    def _fits(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), (self.token or "").encode())


def _no(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status_code=status)
