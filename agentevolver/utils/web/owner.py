"""Key of a run's owner, by which the page tells who may be let into the run's Ray cluster.

On loopback every user of the machine may look at the page, and whoever is let into Ray may run code as its owner. The
key follows from the cluster's token, a file that its owner alone can read, and does not betray it.
"""

from __future__ import annotations

import hmac
from pathlib import Path

_ABOUT = b"the page of a run"
OPEN_RAY = "/api/ray/open"


def owner_key(token: Path) -> str | None:
    """Return the key that follows from a Ray token's file; None if it cannot be read (the run is over)."""
    try:
        secret = token.read_bytes().strip()
    except OSError:
        return None
    return hmac.new(secret, _ABOUT, "sha256").hexdigest() if secret else None


def is_owner_key(given: str, token: Path) -> bool:
    """Whether somebody gave the key of this token."""
    key = owner_key(token)
    return key is not None and hmac.compare_digest(given.encode(), key.encode())


def ray_link(page: str, token: Path) -> str | None:
    """Return what opens Ray's dashboard through the page at `page` (http://HOST:PORT); None without a token."""
    key = owner_key(token)
    return None if key is None else f"{page.rstrip('/')}{OPEN_RAY}?key={key}"
