"""Folders of runs that somebody else made: what their configuration orders is done only with the user's consent.

The launcher marks each config.yaml with an HMAC of its folder and content; the key never leaves the checkout.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentevolver.utils.errors import UsageError
from agentevolver.utils.files import write_text
from agentevolver.utils.web.access import is_local

KEY = Path(__file__).resolve().parents[2] / ".agentevolver" / "checkout.key"
MARK = "config.mark"
TRUST = "--trust-run"
_CODE = ("agent_command", "agent_function", "external_lib", "trust_remote_code")
# A variable that loads code or holds more than a word (a program, an address), except a folder of the user's cache.
_LOADS = re.compile(r"(?s)LD_|PYTHON|PATH|DYLD_|\w+=(?!\$\{oc\.env:HOME,/tmp}/\.cache/\w+/\w+$).*[^\w-]")
# A class outside of the libraries that run anyway, and a text that takes the value of a variable.
_NAMED = re.compile(r"(?!(?:agentevolver|verl|vllm)\.)[\w.]+(?::[A-Za-z_]|\.[A-Z])\w*|.*\$\{.*", re.DOTALL)


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


def orders(tree: Mapping[Any, Any], path: str = "") -> Iterator[str]:
    """Yield what a configuration would run or send: commands, code, variables of processes, keys for an address."""
    for name, value in tree.items():
        here = f"{path}{name}"
        if name == "device_env" and isinstance(value, Mapping):
            yield from (f"{here}.{one}" for one, text in value.items() if _LOADS.match(f"{one}={text}"))
        elif name in _CODE or (name == "path" and ".custom_" in f".{path}"):
            if value and not str(value).startswith(("agentevolver.", "pkg://task_manager")):
                yield f"{here} = {value}"
        elif isinstance(value, Mapping | list):
            yield from orders(value if isinstance(value, Mapping) else dict(enumerate(value)), f"{here}.")
        elif name == "kind" and value == "path":
            yield f"{path}model = {tree.get('model')}"
        elif isinstance(value, str) and _NAMED.fullmatch(value):
            yield f"{here} = {value}"
        elif str(name).endswith("url") and value not in (None, "", "offline", "policy"):
            key = tree.get("api_key_env", "OPENAI_API_KEY")  # the settings' default
            if not is_local(str(value)) or (name == "base_url" and key and not path.endswith("reme.")):
                yield f"{here} = {value}, which gets {f'the value of {key}' if key else 'texts'}"


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
