"""Renderers of several model families."""

import pytest

from context_manager.chat import ChatRenderer
from tests.chat_tokenizers import CHATML, build_tokenizer
from tests.context_manager.chat_templates import QWEN25, merging_tokenizer
from tests.real_tokenizers import build_family
from tests.tools_of_families import TOOL_FAMILIES

FAMILIES = ("qwen2_5", "qwen3", "qwen3, enable_thinking: false", "qwen3_5_think", "llama3_1", "merging")


@pytest.fixture(scope="session", params=FAMILIES)
def renderer(request):
    if request.param == "merging":
        return ChatRenderer(merging_tokenizer(QWEN25, "<|im_end|>"))
    name, _, silent = request.param.partition(", ")
    return ChatRenderer(build_family(TOOL_FAMILIES[name]), {"enable_thinking": False} if silent else {})


@pytest.fixture(scope="session")
def chatml():
    return ChatRenderer(build_tokenizer(CHATML, "<|im_end|>"))
