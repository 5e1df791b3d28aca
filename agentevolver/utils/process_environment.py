"""Environment variables that break HTTP clients, mended when this package is imported.

Every process of ours imports it first, so libraries, users' functions and child processes see the mended variables.
"""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from urllib.parse import urlsplit

_LOCAL = ("127.0.0.1", "localhost", "::1")
_PROXY = re.compile(r"(?:https?|all)_proxy", re.IGNORECASE)
# Of other entries httpx (0.28) makes invalid URLs.
_HOST = re.compile(r"(?:[a-z]+://)?[\w.*<>/-]+(?::\d{1,5})?", re.ASCII)
_SOCKS = "SOCKS needs the package socksio (pip install 'httpx[socks]') and a URL socks5h://HOST:PORT"


def prepare_process() -> None:
    """Prepare this process's variables, and print what is removed."""
    for problem in prepare(os.environ):
        print(f"agentevolver: {problem}", file=sys.stderr)


def prepare(environ: MutableMapping[str, str]) -> list[str]:
    """Exempt loopback from proxies, and remove what no client can be made with. Return one line for each removal."""
    environ.update(exemptions(environ))
    problems = {name: _proxy_problem(environ[name]) for name in environ if _PROXY.fullmatch(name)}
    if (authorities := environ.get("SSL_CERT_FILE")) and not os.access(authorities, os.R_OK):
        problems["SSL_CERT_FILE"] = "the file cannot be read"
    found = {name: problem for name, problem in problems.items() if problem}
    for name in found:
        del environ[name]
    return [f"the environment variable {name} is not used: {problem}" for name, problem in found.items()]


def exemptions(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `NO_PROXY` and `no_proxy` with loopback and the readable entries of both."""
    given = ",".join(environ.get(name, "") for name in ("NO_PROXY", "no_proxy")).split(",")
    entries = [entry for one in given if _is_host(entry := one.strip().strip("[]"))]
    # urllib knows the asterisk only if it stands alone.
    value = "*" if "*" in entries else ",".join(dict.fromkeys([*entries, *_LOCAL]))
    return {"NO_PROXY": value, "no_proxy": value}


def _is_host(entry: str) -> bool:
    try:
        ipaddress.ip_address(entry)
    except ValueError:
        return _HOST.fullmatch(entry) is not None
    return True


def _proxy_problem(url: str) -> str:
    """Return why no client takes a proxy's URL, or "" if clients take it."""
    if not url.strip():
        return ""
    try:
        parts = urlsplit(url.strip() if "://" in url else f"http://{url.strip()}")
        whole = bool(parts.hostname) and parts.netloc.isascii() and parts.port != 0
    except ValueError:
        whole = False
    if not whole:
        return "it is no URL of a proxy"  # not quoted: it may hold a password
    if parts.scheme.startswith("socks"):
        return "" if parts.scheme in ("socks5", "socks5h") and find_spec("socksio") else _SOCKS
    return "" if parts.scheme in ("http", "https") else f"no proxy of the scheme {parts.scheme[:20]!r} is known"
