"""Secrets: kept in files that only their owner can read, and masked in everything shown or written.

The launcher moves secrets from variables into 0600 files of the folder that the variable `SECRETS` names. Masking goes
by name, in any spelling (`WANDB_API_KEY`, `apiKey`), and by form.
"""

from __future__ import annotations

import ctypes
import io
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentevolver.utils.errors import UsageError
from agentevolver.utils.files import create
from agentevolver.utils.process_environment import prepare_process

SECRETS = "AGENTEVOLVER_SECRETS"
"""Variable with the folder of secrets."""
_KEY = re.compile(r"[_-](?:KEY|PAT|AUTH)$", re.IGNORECASE)
_LOGIN = re.compile(r"://[^/\s@:]*:[^/\s@]+@")
# Ray's processes read Ray's own variables. PWD and OLDPWD are folders, not passwords.
_NEVER = re.compile(r"RAY_.*|(?:OLD)?PWD", re.DOTALL)
LIBRARIES = re.compile(r"(?:https?|ftp|wss?|all)_proxy|hf_endpoint", re.IGNORECASE)
"""Variables that libraries read by themselves when they connect. The hub's token needs none: `HF_TOKEN_PATH` leads to
it."""
MASK = "***"

_NAMES = (
    r"(?:api|access|secret|private|signing|encryption|account|auth)[_.-]?key(?:[_.-]?id)?|apikey|(?:access|refresh|auth|bearer|session)token"
    r"|secret|passwd|password|passphrase|pwd|token|credentials?|authorization|cookie"
)
_SECRET_NAME = re.compile(rf"(?:^|[^a-z0-9])(?:{_NAMES})$")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# A name and the sign after it. Possessive (`++`), so that the search time stays linear.
_NAMED = re.compile(r"""(?<![\w.-])(?P<name>[\w.-]++)(?P<sign>\\?["']?\s{0,3}(?:=|:(?!//))[ \t]{0,3})""")
# The value: a quoted text, a reference, or one word, after the scheme of an HTTP header if there is one.
_VALUE = re.compile(
    r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\\"[^"\n]*\\"|\$\{[^}\n]*\}|"""
    r"""(?:(?:bearer|basic)[ \t]+)?[^\s"',;&)}\]]+""",
    re.IGNORECASE,
)
_LOOKS = re.compile(
    r"(?P<scheme>\b(?:bearer|basic)\s+)[\w.~+/=*-]{6,}"
    r"|(?P<userinfo>://)(?:[^/\s@\"'<>]+|[^/\s:@\"'<>]+:(?!\d)[^\s@\"'<>]*)@"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<![A-Za-z0-9])(?:(?:sk|gsk|rk|pk)[-_][A-Za-z0-9_*-]{8,}|hf_[A-Za-z0-9_*-]{8,}|(?-i:A[KS]IA)[A-Z0-9]{16}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abeoprs]-[\w-]{10,}|(?-i:AIza)[\w-]{30,}"
    r"|(?-i:eyJ)[\w-]{8,}\.[\w-]{4,}\.[\w-]*)",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"\$\{[^,{}]*(?:,\s*(?:null|''|\"\")?\s*)?\}")
_HARMLESS = re.compile(r"\*{3}|[-+]?[\d_.]+|true|false|null|none|str|int|float|bool|\||", re.IGNORECASE)


def read_dotenv(root: Path) -> None:
    """Set the variables of a folder's `.env` that are not set yet. Raises UsageError if the file cannot be read."""
    from dotenv import load_dotenv
    from dotenv.parser import parse_stream

    path = root / ".env"
    if not path.exists():
        return
    try:
        written = path.read_bytes()
        text = written.decode("utf-16" if written[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}; save it as UTF-8") from error
    for read in parse_stream(io.StringIO(text)):
        if read.error or "\0" in read.original.string:
            raise UsageError(f"{path}, line {read.original.line} is not NAME=value; correct it, and save it as UTF-8")
    load_dotenv(stream=io.StringIO(text), override=False)
    prepare_process()


def secret(name: str, folder: str | None = None) -> str:
    """Return a secret from its variable, else from its file in `folder` (None: that of `SECRETS`), else ""."""
    value = os.environ.get(name, "").strip()
    folder = folder or os.environ.get(SECRETS)
    if value or not folder:
        return value
    try:
        return _read(Path(folder) / name).strip()
    except (OSError, ValueError):
        return ""


def secrets_in(environ: Mapping[str, str], names: Iterable[str] = ()) -> dict[str, str]:
    """Return variables whose name is a secret's or in `names`, and URLs with a password."""
    wanted = set(names)
    return {
        name: value
        for name, value in environ.items()
        if value
        and not _NEVER.fullmatch(name)
        and (name in wanted or is_secret(name) or _KEY.search(name) or _LOGIN.search(value))
    }


def write_secrets(folder: Path, values: Mapping[str, str]) -> None:
    # Files, because child processes inherit variables and environments get logged.
    folder.mkdir(mode=0o700)
    for name, value in values.items():
        with os.fdopen(create(folder / name), "wb") as file:
            file.write(os.fsencode(value))


def _read(path: Path) -> str:
    return os.fsdecode(path.read_bytes())


def remove_secrets(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def adopt_secrets(only: re.Pattern[str] | None = None) -> None:
    """Set secrets (`only`: of matching names) as variables. Child processes inherit them: call it only where no foreign
    code is started."""
    if SECRETS not in os.environ:
        return
    for path in sorted(Path(os.environ[SECRETS]).glob("*")):
        if only is None or only.fullmatch(path.name):
            os.environ.setdefault(path.name, _read(path))


def forget(names: Iterable[str]) -> None:
    """Remove variables from this process, and on Linux from the copy in /proc/self/environ."""
    values = {name: os.environ.pop(name) for name in [*names] if name in os.environ}
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as stat:
            # The first field after the command name is number 3: env_start and env_end are 50 and 51 (proc(5)).
            fields = stat.read().rpartition(")")[2].split()
        start, end = int(fields[47]), int(fields[48])
        content = ctypes.string_at(start, end - start)
    except (OSError, ValueError, IndexError):
        return
    for name, value in values.items():
        for place in _places(content, f"{name}={value}".encode(errors="surrogateescape")):
            # Only the value, so that pointers to other variables stay valid. Not with zeros: psutil (7.2) stops reading
            # at two of them.
            ctypes.memset(start + place + len(name) + 1, ord("*"), len(os.fsencode(value)))


def _places(content: bytes, entry: bytes) -> Iterable[int]:
    place = 0
    for found in content.split(b"\0"):
        if found == entry:
            yield place
        place += len(found) + 1


def is_secret(key: Any) -> bool:
    # `max_tokens`, `api_key_env` and `tokenizer` are not secrets.
    return isinstance(key, str) and bool(_SECRET_NAME.search(_HUMP.sub("_", key).lower()))


def masked_tree(tree: Any) -> Any:
    """Return nested mappings and lists with secrets as `***`; references to variables stay."""
    return _masked(tree, is_named=False)


def masked_text(text: str) -> str:
    """Replace by `***` everything that looks like a secret or is assigned to a secret's name."""
    return _LOOKS.sub(_by_look, _without_named(text))


def masked_arguments(arguments: Iterable[str]) -> list[str]:
    """Return a command line with the values of `name=secret` and `--name secret` masked."""
    out: list[str] = []
    awaited = False
    for item in arguments:
        name, mark, _ = item.partition("=")
        if awaited and not item.startswith("-"):
            out.append(MASK)
        elif mark and is_secret(name):
            out.append(f"{name}={MASK}")
        else:
            out.append(masked_text(item))
        awaited = item.startswith("-") and not mark and is_secret(item)
    return out


def _masked(value: Any, *, is_named: bool) -> Any:
    if isinstance(value, Mapping):
        return {key: _masked(item, is_named=is_named or is_secret(key)) for key, item in value.items()}
    if isinstance(value, str):
        if is_named:
            return value if not value or _REFERENCE.fullmatch(value) else MASK
        return masked_text(value)
    if isinstance(value, Iterable):
        return [_masked(item, is_named=is_named) for item in value]
    return MASK if is_named and isinstance(value, int | float) and not isinstance(value, bool) else value


def _without_named(text: str) -> str:
    out: list[str] = []
    position = kept = 0
    while found := _NAMED.search(text, position):
        position = found.end()
        value = _VALUE.match(text, position) if is_secret(found["name"]) else None
        if value is None or _is_harmless(found, value[0]):
            continue
        quote = value[0][: len(value[0]) - len(value[0].lstrip("\\\"'"))]
        out += [text[kept:position], quote, MASK, quote]
        position = kept = value.end()
    return "".join([*out, text[kept:]])


def _is_harmless(found: re.Match[str], value: str) -> bool:
    # References, numbers, types and sentences (`invalid token: expected`) are not secrets.
    bare = value.strip("\\\"'")
    in_prose = (
        found["name"].lower() in ("token", "secret", "password", "cookie") and ": " in found["sign"] and value.isalpha()
    )
    return in_prose or bool(_HARMLESS.fullmatch(bare) or _REFERENCE.fullmatch(bare))


def _by_look(found: re.Match[str]) -> str:
    if found["userinfo"]:
        return f"://{MASK}@"
    return f"{found['scheme'] or ''}{MASK}"
