"""What servers' refusals say: over-long prompts with the limit they name."""

from __future__ import annotations

import pytest

from agentevolver.llm import responses

OVERFLOWS = {
    "vllm": (
        "This model's maximum context length is 2048 tokens. However, you requested 4096 output tokens and your "
        "prompt contains at least 1 input tokens, for a total of at least 2049 tokens.",
        2048,
    ),
    "dashscope": ("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]", 30720),
    "anthropic": ("prompt is too long: 205000 tokens > 200000 maximum", 200000),
    "tgi": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens",
        4096,
    ),
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_an_overflow_is_known_by_its_words_with_the_limit_it_names(name: str) -> None:
    text, limit = OVERFLOWS[name]
    assert responses.is_overflow(text)
    assert responses.limit_named(text) == limit
    assert not responses.is_filtered(text)
