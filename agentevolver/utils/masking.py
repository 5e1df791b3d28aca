"""Values that may not be shown or written down, told by the name they stand under and by what they look like.

Whatever is for a person's eyes or for a record goes through here: `masked_tree` for configurations and records,
`masked_text` for lines, patches and logs, `masked_arguments` for command lines. Names count in any case and any
spelling (`WANDB_API_KEY`, `apiKey`, `x-api-key`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "***"

_NAMES = (
    r"(?:api|access|secret|private|signing|encryption|account|auth)[_.-]?key(?:[_.-]?id)?|apikey|(?:access|refresh|auth|bearer|session)token"
    r"|secret|passwd|password|passphrase|pwd|token|credentials?|authorization|cookie"
)
_SECRET_NAME = re.compile(rf"(?:^|[^a-z0-9])(?:{_NAMES})$")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# A name and the sign after it; no run of name's characters is looked at twice.
_NAMED = re.compile(r"""(?<![\w.-])(?P<name>[\w.-]++)(?P<sign>\\?["']?\s{0,3}(?:=|:(?!//))[ \t]{0,3})""")
# What may follow: a quoted text, a reference, or one word, with the scheme of a header before it.
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


def is_secret(key: Any) -> bool:
    """Whether what stands under a key is a secret; `max_tokens`, `api_key_env` and `tokenizer` are none."""
    return isinstance(key, str) and bool(_SECRET_NAME.search(_HUMP.sub("_", key).lower()))


def masked_tree(tree: Any) -> Any:
    """Return nested mappings and lists in which secrets read `***`; references to environment variables stay."""
    return _masked(tree, is_named=False)


def masked_text(text: str) -> str:
    """Return a text in which what looks like a secret, or is assigned to the name of one, reads `***`."""
    return _LOOKS.sub(_by_look, _without_named(text))


def masked_arguments(arguments: Iterable[str]) -> list[str]:
    """Return a command line that may be written down: of `name=secret` and `--name secret` the name stays."""
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
    """Whether this is no secret after all: a reference, a number, a type; a sentence about a token (`invalid token:
    expected`)."""
    bare = value.strip("\\\"'")
    in_prose = (
        found["name"].lower() in ("token", "secret", "password", "cookie") and ": " in found["sign"] and value.isalpha()
    )
    return in_prose or bool(_HARMLESS.fullmatch(bare) or _REFERENCE.fullmatch(bare))


def _by_look(found: re.Match[str]) -> str:
    if found["userinfo"]:
        return f"://{MASK}@"
    return f"{found['scheme'] or ''}{MASK}"
