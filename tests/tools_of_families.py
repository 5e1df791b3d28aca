"""Families whose templates render tools, and tools, calls and answers to render."""

from tests.context_manager.chat_templates import MISTRAL3, MISTRAL7, MISTRAL_SPECIAL
from tests.real_tokenizers import FAMILIES, Family

_QWEN3 = FAMILIES["qwen3"]
_HARMONY = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")
TOOL_FAMILIES = {
    **{name: FAMILIES[name] for name in ("qwen2_5", "qwen3", "llama3_1", "glm4moe", "deepseekv3")},
    "qwen3_instruct_2507": Family("qwen3_instruct_2507", "<|im_end|>", _QWEN3.special, _QWEN3.added),
    "qwen3_5_think": Family("qwen3_5_think", "<|im_end|>", _QWEN3.special, _QWEN3.added),
    "qwen3_5_nothink": Family("qwen3_5_nothink", "<|im_end|>", _QWEN3.special, _QWEN3.added),
    "llama3_2": Family("llama3_2", "<|eot_id|>", FAMILIES["llama3_1"].special),
    "gptoss": Family("gptoss", "<|return|>", ("<|endoftext|>", *_HARMONY)),
    "mistral_v3": Family(MISTRAL3, "</s>", MISTRAL_SPECIAL, bos="<s>"),
    "mistral_v7": Family(MISTRAL7, "</s>", MISTRAL_SPECIAL, bos="<s>"),
}
FIND = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Finds things.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string", "description": "what"}}},
    },
}


def call(number: int = 0, name: str = "find", arguments: str = '{"q": "x"}') -> dict:
    return {"id": f"c{number:08d}", "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(number: int = 0, content: str = "seen", name: str = "find") -> dict:
    return {"role": "tool", "tool_call_id": f"c{number:08d}", "name": name, "content": content}
