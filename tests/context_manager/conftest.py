"""Tokenizers with the chat templates of several model families."""

import pytest

from context_manager.chat import ChatRenderer
from context_manager.template import ContextLimits
from tests.chat_tokenizers import CHATML, CHATML_THINK, LLAMA3, build_tokenizer
from tests.context_manager.chat_templates import (
    LLAMA31,
    PLAIN,
    QWEN3,
    QWEN3_THINKING,
    QWEN25,
    STRICT,
    merging_tokenizer,
)


@pytest.fixture(
    scope="session",
    params=[
        (CHATML, "<|im_end|>"),
        (CHATML_THINK, "<|im_end|>"),
        (LLAMA3, "<|eot_id|>"),
        (QWEN25, "<|im_end|>"),
        (QWEN3, "<|im_end|>"),
        (QWEN3_THINKING, "<|im_end|>"),
        (LLAMA31, "<|eot_id|>"),
        (QWEN25, "<|im_end|>", merging_tokenizer),
    ],
    ids=["chatml", "chatml_think", "llama3", "qwen25", "qwen3", "qwen3_thinking", "llama31", "merging"],
)
def tokenizer(request):
    template, eos, *build = request.param
    return (build or [build_tokenizer])[0](template, eos)


@pytest.fixture(scope="session")
def chatml():
    return build_tokenizer(CHATML, "<|im_end|>")


@pytest.fixture(scope="session")
def renderer(chatml):
    return ChatRenderer(chatml)


@pytest.fixture(scope="session")
def qwen3():
    return build_tokenizer(QWEN3, "<|im_end|>")


@pytest.fixture(scope="session")
def qwen3_thinking():
    return ChatRenderer(build_tokenizer(QWEN3_THINKING, "<|im_end|>"))


@pytest.fixture(scope="session")
def strict():
    return ChatRenderer(build_tokenizer(STRICT, "<|im_end|>"))


@pytest.fixture(scope="session")
def plain_template():
    return ChatRenderer(merging_tokenizer(PLAIN, "<|im_end|>"))


@pytest.fixture(scope="session")
def roomy():
    return ContextLimits(10_000, 10_000, 20_000, 64, 400)
