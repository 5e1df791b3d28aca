"""Dialects: what is sent to which server, and what refusals teach."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agentevolver.llm.dialect import DIALECTS, Learnt, dialect_of, learn, merged, shape
from agentevolver.llm.settings import EndpointSettings, LLMSettings

USUAL = {"temperature": 0.7, "max_tokens": 100, "top_p": 0.9, "seed": 2**40 + 7}


def sent(name: str, learnt: Learnt | None = None, omit: tuple[str, ...] = (), **parameters: Any) -> dict[str, Any]:
    plain, extra = shape({**USUAL, **parameters}, DIALECTS[name], learnt or Learnt(), omit)
    return {**plain, **extra}


@pytest.mark.parametrize(
    ("url", "model", "name"),
    [
        ("https://api.openai.com/v1", "gpt-4o", "openai"),
        ("https://api.openai.com/v1", "o3-mini", "openai_reasoning"),
        ("https://api.openai.com/v1", "gpt-5.1", "openai_reasoning"),
        ("https://api.openai.com/v1", "gpt-50-turbo", "openai"),
        ("https://me.openai.azure.com", "deployed", "azure"),
        ("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "qwen-plus", "dashscope"),
        ("http://localhost:11434/v1", "gemma", "ollama"),
        ("https://api.anthropic.com/v1", "claude", "anthropic"),
        ("https://openai.azure.com.evil.example/v1", "m", "plain"),
        ("https://llm.example.com/v1", "gpt-5", "plain"),
    ],
)
def test_a_dialect_is_found_by_the_host(url: str, model: str, name: str) -> None:
    assert dialect_of("auto", url, model).name == name
    assert dialect_of("vllm", url, model).name == "vllm"


def test_a_reasoning_model_is_sent_none_of_what_it_refuses() -> None:
    assert sent("openai_reasoning", top_k=5) == {"max_completion_tokens": 100}


def test_seeds_fit_where_they_are_sent() -> None:
    assert sent("plain")["seed"] == 7
    assert sent("vllm")["seed"] == 2**40 + 7
    assert sent("plain", seed=2**63 - 1)["seed"] == 2**31 - 1


def test_what_is_to_be_left_out_is_left_out() -> None:
    assert sent("plain", omit=("temperature", "seed", "max_tokens")) == {"top_p": 0.9}


@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        (
            "dashscope",
            {"enable_thinking": True, "thinking_budget": 512},
            {"enable_thinking": True, "thinking_budget": 512},
        ),
        ("vllm", {"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ("openai_reasoning", {"enable_thinking": False}, {"reasoning_effort": "none"}),
        ("openai_reasoning", {"thinking_budget": 15}, {"reasoning_effort": "low"}),
        ("openai_reasoning", {"thinking_budget": 90}, {"reasoning_effort": "high"}),
        ("openai_reasoning", {"thinking_budget": 90, "reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ("anthropic", {"thinking_budget": 2048}, {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        ("anthropic", {"enable_thinking": False}, {"thinking": {"type": "disabled"}}),
        ("plain", {"extra_body": {"reasoning": {"max_tokens": 9}}}, {"reasoning": {"max_tokens": 9}}),
    ],
)
def test_thinking_is_set_as_the_server_knows_it(name: str, asked: dict[str, Any], said: dict[str, Any]) -> None:
    plain, extra = shape({"max_tokens": 100, **asked}, DIALECTS[name], Learnt())
    assert {key: value for key, value in {**plain, **extra}.items() if not key.startswith("max_")} == said


def test_the_two_names_of_the_limit_on_the_reply_are_one_parameter() -> None:
    assert merged({"max_completion_tokens": 9}, {"max_tokens": 5}) == {"max_completion_tokens": 5}
    assert merged({"max_tokens": 9}, {"max_completion_tokens": 5}) == {"max_completion_tokens": 5}
    assert merged({"max_tokens": 9}, {"max_tokens": None, "top_p": 1}) == {"max_tokens": None, "top_p": 1}


# ---- what refusals teach: the wording of OpenAI, vLLM, DashScope, Mistral, Groq, Google, DeepSeek, Ollama ----

SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}


@pytest.mark.parametrize(
    ("text", "named", "gone"),
    [
        (
            "Unsupported value: 'temperature' does not support 0.7 with this model. Only the default (1) value is "
            "supported.",
            "temperature",
            {"temperature"},
        ),
        ("Unsupported parameter: 'top_p' is not supported with this model.", None, {"top_p"}),
        ("property 'seed' is unsupported", None, {"seed"}),
        ("Unrecognized request argument supplied: seed", None, {"seed"}),
        (
            "[{'type': 'extra_forbidden', 'loc': ('body', 'seed'), 'msg': 'Extra inputs are not permitted'}]",
            None,
            {"seed"},
        ),
        ('Invalid JSON payload received. Unknown name "seed": Cannot find field.', None, {"seed"}),
    ],
)
def test_a_parameter_that_is_not_taken_is_not_sent_again(text: str, named: str | None, gone: set[str]) -> None:
    learnt = Learnt()
    assert learn(text, named, USUAL, {}, learnt)
    assert USUAL.keys() - sent("plain", learnt).keys() == gone
    assert learnt.lines() == [f"never sent: {', '.join(gone)}"]


@pytest.mark.parametrize(
    "text",
    [
        "temperature must be non-negative, got -1.0.",
        "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 3 instead.",
        "The model `x` does not exist, or is not available to you",
        "messages with role 'tool' are not supported; please stop sending them without a seed for the tools",
    ],
)
def test_a_refusal_for_another_reason_teaches_nothing(text: str) -> None:
    assert learn(text, None, {**USUAL, "stop": ["x"]}, {}, learnt := Learnt()) is None
    assert learnt == Learnt()


def test_another_name_or_size_of_the_limit_on_the_reply_is_learnt() -> None:
    learnt = Learnt()
    renamed = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    )
    assert learn(renamed, "max_tokens", USUAL, {}, learnt)
    assert sent("plain", learnt)["max_completion_tokens"] == 100
    for text in (
        "max_tokens is too large: 100. This model supports at most 64 completion tokens, whereas you provided 100.",
        "<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 64]",
        "max_tokens: 100 > 64, which is the maximum allowed number of output tokens",
        "`max_tokens` must be less than or equal to `64`, the maximum value for `max_tokens` is less than the context "
        "window",
    ):
        learnt = Learnt()
        assert learn(text, None, USUAL, {}, learnt) == "max_tokens is 64 at most", text
        assert sent("plain", learnt)["max_tokens"] == 64
        assert learn(text, None, sent("plain", learnt), {}, learnt) is None, (
            "nothing new: the same is not tried for ever"
        )


@pytest.mark.parametrize(
    "text",
    [
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
        "This response_format type is unavailable now",
        "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
        "Json mode response is not supported when enable_thinking is true",
    ],
)
def test_a_response_format_that_is_not_offered_gives_way_to_a_simpler_one_and_then_to_the_prompt(text: str) -> None:
    learnt = Learnt()
    for left in ({"type": "json_object"}, None):
        request = sent("plain", learnt, response_format=SCHEMA)
        assert learn(text, None, request, {}, learnt)
        assert sent("plain", learnt, response_format=SCHEMA).get("response_format") == left


def test_tools_and_thinking_are_given_up_or_set_as_the_server_says() -> None:
    learnt = Learnt()
    assert learn("registry.ollama.ai/library/gemma:2b does not support tools", None, {"tools": []}, {}, learnt)
    assert "tools" not in sent("ollama", learnt, tools=[])
    learnt = Learnt()
    text = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    assert learn(text, None, {"tools": [], "tool_choice": "auto"}, {}, learnt)
    assert not sent("vllm", learnt, tools=[], tool_choice="auto").keys() & {"tools", "tool_choice"}
    learnt = Learnt()
    text = "parameter.enable_thinking must be set to false for non-streaming calls"
    assert learn(text, None, USUAL, {}, learnt)
    assert sent("dashscope", learnt)["enable_thinking"] is False
    assert learn(text, None, {}, {"enable_thinking": False}, learnt) is None


# ---- settings ----


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"omit": ["temprature"]}, "no parameter that can be left out"),
        ({"dialect": "klingon"}, "openai_reasoning"),
        ({"base_url": "https://me.openai.azure.com"}, "api_version"),
        ({"sampling": {"extra_body": "x"}}, "extra_body must be a mapping"),
        ({"requests_per_minute": 0}, "greater than 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        LLMSettings.model_validate(values)


def test_azures_newer_addresses_want_no_version() -> None:
    EndpointSettings(base_url="https://me.openai.azure.com/openai/v1")
