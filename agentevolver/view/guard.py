"""Who may look, and who may change something.

The page is meant for one person at one machine. On loopback, everybody on the machine may look; a web page of somebody else's may not:

* A `Host` header that does not mean this machine is refused, so that no foreign name can be pointed here (DNS rebinding).
* What changes something needs the token that only the page itself can read, and an `Origin`, where one is sent, that is the page's own.

Beyond loopback, everything needs the token: `?token=...` once, a cookie from then on.
"""

from __future__ import annotations

import hmac
import secrets
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from agentevolver.launcher.health import is_loopback

TOKEN_VARIABLE = "VIEW_TOKEN"
HEADER = "x-view-token"
COOKIE = "view_token"
OPEN_PATHS = frozenset({"/healthz"})
SAFE_METHODS = frozenset({"GET", "HEAD"})
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Guard:
    """Decides about requests. `token` is made up if none is given."""

    def __init__(self, host: str, token: str = "") -> None:
        self.token = token or secrets.token_urlsafe(24)
        self._local = is_loopback(host)

    @property
    def needs_login(self) -> bool:
        """Whether looking needs the token too."""
        return not self._local

    def refuse(self, request: Request) -> Response | None:
        """Return the answer to a request that is not to be served, None if it is."""
        if request.url.path in OPEN_PATHS:
            return None
        if self._local and not is_loopback(_hostname(request.headers.get("host", ""))):
            return _refusal(421, "this server answers to 127.0.0.1 and localhost only")
        if self.needs_login:
            given = request.query_params.get("token")
            if given is not None and self._fits(given) and request.method == "GET":
                answer = RedirectResponse(request.url.path, status_code=303)
                answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
                return answer
            if not self._fits(request.cookies.get(COOKIE, "")) and not self._fits(request.headers.get(HEADER, "")):
                return _refusal(401, "open the address that was printed when the server started, the one with ?token=")
        if request.method in SAFE_METHODS:
            return None
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            return _refusal(403, "this request comes from another page")
        if not self._fits(request.headers.get(HEADER, "")):
            return _refusal(403, f"changing something needs the header {HEADER}")
        return None

    def _fits(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())


def harden(headers: MutableHeaders) -> None:
    """Add to an answer what keeps a browser from doing more with it than to show it."""
    headers["content-security-policy"] = _POLICY
    headers["x-content-type-options"] = "nosniff"
    headers["referrer-policy"] = "no-referrer"
    headers["cross-origin-resource-policy"] = "same-origin"
    headers["cache-control"] = "no-cache"


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _refusal(status: int, detail: str) -> Response:
    return JSONResponse({"detail": detail}, status_code=status)
