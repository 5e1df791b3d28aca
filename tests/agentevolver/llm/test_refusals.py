"""What servers' refusals say: over-long prompts with the limit they name, and content filters."""

from __future__ import annotations

import pytest

from agentevolver.llm import responses

OVERFLOWS = {
    "openai": (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 8765 tokens. "
        "Please reduce the length of the messages.",
        8192,
    ),
    "vllm": (
        "This model's maximum context length is 2048 tokens. However, you requested 4096 output tokens and your "
        "prompt contains at least 1 input tokens, for a total of at least 2049 tokens.",
        2048,
    ),
    "dashscope": ("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]", 30720),
    "anthropic": ("prompt is too long: 205000 tokens > 200000 maximum", 200000),
    "google": ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1048576),
    "tgi": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens",
        4096,
    ),
    "per minute": (
        "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 40123. "
        "The input or output "
        "tokens must be reduced in order to run successfully.",
        30000,
    ),
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_an_overflow_is_known_by_its_words_with_the_limit_it_names(name: str) -> None:
    text, limit = OVERFLOWS[name]
    assert responses.is_overflow(text)
    assert responses.limit_named(text) == limit
    assert not responses.is_filtered(text)


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        (
            "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
            ("content_filter",),
        ),
        ("Input data may contain inappropriate content.", ("data_inspection_failed",)),
        ("no", ("DataInspectionFailed",)),
    ],
)
def test_a_content_filter_is_known_by_its_words_or_its_code(text: str, codes: tuple[str, ...]) -> None:
    assert responses.is_filtered(text, codes)
    assert not responses.is_overflow(text)
