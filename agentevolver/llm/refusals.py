"""What a server's error text says: an over-long prompt (and the limit it names), a content filter, a parameter it does
not take.

The wordings are those of OpenAI, Azure, vLLM, DashScope, Anthropic, Google, Mistral, DeepSeek, Ollama and llama.cpp.
Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = r"(\d[\d,_]*)"
# What names the limit; the first that is found counts.
_LIMITS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"maximum context length (?:is|of) {_NUMBER}",
        rf"{_NUMBER} maximum context length",
        rf"maximum model length (?:is|of) {_NUMBER}",
        rf"max_model_len\D{{1,20}}{_NUMBER}",
        rf"range of input length should be \[\d+, *{_NUMBER}\]",
        rf"configured limit of {_NUMBER} tokens",
        rf"tokens? > {_NUMBER} maximum",
        rf"exceed context limit: [\d, +]+ > {_NUMBER}",
        rf"maximum number of tokens allowed \({_NUMBER}\)",
        rf"available context size \({_NUMBER} tokens\)",
        rf"context (?:window|size|length|limit)\D{{1,20}}{_NUMBER}",
        rf"must (?:have less than|be <=) {_NUMBER}(?: tokens)?",
        rf"tokens per min \(TPM\): limit {_NUMBER}",
    )
]
_OVERFLOW = re.compile(
    r"context[_ ]length[_ ]exceeded|exceed_context_size|maximum context length|maximum model length|prompt is too "
    r"long|input is too long"
    r"|range of input length|exceeds? (?:the |its )?(?:available |model'?s? |maximum )?context|context "
    r"(?:window|limit)\b.*exceed"
    r"|input tokens? exceed|input token count \(\d+\) exceeds|exceed context limit|reduce the length of the "
    r"(?:messages|prompt|input)"
    r"|`?inputs`? (?:tokens \+|must have less)|request too large|longer than the maximum",
    re.IGNORECASE,
)
_PROMPTS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"prompt contains (?:at least )?{_NUMBER}(?: input)? tokens",
        rf"\({_NUMBER} in the messages",
        rf"messages resulted in {_NUMBER} tokens",
        rf"exceed context limit: {_NUMBER} \+",
        rf"request has {_NUMBER} input tokens",
    )
]
_FILTER_CODES = frozenset(
    {
        "content_filter",
        "content_policy_violation",
        "data_inspection_failed",
        "datainspectionfailed",
        "invalid_prompt",
        "1301",
        "sensitive",
    }
)
_FILTERED = re.compile(
    r"inappropriate content|content management policy|content policy|usage policy|content filter|content exists risk"
    r"|data_?inspection_?failed|flagged as potentially violating|responsible ?ai ?policy",
    re.IGNORECASE,
)


def is_overflow(text: str) -> bool:
    """Whether an error's text says that a prompt, or what it and the reply may take together, is too long."""
    return bool(_OVERFLOW.search(text))


def limit_named(text: str) -> int | None:
    """Return the number of tokens that an overflow's text names as the limit, None where it names none."""
    return _first(_LIMITS, text)


def prompt_named(text: str) -> int | None:
    """Return how long an overflow's text says that the prompt is, in tokens; None where it does not say it."""
    return _first(_PROMPTS, text)


def _first(patterns: Iterable[re.Pattern[str]], text: str) -> int | None:
    for pattern in patterns:
        if found := pattern.search(text):
            return int(re.sub(r"[,_]", "", found[1])) or None
    return None


def is_filtered(text: str, codes: Iterable[object] = ()) -> bool:
    """Whether an error says that a content filter stopped the request; `codes` are its `code` and `type`."""
    return any(str(code).lower() in _FILTER_CODES for code in codes) or bool(_FILTERED.search(text))
