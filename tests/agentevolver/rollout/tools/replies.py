"""Replies as sampled ids: of real control tokens over bytes, and of a tokenizer without any."""

from agentevolver.rollout.tools.formats import tool_format
from agentevolver.rollout.tools.schema import Parsed, ToolSpec
from tests.real_tokenizers import build_real

WEATHER = ToolSpec(
    "get_weather",
    "The weather of a place.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"}},
        "required": ["city"],
    },
)


def read(name: str, family: str, text: str, tools: tuple[ToolSpec, ...] = (WEATHER,)) -> Parsed:
    tokenizer = build_real(family)
    return tool_format(name, tokenizer).parse(tokenizer.encode(text, add_special_tokens=False), tools)


def said(parsed: Parsed) -> list[tuple[str, object]]:
    """Return the calls as (name, arguments)."""
    return [(call.name, call.decoded()) for call in parsed.calls]


class Letters:
    """A tokenizer whose tokens are characters: what takes time is the parser."""

    def decode(self, ids, skip_special_tokens=False):
        return "".join(map(chr, ids))
