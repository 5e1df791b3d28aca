"""Environment variables that break HTTP clients, mended when this package is imported.

Every process of ours imports it first, so libraries, users' functions and child processes see the mended variables.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec

_PROXY = re.compile(r"(?:https?|all)_proxy", re.IGNORECASE)
# Of other entries httpx (0.28) makes invalid URLs.
_HOST = re.compile(
    r"(?:[a-z]+://)?[\w.*<>/-]+(?::\d{1,5})?|[0-9a-f]*(?::[0-9a-f.]*){2,}(?:%\w+)?", re.ASCII | re.IGNORECASE
)
_TAKEN = "clients take http://HOST:PORT, and with the package socksio (pip install 'httpx[socks]') socks5h://HOST:PORT"


def prepare_process() -> None:
    for problem in prepare(os.environ):
        print(f"agentevolver: {problem}", file=sys.stderr)


def prepare(environ: MutableMapping[str, str]) -> list[str]:
    """Exempt loopback from proxies, and remove what no client can be made with. Return one line for each removal."""
    environ.update(exemptions(environ))
    proxies = [name for name in environ if _PROXY.fullmatch(name) and not _is_taken(environ[name])]
    problems = dict.fromkeys(proxies, _TAKEN)
    if not os.access(environ.get("SSL_CERT_FILE") or "/", os.R_OK):
        problems["SSL_CERT_FILE"] = "the file cannot be read"
    for name in problems:
        del environ[name]
    return [f"the environment variable {name} is not used: {problem}" for name, problem in problems.items()]


def exemptions(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `NO_PROXY` and `no_proxy` with loopback and the readable entries of both."""
    given = ",".join(environ.get(name, "") for name in ("NO_PROXY", "no_proxy")).split(",")
    entries = [entry for one in given if _HOST.fullmatch(entry := one.strip().strip("[]"))]
    # urllib knows the asterisk only if it stands alone.
    value = "*" if "*" in entries else ",".join(dict.fromkeys([*entries, "127.0.0.1", "localhost", "::1"]))
    return {"NO_PROXY": value, "no_proxy": value}


def _is_taken(url: str) -> bool:
    if not url:
        return True
    import httpx  # imported here: few machines have a proxy

    try:
        scheme = httpx.Proxy(url if "://" in url else f"http://{url}").url.scheme
    except (ValueError, httpx.InvalidURL):
        return False
    return not scheme.startswith("socks") or find_spec("socksio") is not None
