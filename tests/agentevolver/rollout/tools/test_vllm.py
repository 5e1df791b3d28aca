"""vLLM's parsers as formats."""

import time

import pytest

from agentevolver.rollout.tools.formats import tool_format
from agentevolver.utils.errors import ConfigError
from tests.agentevolver.rollout.tools.replies import WEATHER, said
from tests.agentevolver.rollout.tools.writing import by_template, template_tokenizer

pytestmark = pytest.mark.thorough
SIMPLE = [("get_weather", {"city": "Oslo", "days": 3})]
BROKEN = '<tool_call>{"name": "f", "arguments": {</tool_call>'


def parse(parser, template, text, tools=(WEATHER,)):
    tokenizer = template_tokenizer(template)
    return tool_format(f"vllm:{parser}", tokenizer).parse(tokenizer.encode(text, add_special_tokens=False), tools)


@pytest.mark.parametrize(
    ("parser", "template"), [("hermes", "qwen3"), ("qwen3_coder", "qwen3_5_think"), ("glm45", "glm4moe")]
)
def test_calls_of_other_families_are_read(parser, template):
    parsed = parse(parser, template, by_template(template, SIMPLE))
    assert said(parsed) == SIMPLE and not parsed.problems


@pytest.mark.parametrize(
    "text", [BROKEN, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "<tool_call>" + "[" * 2_000]
)
def test_a_call_that_the_parser_drops_is_a_problem(text):
    parsed = parse("hermes", "qwen3", text)
    assert not parsed.calls and parsed.problems and len(parsed.problems[0]) < 300
    thought = parse("hermes", "qwen3", f"<think>{text}</think>Done.")
    assert not thought.calls and not thought.problems and thought.content.endswith("</think>Done.")
    assert not parse("hermes", "qwen3", f"<think>{text}").calls


@pytest.mark.parametrize("unit", ["<tool_call>{", "</tool_call><tool_call>"])
def test_hostile_replies_are_answered(unit):
    began = time.process_time()
    parsed = parse("hermes", "llama3_1", unit * (30_000 // len(unit)) + "</tool_call>")
    assert time.process_time() - began < 5 and not parsed.calls and parsed.problems


@pytest.mark.parametrize(
    ("parser", "why"),
    [
        ("hermse", r"vLLM has no tool parser 'hermse'; it has .*hermes"),
        ("openai", "'openai' cannot read this tokenizer: .*stub"),
    ],
)
def test_a_parser_that_is_not_there_or_cannot_serve_is_refused(parser, why):
    with pytest.raises(ConfigError, match=why):
        tool_format(f"vllm:{parser}", template_tokenizer("qwen3"))
