"""A tokenizer with a ChatML template."""

import pytest

from tests.chat_tokenizers import CHATML, build_tokenizer


@pytest.fixture(scope="session")
def chatml():
    return build_tokenizer(CHATML, "<|im_end|>")
