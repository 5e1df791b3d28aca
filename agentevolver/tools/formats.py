"""Tool formats: how a model writes calls, by name. A format takes a reply apart; it never renders one."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from agentevolver.errors import ConfigError
from agentevolver.tools.schema import Parsed, ToolSpec

# Name -> package.module:Class, imported when it is used.
TOOL_FORMATS: Mapping[str, str] = {
    "hermes": "agentevolver.tools.hermes:HermesFormat",
}
# What a chat template writes around calls, and whose format that is. The first that a template holds counts.
_MARKERS = ((("<tool_call>", '"arguments"'), "hermes"),)


class ToolFormat(ABC):
    """Reads calls out of sampled ids. Stateless: one object serves all episodes of a process."""

    name: str

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens of the family that end a reply of calls, beside the tokenizer's eos; none for most."""
        return ()

    @abstractmethod
    def parse(self, ids: Sequence[int], tools: Sequence[ToolSpec]) -> Parsed:
        """Return a reply's text, calls and problems; raises nothing, whatever a model may write."""


def tool_format(name: str, tokenizer: Any) -> ToolFormat:
    """Return the format of a name (`auto`: the one that the tokenizer's chat template writes).

    Raises:
        ConfigError: no format has that name; `auto` cannot tell; or the format's tokens are not the tokenizer's.
    """
    if name == "auto":
        name = detect_format(tokenizer)
    if name not in TOOL_FORMATS:
        raise ConfigError(f"tool_format: no format is called {name!r}; there are {', '.join(TOOL_FORMATS)}")
    module, _, attribute = TOOL_FORMATS[name].partition(":")
    chosen: ToolFormat = getattr(importlib.import_module(module), attribute)(tokenizer)
    return chosen


def detect_format(tokenizer: Any) -> str:
    """Return the name of the format that a tokenizer's chat template writes, by the template's own markers.

    Raises:
        ConfigError: there is no chat template, or it holds the markers of no format.
    """
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        template = template.get("tool_use", template.get("default"))
    names = f"name one of {', '.join(TOOL_FORMATS)}, or none"
    if not isinstance(template, str):
        raise ConfigError(f"tool_format=auto: the tokenizer has no chat template; {names}")
    for markers, name in _MARKERS:
        if all(marker in template for marker in markers):
            return name
    raise ConfigError(f"tool_format=auto: the chat template writes calls of no format that is known; {names}")
