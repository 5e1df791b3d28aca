"""Parsers of verl and vLLM: ours agree with them on what both read, and where theirs lose something is known."""

import asyncio
import json
import time

import pytest

from agentevolver.errors import ConfigError
from agentevolver.tools.formats import tool_format
from agentevolver.tools.schema import ToolSpec
from tests.agentevolver.tools.replies import WEATHER, said
from tests.agentevolver.tools.writing import WRITERS, by_template, template_tokenizer

# Family -> its parser at verl.
VERLS = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_5_nothink": "qwen3_coder",
    "glm4moe": "glm",
    "gptoss": "gpt-oss",
    "kimi_k2": "kimi",
    "seed_oss": "seed",
    "minimax_m2": "minimax",
    "deepseek_v4": "deepseek_v4",
}
SIMPLE = [("get_weather", {"city": "Oslo", "days": 3})]


def verls(family, calls):
    """Return what verl's parser reads of a reply."""
    from verl.experimental.agent_loop.tool_parser import ToolParser
    from verl.tools.schemas import OpenAIFunctionToolSchema

    made = WRITERS[family]
    tokenizer = made.tokenizer()
    tools = [OpenAIFunctionToolSchema.model_validate(WEATHER.to_openai())]
    parser = ToolParser.get_tool_parser(VERLS[family], tokenizer)
    _, read = asyncio.run(parser.extract_tool_calls(made.ids(calls), tools))
    return [(call.name.removeprefix("functions.").partition(":")[0], json.loads(call.arguments)) for call in read]


def ours(family, calls):
    made = WRITERS[family]
    return said(tool_format(made.format, made.tokenizer()).parse(made.ids(calls), [WEATHER]))


@pytest.mark.parametrize("family", [family for family in VERLS if family != "gptoss"])
def test_simple_calls_are_read_as_verl_reads_them(family):
    assert ours(family, SIMPLE) == verls(family, SIMPLE) == SIMPLE


# Why these families have a format of ours: what verl's parser makes of calls in the family's own template.
LOST = [
    ("qwen3", "arguments that spell the closing tag", [("f", {"text": "</tool_call>"})]),
    ("qwen3_5_nothink", "the text null", [("get_weather", {"city": "null"})]),
    ("qwen3_5_nothink", "a boolean that the schema does not speak of", [("get_weather", {"city": "a", "other": True})]),
    ("glm4moe", "a text of digits", [("get_weather", {"city": "5"})]),
    ("glm4moe", "spaces around a text", [("get_weather", {"city": " a "})]),
    ("gptoss", "any call, whose recipient stands before the channel", SIMPLE),
    ("kimi_k2", "a name that is no tool's", [("weather", {"city": "a"})]),
    ("seed_oss", "a text of digits", [("get_weather", {"city": "5"})]),
    ("minimax_m2", "a text of digits", [("get_weather", {"city": "5"})]),
]


@pytest.mark.parametrize(("family", "what", "calls"), LOST)
def test_what_verls_parser_loses_ours_keeps(family, what, calls):
    assert ours(family, calls) == calls
    assert verls(family, calls) != calls, f"verl reads {what} by now: its parser may serve"


# vLLM's parsers by their names there, and a family that they read.
VLLMS = {
    "hermes": "qwen3",
    "qwen3_coder": "qwen3_5_nothink",
    "glm45": "glm4moe",
    "llama3_json": "llama3_1",
    "kimi_k2": "kimi_k2",
}


@pytest.mark.parametrize(("parser", "family"), VLLMS.items())
def test_simple_calls_are_read_as_vllm_reads_them(parser, family):
    made = WRITERS[family]
    form = tool_format(f"vllm:{parser}", made.tokenizer())
    parsed = form.parse(made.ids(SIMPLE), [WEATHER])
    assert form.name == f"vllm:{parser}" and said(parsed) == ours(family, SIMPLE) == SIMPLE and not parsed.problems


def test_gemma4s_calls_are_read_by_vllms_parser():
    tool = ToolSpec(
        "set",
        parameters={"properties": {"s": {"type": "string"}, "more": {"type": "object"}, "on": {"type": "boolean"}}},
    )
    calls = [("set", {"more": {"a": ["one", "two"]}, "on": True, "s": "Zürich, {ü}"})]
    tokenizer = template_tokenizer("gemma4")
    ids = tokenizer.encode(by_template("gemma4", calls, ""), add_special_tokens=False)
    assert said(tool_format("vllm:gemma4", tokenizer).parse(ids, [tool])) == calls


BROKEN = '<tool_call>{"name": "f", "arguments": {</tool_call>'


@pytest.mark.parametrize(
    "text", [BROKEN, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "<tool_call>" + "[" * 2_000]
)
def test_a_call_that_vllms_parser_drops_is_a_problem(text):
    tokenizer = WRITERS["qwen3"].tokenizer()
    form = tool_format("vllm:hermes", tokenizer)
    parsed = form.parse(tokenizer.encode(text, add_special_tokens=False), [WEATHER])
    assert not parsed.calls and parsed.problems and len(parsed.problems[0]) < 300
    thought = form.parse(tokenizer.encode(f"<think>{text}</think>Done.", add_special_tokens=False), [WEATHER])
    assert not thought.calls and not thought.problems and thought.content.endswith("</think>Done.")
    assert not form.parse(tokenizer.encode(f"<think>{text}", add_special_tokens=False), [WEATHER]).calls


@pytest.mark.parametrize("unit", ["<tool_call>", "<tool_call>{", '<tool_call>{"a":"', "</tool_call><tool_call>"])
def test_hostile_replies_are_answered_by_vllms_parser(unit):
    tokenizer = WRITERS["llama3_1"].tokenizer()
    ids = tokenizer.encode(unit * (30_000 // len(unit)) + "</tool_call>", add_special_tokens=False)
    began = time.process_time()
    parsed = tool_format("vllm:hermes", tokenizer).parse(ids, [WEATHER])
    assert time.process_time() - began < 5 and not parsed.calls and parsed.problems


def test_a_reply_that_is_too_long_for_vllms_parser_is_a_problem():
    tokenizer = WRITERS["qwen3"].tokenizer()
    ids = tokenizer.encode("<tool_call>" * 7_000, add_special_tokens=False)
    (problem,) = tool_format("vllm:hermes", tokenizer).parse(ids, []).problems
    assert "longer than 65536 characters" in problem


def test_a_parser_that_vllm_does_not_have_is_refused_with_its_names():
    with pytest.raises(ConfigError, match=r"vLLM has no tool parser 'hermse'; it has .*hermes"):
        tool_format("vllm:hermse", WRITERS["qwen3"].tokenizer())


def test_a_parser_whose_tokens_are_missing_is_refused():
    with pytest.raises(ConfigError, match=r"'llama3_json' cannot read this tokenizer: .*python_tag"):
        tool_format("vllm:llama3_json", WRITERS["qwen3"].tokenizer())
