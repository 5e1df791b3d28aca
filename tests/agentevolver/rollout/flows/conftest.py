"""Renderers of several model families."""

import pytest

from context_manager.chat import ChatRenderer
from tests.chat_tokenizers import CHATML, build_tokenizer
from tests.context_manager.chat_templates import LLAMA31, QWEN3, QWEN3_THINKING, QWEN25, merging_tokenizer

FAMILIES = {
    "qwen25": (QWEN25, "<|im_end|>", {}),
    "qwen3": (QWEN3, "<|im_end|>", {}),
    "qwen3_no_thinking": (QWEN3, "<|im_end|>", {"enable_thinking": False}),
    "qwen3_thinking": (QWEN3_THINKING, "<|im_end|>", {}),
    "llama31": (LLAMA31, "<|eot_id|>", {}),
    "merging": (QWEN3, "<|im_end|>", {}),
}


@pytest.fixture(scope="session", params=FAMILIES)
def renderer(request):
    template, eos, kwargs = FAMILIES[request.param]
    build = merging_tokenizer if request.param == "merging" else build_tokenizer
    return ChatRenderer(build(template, eos), kwargs)


@pytest.fixture(scope="session")
def chatml():
    return ChatRenderer(build_tokenizer(CHATML, "<|im_end|>"))
