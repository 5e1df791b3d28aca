"""Tokenizers with the chat templates of several model families."""

import pytest

from context_manager.chat import ChatRenderer
from context_manager.template import ContextLimits
from tests.chat_tokenizers import CHATML, build_tokenizer
from tests.context_manager.chat_templates import PLAIN, QWEN25, STRICT, merging_tokenizer
from tests.real_tokenizers import build_family
from tests.tools_of_families import TOOL_FAMILIES


@pytest.fixture(scope="session", params=["chatml", "merging", "qwen2_5", "qwen3", "qwen3_5_think", "llama3_1"])
def tokenizer(request, chatml):
    if request.param == "merging":
        return merging_tokenizer(QWEN25, "<|im_end|>")
    return chatml if request.param == "chatml" else build_family(TOOL_FAMILIES[request.param])


@pytest.fixture(scope="session")
def chatml():
    return build_tokenizer(CHATML, "<|im_end|>")


@pytest.fixture(scope="session")
def renderer(chatml):
    return ChatRenderer(chatml)


@pytest.fixture(scope="session")
def thinking():
    """A template whose generation prompt opens a thought."""
    return ChatRenderer(build_family(TOOL_FAMILIES["qwen3_5_think"]))


@pytest.fixture(scope="session")
def strict():
    return ChatRenderer(build_tokenizer(STRICT, "<|im_end|>"))


@pytest.fixture(scope="session")
def plain_template():
    return ChatRenderer(merging_tokenizer(PLAIN, "<|im_end|>"))


@pytest.fixture(scope="session")
def roomy():
    return ContextLimits(10_000, 10_000, 20_000, 64, 400)
