"""Dialects of OpenAI-compatible servers: presets of what is sent, and error texts read for what is not taken.

`shape` turns the sampling parameters of a call into those that are sent; `learn` reads a refusal; `is_overflow`,
`is_filtered` and the limits read its text. Pure but for
`Learnt`, which is shared by all calls to one model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

DialectName = Literal[
    "auto", "plain", "openai", "openai_reasoning", "azure", "dashscope", "vllm", "ollama", "anthropic"
]
Format = Literal["json_schema", "json_object"]

# Parameters of the OpenAI API, and those that servers know beyond it; a key of another name is refused, not dropped.
OPENAI_SAMPLING = frozenset(
    {
        *(
            "temperature",
            "top_p",
            "max_tokens",
            "max_completion_tokens",
            "seed",
            "stop",
            "presence_penalty",
            "frequency_penalty",
        ),
        *("reasoning_effort", "response_format", "tool_choice"),
    }
)
EXTRA_SAMPLING = frozenset(
    {"top_k", "min_p", "repetition_penalty", "chat_template_kwargs", "enable_thinking", "thinking_budget", "extra_body"}
)
# What may be left out of a request without making it another question.
OMITTABLE = OPENAI_SAMPLING | EXTRA_SAMPLING | {"tools"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """A preset: what is never sent, what the limit on the reply is called, how thinking is set,
    which response formats there are."""

    name: str
    omit: frozenset[str] = frozenset()
    max_tokens: str = "max_tokens"
    seed_bits: int = 31
    formats: tuple[Format, ...] = ()
    thinking: Literal["flat", "template", "budget", "effort"] = "flat"
    # A 429 that is called `insufficient_quota` may be a limit per minute here.
    quota_is_rate: bool = False


_FIXED = frozenset(
    {"temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "top_k", "min_p", "repetition_penalty"}
)
_BEYOND = frozenset({"top_k", "min_p", "repetition_penalty", "chat_template_kwargs"})
_BOTH: tuple[Format, ...] = ("json_schema", "json_object")
DIALECTS = {
    dialect.name: dialect
    for dialect in (
        Dialect("plain"),
        Dialect("openai", omit=_BEYOND, formats=_BOTH, thinking="effort"),
        Dialect(
            "openai_reasoning",
            omit=_FIXED | _BEYOND,
            max_tokens="max_completion_tokens",
            formats=_BOTH,
            thinking="effort",
        ),
        Dialect("azure", omit=_BEYOND, formats=_BOTH, thinking="effort"),
        Dialect("dashscope", formats=("json_object",), quota_is_rate=True),
        Dialect("vllm", seed_bits=63, formats=_BOTH, thinking="template"),
        Dialect("ollama", omit=_BEYOND, formats=_BOTH, thinking="effort"),
        Dialect(
            "anthropic",
            omit=_BEYOND | {"seed", "presence_penalty", "frequency_penalty", "response_format", "reasoning_effort"},
            thinking="budget",
        ),
    )
}
_HOSTS = (
    ("api.openai.com", "openai"),
    (".openai.azure.com", "azure"),
    (".cognitiveservices.azure.com", "azure"),
    ("dashscope.aliyuncs.com", "dashscope"),
    ("dashscope-intl.aliyuncs.com", "dashscope"),
    ("api.anthropic.com", "anthropic"),
)
_REASONING = re.compile(r"(?:o\d|gpt-5)(?:[-.].*)?", re.IGNORECASE)
_OLLAMA_PORT = 11434


def dialect_of(name: DialectName, base_url: str, model: str) -> Dialect:
    """Return the preset of an endpoint; `auto` goes by the URL's host, and with OpenAI by the model's name."""
    if name != "auto":
        return DIALECTS[name]
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    found = next(
        (dialect for suffix, dialect in _HOSTS if host == suffix or (suffix.startswith(".") and host.endswith(suffix))),
        "plain",
    )
    if found == "openai" and _REASONING.fullmatch(model):
        found = "openai_reasoning"
    return DIALECTS["ollama" if parts.port == _OLLAMA_PORT else found]


@dataclass(slots=True)
class Learnt:
    """What the refusals of one model at one server have taught, for all roles of a process."""

    omit: set[str] = field(default_factory=set)
    max_tokens: str | None = None
    most_tokens: int | None = None
    formats: set[str] = field(default_factory=set)
    fixed: dict[str, Any] = field(default_factory=dict)
    context_limit: int | None = None

    def lines(self) -> list[str]:
        """Return what was learnt, a line each."""
        out = [f"never sent: {', '.join(sorted(self.omit))}"] if self.omit else []
        out += [f"response_format not offered: {', '.join(sorted(self.formats))}"] if self.formats else []
        out += [f"max_tokens is called {self.max_tokens}"] if self.max_tokens else []
        out += [f"replies of {self.most_tokens} tokens at most"] if self.most_tokens else []
        out += [f"{name} must be {value}" for name, value in self.fixed.items()]
        return out + ([f"context of {self.context_limit} tokens"] if self.context_limit else [])


def merged(default: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return sampling parameters with those of a call laid over the endpoint's. `max_tokens` and
    `max_completion_tokens` are one parameter of two names: the call's value counts, under the name that the endpoint
    was given."""
    out = {**default, **own}
    older, newer = "max_tokens", "max_completion_tokens"
    if out.get(older) is not None and out.get(newer) is not None:
        if own.get(older) is not None:
            out[newer] = own[older]
        del out[older]
    return out


def shape(
    parameters: Mapping[str, Any], dialect: Dialect, learnt: Learnt, omit: Iterable[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (parameters, extra fields of the body) as they are sent; raises nothing, drops what is not to be sent."""
    never = {*dialect.omit, *learnt.omit, *omit}
    sent = {key: value for key, value in {**parameters, **learnt.fixed}.items() if key not in never}
    if "seed" in sent:
        sent["seed"] = int(sent["seed"]) & ((1 << dialect.seed_bits) - 1)
    for name in ("max_tokens", "max_completion_tokens"):
        if name in sent:
            value = sent.pop(name)
            wanted = learnt.max_tokens or (dialect.max_tokens if name == "max_tokens" else name)
            if wanted not in never:
                sent[wanted] = value if learnt.most_tokens is None else min(value, learnt.most_tokens)
    if "response_format" in sent:
        kept = _offered(sent.pop("response_format"), learnt.formats)
        sent |= {"response_format": kept} if kept is not None else {}
    extra = {key: sent.pop(key) for key in sorted(EXTRA_SAMPLING & set(sent))}
    _say_thinking(sent, extra, dialect)
    extra |= extra.pop("extra_body", {})
    return {k: v for k, v in sent.items() if k not in never}, {k: v for k, v in extra.items() if k not in never}


def unsent(parameters: Mapping[str, Any], dialect: Dialect, omit: Iterable[str] = ()) -> list[str]:
    """Return which of the parameters the preset or the configuration keeps back."""
    return sorted(set(parameters) & {*dialect.omit, *omit})


def _say_thinking(sent: dict[str, Any], extra: dict[str, Any], dialect: Dialect) -> None:
    """Say `enable_thinking` and `thinking_budget` as the server knows them."""
    if dialect.thinking == "flat" or not extra.keys() & {"enable_thinking", "thinking_budget"}:
        return
    enabled, budget = extra.pop("enable_thinking", None), extra.pop("thinking_budget", None)
    if dialect.thinking == "template":
        told = {"enable_thinking": enabled, "thinking_budget": budget}
        extra["chat_template_kwargs"] = {
            **{k: v for k, v in told.items() if v is not None},
            **extra.get("chat_template_kwargs", {}),
        }
    elif dialect.thinking == "budget":
        extra["thinking"] = (
            {"type": "disabled"} if enabled is False else {"type": "enabled", "budget_tokens": budget or 1024}
        )
    elif "reasoning_effort" not in sent:
        # Effort is a word; the shares of a reply that the words stand for are OpenRouter's.
        most = sent.get("max_tokens") or sent.get("max_completion_tokens") or 4096
        share = (budget or 0) / most
        word = "none" if enabled is False else "low" if share <= 0.2 else "medium" if share <= 0.5 else "high"
        sent["reasoning_effort"] = word if budget is not None or enabled is False else "medium"


def _offered(wanted: Any, refused: set[str]) -> Any:
    """Return a response format, or the next simpler one where it was refused, None where all were."""
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "json_schema" and kind in refused:
        wanted, kind = {"type": "json_object"}, "json_object"
    return None if kind in refused else wanted


# ---- what refusals teach ----


def _patterns(*patterns: str) -> list[re.Pattern[str]]:
    return [re.compile(pattern, re.IGNORECASE) for pattern in patterns]


_UNSUPPORTED = re.compile(
    r"unsupported|not support|n't support|unrecognized|unknown|unexpected|extra_forbidden|extra inputs|not permitted"
    r"|not allowed|unavailable|cannot find field|not available|only the default|must be set to|requires --"
    r"|must contain the word",
    re.IGNORECASE,
)
_INSTEAD = re.compile(r"use '?`?\"?(max_completion_tokens|max_tokens)", re.IGNORECASE)
_MOST = _patterns(
    r"range of max_(?:completion_)?tokens should be \[\d+, *(\d+)\]",
    r"at most (\d+) (?:completion|output) tokens",
    r"max_(?:completion_)?tokens: \d+ > (\d+)",
    r"max_(?:completion_)?tokens\D{0,60}(?:less than or equal to|<=|at most|maximum(?: value)?(?: of| is)?|up "
    r"to)\D{0,3}(\d+)",
)
_MUST_BE = re.compile(r"(enable_thinking) must be set to (true|false)", re.IGNORECASE)
_FORMAT_WORDS = re.compile(r"response_format|json.?schema|json.?object|json mode|structured output", re.IGNORECASE)


def learn(text: str, named: object, plain: Mapping[str, Any], extra: Mapping[str, Any], learnt: Learnt) -> str | None:
    """Read the text of a 400 or 422; returns what was learnt, in a few words, None if it says nothing of the parameters
    that were sent.

    Args:
        named: the error's own field `param`, where it has one.
        plain, extra: what was sent.
        learnt: is changed, so that the same request is not sent again.
    """
    sent = {**plain, **extra}
    if (found := _MUST_BE.search(text)) and sent.get("enable_thinking") is not (found[2].lower() == "true"):
        learnt.fixed[found[1]] = found[2].lower() == "true"
        return f"{found[1]} must be {found[2].lower()}"
    limit = next((name for name in ("max_tokens", "max_completion_tokens") if name in sent), None)
    if limit is not None and (limit in text or named == limit or "completion tokens" in text):
        if (instead := _INSTEAD.search(text)) and instead[1] != limit:
            learnt.max_tokens = instead[1]
            return f"{limit} is called {instead[1]}"
        if (most := _first(_MOST, text)) is not None and most < sent[limit]:
            learnt.most_tokens = most
            return f"{limit} is {most} at most"
    if not _UNSUPPORTED.search(text):
        return None
    if "response_format" in sent and (
        named in ("response_format", "response_format.type") or _FORMAT_WORDS.search(text)
    ):
        kind = sent["response_format"].get("type", "")
        # Of a schema that is refused by name the simpler format may still be offered.
        learnt.formats |= (
            {kind} if kind == "json_schema" and "json_object" not in learnt.formats else {kind, "json_object"}
        )
        return f"response_format {kind} is not offered"
    names = [name for name in sorted(sent) if name in OMITTABLE and (named == name or _is_named(name, text))]
    if not names and "tools" in sent and re.search(r"\btool", text):
        names = ["tools"]
    if not names:
        return None
    learnt.omit |= {*names, *({"tool_choice"} if "tools" in names else ())}
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not taken"


def _is_named(name: str, text: str) -> bool:
    """Whether a text speaks of a parameter; one that is an English word too must be quoted,
    or be called a parameter."""
    if "_" in name:
        return bool(re.search(rf"(?<![\w.]){name}(?!\w)", text))
    called = r"(?:parameters?|arguments?|supplied|property|fields?|name|inputs?):? *"
    return bool(
        re.search(
            rf"""['"`]{name}\\?['"`]|{called}{name}\b|\b{name} (?:is|parameter) (?:not|un)""", text, re.IGNORECASE
        )
    )


_NUMBER = r"(\d[\d,_]*)"
# What names the limit; the first that is found counts.
_LIMITS = _patterns(
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
_OVERFLOW = re.compile(
    r"context[_ ]length[_ ]exceeded|exceed_context_size|maximum context length|maximum model length"
    r"|prompt is too long|input is too long|range of input length"
    r"|exceeds? (?:the |its )?(?:available |model'?s? |maximum )?context|context (?:window|limit)\b.*exceed"
    r"|input tokens? exceed|input token count \(\d+\) exceeds|exceed context limit"
    r"|reduce the length of the (?:messages|prompt|input)"
    r"|`?inputs`? (?:tokens \+|must have less)|request too large|longer than the maximum",
    re.IGNORECASE,
)
_PROMPTS = _patterns(
    rf"prompt contains (?:at least )?{_NUMBER}(?: input)? tokens",
    rf"\({_NUMBER} in the messages",
    rf"messages resulted in {_NUMBER} tokens",
    rf"exceed context limit: {_NUMBER} \+",
    rf"request has {_NUMBER} input tokens",
)
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
