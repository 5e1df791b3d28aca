"""Tool formats by name. A format parses a reply; it never renders one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentevolver.rollout.tools.hermes import HermesFormat
from agentevolver.rollout.tools.llama3 import Llama3Format
from agentevolver.rollout.tools.schema import ToolFormat
from agentevolver.utils.errors import ConfigError

TOOL_FORMATS: Mapping[str, Callable[[Any], ToolFormat]] = {"hermes": HermesFormat, "llama3": Llama3Format}
VLLM = "vllm:"
# Names of formats that vLLM's parsers replace. vLLM has no tool parser for gpt-oss.
REPLACED = {
    "qwen3_coder": "vllm:qwen3_coder",
    "glm": "vllm:glm45",
    "mistral": "vllm:mistral",
    "deepseek": "vllm:deepseek_v3",
    "deepseek_v4": "vllm:deepseek_v4",
    "kimi": "vllm:kimi_k2",
    "seed": "vllm:seed_oss",
    "minimax": "vllm:minimax_m2",
    "gpt_oss": "none",
}
# Markers of calls in a chat template, and the format. The first row whose markers all occur wins.
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


def tool_format(name: str, tokenizer: Any) -> ToolFormat:
    """Return a format by name; `auto` is the one of the tokenizer's chat template. Raises ConfigError."""
    if name == "auto":
        name = detect_format(tokenizer)
    if name.startswith(VLLM):
        from agentevolver.rollout.tools.vllm import VllmFormat

        return VllmFormat(name.removeprefix(VLLM), tokenizer)
    if name not in TOOL_FORMATS:
        raise ConfigError(f"tool_format: there is no format {name!r}; {advice(name)}")
    return TOOL_FORMATS[name](tokenizer)


def detect_format(tokenizer: Any) -> str:
    """Return the name of the format that the tokenizer's chat template writes.

    Raises ConfigError without a chat template, or if the format is unknown or only vLLM's.
    """
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        template = template.get("tool_use", template.get("default"))
    if not isinstance(template, str):
        raise ConfigError(f"tool_format=auto: the tokenizer has no chat template; {advice()}")
    name = next((name for markers, name in _MARKERS if all(marker in template for marker in markers)), "")
    if name in TOOL_FORMATS:
        return name
    found = (
        f"the chat template writes calls of {name}" if name else "the calls of the chat template are of no known format"
    )
    raise ConfigError(f"tool_format=auto: {found}; {advice(name)}")


def advice(name: str = "") -> str:
    if name in REPLACED:
        return f"set it to {REPLACED[name]}"
    return f"set it to {', '.join(TOOL_FORMATS)}, {VLLM}NAME for vLLM's parser NAME, or none"
