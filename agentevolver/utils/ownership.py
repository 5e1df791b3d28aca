"""Folders of runs that somebody else made: what their configuration orders is done only with the user's consent.

The launcher marks each config.yaml with an HMAC of its folder and content; the key never leaves the checkout.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentevolver.utils.errors import UsageError
from agentevolver.utils.files import write_text

KEY = Path(__file__).resolve().parents[2] / ".agentevolver" / "checkout.key"
MARK = "config.mark"
TRUST = "--trust-run"
_CODE = ("agent_command", "agent_function", "external_lib", "trust_remote_code")
_NO_URL = (None, "offline", "policy")


def sign(config: Path) -> None:
    """Mark a config.yaml as written by this checkout."""
    KEY.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError), open(os.open(KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    write_text(config.with_name(MARK), _mark(config))


def is_ours(config: Path) -> bool:
    """Whether this checkout wrote the config.yaml, and for this folder."""
    with suppress(OSError, UnicodeDecodeError):
        return hmac.compare_digest(config.with_name(MARK).read_text(encoding="ascii"), _mark(config))
    return False


def orders(tree: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield what a configuration would run or send: commands, code, variables of processes, keys for an address."""
    for name, value in tree.items():
        here = f"{path}{name}"
        if name == "device_env" and value:
            yield from (f"{here}.{one}" for one in value if str(one).startswith(("LD_", "PYTHON", "PATH", "DYLD_")))
        elif isinstance(value, Mapping):
            yield from orders(value, f"{here}.")
        elif name in _CODE or (name == "path" and ".custom_" in f".{path}"):
            if value and not str(value).startswith(("agentevolver.", "pkg://task_manager")):
                yield f"{here} = {value}"
        elif name == "kind" and value == "path":
            yield f"{path}model = {tree.get('model')}"
        elif name == "base_url" and value not in _NO_URL and tree.get("api_key_env"):
            yield f"{here} = {value}, which gets the value of {tree['api_key_env']}"


def refuse_orders(config: Path, tree: Mapping[str, Any]) -> None:
    """Raise UsageError if another checkout wrote the config.yaml and it orders something."""
    found = list(orders(tree))
    if found and not is_ours(config):
        raise UsageError(
            f"this checkout did not write {config}, which orders {'; '.join(found)}: give {TRUST} if you trust it"
        )


def _mark(config: Path) -> str:
    folder = str(config.parent.resolve()).encode("utf-8", "surrogateescape")
    return hmac.new(KEY.read_bytes(), folder + b"\0" + config.read_bytes(), "sha256").hexdigest()
