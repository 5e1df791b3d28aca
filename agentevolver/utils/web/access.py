"""Access rules of an HTTP server: its names, origins and token."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import parse_qsl, urlsplit

SAFE_METHODS = frozenset({"GET", "HEAD"})
HEALTH_PATHS = frozenset({"/healthz", "/health"})
_TOKEN_CHARACTERS = frozenset(map(chr, range(0x21, 0x7F)))
_AUTHORITY = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")


class AccessRefused(Exception):
    def __init__(self, status: int, detail: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_local(url: str) -> bool:
    # No proxy must be used for such a URL.
    return is_loopback(urlsplit(url).hostname or "")


@lru_cache(maxsize=1024)
def host_name(authority: str) -> str | None:
    """Return the name in a `Host` header without port and brackets, or None if invalid (RFC 9110, 7.2)."""
    found = _AUTHORITY.fullmatch(authority)
    return found["name"].strip("[]") if found else None


@dataclass(frozen=True, slots=True)
class Access:
    """Rules of one server. Raises ValueError for a server beyond loopback without a token."""

    host: str  # the bound address
    token: str = field(default="", repr=False)  # of `Authorization: Bearer`; may be empty on loopback only
    variable: str = ""  # environment variable with the token, for error messages
    open_reading: bool = False  # GET and HEAD need no token on loopback, except `private`
    private: str = ""  # path that needs the token although reading is open
    cookie: str = ""  # cookie with a browser's token, for GET and HEAD; `?token=...` sets it; "": no cookie

    def __post_init__(self) -> None:
        if not self.token and not self.local:
            raise ValueError(
                f"{self.host} can be reached from elsewhere: set {self.variable} to a long random text, or bind "
                "127.0.0.1"
            )
        bad = set(self.token) - _TOKEN_CHARACTERS | (set(self.token) & set('",;\\') if self.cookie else set())
        if bad:
            where = "an HTTP header" + (" and a cookie" if self.cookie else "")
            raise ValueError(
                f"{self.variable} travels in {where}: it must be ASCII, and cannot hold {sorted(bad)[0]!r}"
            )

    @property
    def local(self) -> bool:
        return is_loopback(self.host)

    def check_names(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise AccessRefused for another `Host` (421) or `Origin` (403)."""
        host = headers.get(b"host", b"").decode("latin-1")
        name = host_name(host)
        # A web page may let its own name point to 127.0.0.1 (DNS rebinding): a loopback server answers to loopback
        # names only. Beyond loopback the token keeps such a page out.
        if name is None or (self.local and not is_loopback(name)):
            raise AccessRefused(
                421,
                "this server answers to 127.0.0.1 and localhost only"
                if self.local
                else "the Host header is missing or wrong",
            )
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host.lower():
            raise AccessRefused(403, "this request comes from a web page of another origin")

    def check_token(self, method: str, path: str, query: bytes, headers: Mapping[bytes, bytes]) -> None:
        """Raise AccessRefused for a missing or wrong token (401), or to redirect a browser that logs in (303)."""
        if not self._needs_token(method, path):
            return
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and self._fits(bearer.strip()):
            return
        if self.cookie and method in SAFE_METHODS:
            self._check_browser(path, query, headers)
            return
        said = f", the value of {self.variable}" if self.variable else ""
        raise AccessRefused(
            401, f"send the service's token: Authorization: Bearer <token>{said}", ((b"www-authenticate", b"Bearer"),)
        )

    def _needs_token(self, method: str, path: str) -> bool:
        if not self.token or path in HEALTH_PATHS:
            return False
        return path == self.private or not (self.open_reading and self.local and method in SAFE_METHODS)

    def _check_browser(self, path: str, query: bytes, headers: Mapping[bytes, bytes]) -> None:
        given = dict(parse_qsl(query.decode("latin-1"))).get("token")
        if given is not None and self._fits(given.encode()):
            cookie = f"{self.cookie}={self.token}; HttpOnly; Path=/; SameSite=Strict"
            raise AccessRefused(303, "logged in", ((b"location", b"/"), (b"set-cookie", cookie.encode())))
        pairs = (pair.strip().partition(b"=") for pair in headers.get(b"cookie", b"").split(b";"))
        if not any(name == self.cookie.encode() and self._fits(value) for name, _, value in pairs):
            raise AccessRefused(401, "open the printed address with the token")

    def _fits(self, given: bytes) -> bool:
        return hmac.compare_digest(given, self.token.encode())
