"""Who may look, and who may change something.

The page is meant for one person at one machine. On loopback, everybody on the machine may look; what changes something
needs the token that only the page itself can read. Beyond loopback, everything needs it: `?token=...` once, a cookie
from then on. A web page of somebody else's can do neither (`agentevolver.utils.web`).
"""

from __future__ import annotations

import secrets

from agentevolver.utils.web.access import Access

TOKEN_VARIABLE = "VIEW_TOKEN"
COOKIE = "view_token"
# What keeps a browser from doing more with an answer than to show it.
HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)


def page_access(host: str, token: str = "") -> Access:
    """Return the rules of a page bound to `host`; a token is made up if none is given. Raises ValueError for one that
    cannot be sent."""
    return Access(host, token or secrets.token_urlsafe(24), TOKEN_VARIABLE, open_reading=True, cookie=COOKIE)
