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
    "qwen3_coder": "agentevolver.tools.xml:Qwen3CoderFormat",
    "llama3": "agentevolver.tools.llama3:Llama3Format",
    "glm": "agentevolver.tools.glm:GlmFormat",
    "gpt_oss": "agentevolver.tools.gpt_oss:GptOssFormat",
    "mistral": "agentevolver.tools.mistral:MistralFormat",
    "deepseek": "agentevolver.tools.deepseek:DeepSeekFormat",
    "kimi": "agentevolver.tools.kimi:KimiFormat",
    "seed": "agentevolver.tools.xml:SeedFormat",
    "minimax": "agentevolver.tools.xml:MiniMaxFormat",
    "deepseek_v4": "agentevolver.tools.verl:DeepSeekV4Format",
}
# `vllm:NAME` is vLLM's parser of that name.
VLLM = "vllm:"
# What a chat template writes around calls, and whose format that is. The first that a template holds counts.
_MARKERS = (
    (("<seed:tool_call>",), "seed"),
    (("<minimax:tool_call>",), "minimax"),
    (("<|tool_calls_section_begin|>",), "kimi"),
    (("\uff5cDSML\uff5c", "tool_calls"), "deepseek_v4"),
    (("<\uff5ctool\u2581call\u2581begin\uff5c>",), "deepseek"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|channel|>", "to=", "functions."), "gpt_oss"),
    (("<tool_call>", "<function=", "<parameter="), "qwen3_coder"),
    (("<tool_call>", "<arg_key>"), "glm"),
    (("<tool_call>", "arguments"), "hermes"),
    (("<|start_header_id|>", "ipython", '"parameters"'), "llama3"),
)


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
        ConfigError: no format has that name; or `auto` cannot tell.
    """
    if name == "auto":
        name = detect_format(tokenizer)
    if name.startswith(VLLM):
        return _load("agentevolver.tools.vllm:VllmFormat", name.removeprefix(VLLM), tokenizer)
    if name not in TOOL_FORMATS:
        names = ", ".join(TOOL_FORMATS)
        raise ConfigError(f"tool_format: no format is called {name!r}; there are {names}, and {VLLM}NAME for vLLM's")
    return _load(TOOL_FORMATS[name], tokenizer)


def _load(path: str, *args: Any) -> ToolFormat:
    module, _, attribute = path.partition(":")
    loaded: ToolFormat = getattr(importlib.import_module(module), attribute)(*args)
    return loaded


def detect_format(tokenizer: Any) -> str:
    """Return the name of the format that a tokenizer's chat template writes, by the template's own markers.

    Raises:
        ConfigError: there is no chat template, or it holds the markers of no format.
    """
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        template = template.get("tool_use", template.get("default"))
    names = f"name one of {', '.join(TOOL_FORMATS)}, {VLLM}NAME, or none"
    if not isinstance(template, str):
        raise ConfigError(f"tool_format=auto: the tokenizer has no chat template; {names}")
    for markers, name in _MARKERS:
        if all(marker in template for marker in markers):
            return name
    raise ConfigError(f"tool_format=auto: the chat template writes calls of no format that is known; {names}")
