"""Replies of each family as models write them, good and broken."""

import json

import pytest

from agentevolver.tools.formats import tool_format
from agentevolver.tools.schema import ToolSpec
from tests.agentevolver.tools.replies import WEATHER, said
from tests.agentevolver.tools.writing import WRITERS

OSLO = ("get_weather", {"city": "Oslo"})
TYPED = ToolSpec.of_openai(
    {
        "type": "function",
        "function": {
            "name": "set",
            "parameters": {
                "type": "object",
                "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}}},
                "properties": {
                    "s": {"type": "string"},
                    "i": {"type": "integer", "maximum": 10},
                    "b": {"type": "boolean"},
                    "maybe": {"type": ["string", "null"]},
                    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                    "pick": {"enum": ["1", "2"]},
                    "at": {"$ref": "#/$defs/point"},
                    "any": {},
                },
            },
        },
    }
)
SHELL = ToolSpec("code_interpreter", parameters={"type": "object", "properties": {"code": {"type": "string"}}})


def read(family, text, tools=(WEATHER, TYPED)):
    made = WRITERS[family]
    tokenizer = made.tokenizer()
    return tool_format(made.format, tokenizer).parse(tokenizer.encode(text, add_special_tokens=False), tools)


def coder(*parameters, name="set"):
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def glm(*parameters, name="set"):
    values = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in parameters)
    return f"<tool_call>{name}\n{values}</tool_call>"


def deepseek(text):
    names = {"B": "call begin", "E": "call end", "BS": "calls begin", "ES": "calls end", "S": "sep"}
    for short, name in names.items():
        text = text.replace(f"<{short}>", f"<\uff5ctool\u2581{name.replace(' ', chr(0x2581))}\uff5c>")
    return text


BARE = [
    ("s", "5", "5"),
    ("s", "null", "null"),
    ("s", " two\nlines ", " two\nlines "),
    ("s", '{"a": 1}', '{"a": 1}'),
    ("i", "7", 7),
    ("i", "11", 11),  # too large: of the right type all the same
    ("i", "seven", "seven"),
    ("i", "7.5", "7.5"),
    ("b", "true", True),
    ("b", "False", False),
    ("b", "yes", "yes"),
    ("maybe", "None", None),
    ("maybe", "null", None),
    ("maybe", "none", "none"),
    ("either", "5", 5),
    ("either", "five", "five"),
    ("pick", "1", "1"),
    ("at", '{"x": 1.5}', {"x": 1.5}),
    ("at", '{"x": 1.5', '{"x": 1.5'),
    ("any", "[1, 2]", [1, 2]),
    ("any", "word", "word"),
    ("any", '{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
    ("unknown", "3", 3),
]


@pytest.mark.parametrize(("key", "text", "value"), BARE)
@pytest.mark.parametrize(("family", "write"), [("qwen3_5_nothink", coder), ("glm4moe", glm)])
def test_bare_text_is_the_value_that_the_schema_takes(family, write, key, text, value):
    assert said(read(family, write((key, text)))) == [("set", {key: value})]


def test_a_value_that_fits_no_schema_is_told_what_is_wrong_with_it():
    (call,) = read("glm4moe", glm(("i", "11"))).calls
    assert TYPED.problem(call.decoded()) == "i: 11 is greater than the maximum of 10"
    (call,) = read("glm4moe", glm(("b", "yes"))).calls
    assert TYPED.problem(call.decoded()) == "b: 'yes' is not of type 'boolean'"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<tool_call><function=set><parameter=s>a</parameter></function></tool_call>", {"s": "a"}),
        ("<tool_call>\n<function=set>\n<parameter=s>\n</parameter>\n</function>\n</tool_call>", {"s": ""}),
        ("<tool_call><function=set></function></tool_call>", {}),
        (coder(("s", "a</parameter>b <parameter=t>")), {"s": "a</parameter>b <parameter=t>"}),
        (f"<think>I use {coder(('s', 'no'))}</think>\n\n" + coder(("s", "yes")), {"s": "yes"}),
        (f"I use {coder(('s', 'no'))}</think>\n\n" + coder(("s", "yes")), {"s": "yes"}),
    ],
)
def test_qwen3_coder_writes_with_and_without_line_breaks(text, arguments):
    parsed = read("qwen3_5_think", text)
    assert said(parsed) == [("set", arguments)] and not parsed.problems


GOOD = [
    ("llama3_1", '{"name": "get_weather", "parameters": {"city": "Oslo"}}<|eot_id|>', [OSLO]),
    ("llama3_1", '\n {"type": "function", "name": "get_weather", "parameters": {"city": "Oslo"}}', [OSLO]),
    ("llama3_1", '<|python_tag|>{"name": "get_weather", "arguments": {"city": "Oslo"}}<|eom_id|>', [OSLO]),
    (
        "llama3_1",
        '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"a": ";"}};',
        [("f", {}), ("g", {"a": ";"})],
    ),
    (
        "llama3_1",
        '<|python_tag|>brave_search.call(query="who, \\"he\\" or (she)?")',
        [("brave_search", {"query": 'who, \\"he\\" or (she)?'})],
    ),
    ("llama3_1", '<|python_tag|>f.call(a="x", b="y")<|eom_id|>', [("f", {"a": "x", "b": "y"})]),
    ("llama3_1", '<|python_tag|>set.call(i="7", s="7")', [("set", {"i": 7, "s": "7"})]),
    ("llama3_1", "<|python_tag|>f.call()", [("f", {})]),
    ("llama3_1", "<|python_tag|>print(1)\nx = {}<|eom_id|>", [("code_interpreter", {"code": "print(1)\nx = {}"})]),
    ("llama3_1", '<think>hm {"name": "no", "parameters": {}}</think>{"name": "f", "parameters": {}}', [("f", {})]),
    ("mistral_v3", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}]</s>', [OSLO]),
    (
        "mistral_v3",
        '[TOOL_CALLS][{"arguments": {"city": "Oslo"}, "name": "get_weather", "id": "a"},'
        '{"name": "f", "arguments": {}}]',
        [OSLO, ("f", {})],
    ),
    ("mistral_v13", '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]f[ARGS]{}</s>', [OSLO, ("f", {})]),
    ("mistral_v11", '[TOOL_CALLS]get_weather[CALL_ID]c00001000[ARGS]{"city": "Oslo"}', [OSLO]),
    ("mistral_v13", '[TOOL_CALLS]get_weather{"city": "Oslo"}', [OSLO]),
    ("mistral_v13", '[THINK]so [TOOL_CALLS]f[ARGS]{}[/THINK][TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}', [OSLO]),
    (
        "gptoss",
        "<|channel|>analysis<|message|>I call functions.f<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather "
        '<|constrain|>json<|message|>{"city": "Oslo"}<|call|>',
        [OSLO],
    ),
    ("gptoss", ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>', [OSLO]),
    ("gptoss", '<|channel|>analysis to=functions.get_weather code<|message|>{"city": "Oslo"}', [OSLO]),
    ("gptoss", "<|channel|>commentary to=functions.f <|constrain|>json<|message|><|call|>", [("f", {})]),
    (
        "gptoss",
        '<|channel|>commentary to=browser.search<|message|>{"query": "a"}<|call|>',
        [("browser.search", {"query": "a"})],
    ),
    (
        "deepseekv3",
        deepseek('so <B></think><BS><B>function<S>get_weather\n```json\n{"city": "Oslo"}\n```<E><ES>'),
        [OSLO],
    ),
    ("deepseekv3", deepseek('<B>function<S>{"a": 1}<E>'), [("function", {"a": 1})]),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:3"
        '<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>',
        [OSLO],
    ),
    (
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="set">\n<parameter name="s">5</parameter>\n'
        '<parameter name="i">5</parameter>\n</invoke>\n</minimax:tool_call>',
        [("set", {"s": "5", "i": 5})],
    ),
    (
        "seed_oss",
        "<seed:think>a <seed:tool_call></seed:think>"
        "<seed:tool_call>\n<function=set>\n<parameter=s>5</parameter>\n</function>\n</seed:tool_call>",
        [("set", {"s": "5"})],
    ),
]


@pytest.mark.parametrize(("family", "text", "calls"), GOOD)
def test_what_a_family_writes_is_read(family, text, calls):
    parsed = read(family, text, (WEATHER, TYPED, SHELL))
    assert said(parsed) == calls and not parsed.problems


TEXTS = [
    ("llama3_1", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}'),
    ("llama3_1", "[1, 2]", "[1, 2]"),
    ("llama3_1", "{not json", "{not json"),
    (
        "llama3_1",
        'Write `{"name": "get_weather", "parameters": {}}`.',
        'Write `{"name": "get_weather", "parameters": {}}`.',
    ),
    ("llama3_1", 'It says {"name": "else", "parameters": {}}.', 'It says {"name": "else", "parameters": {}}.'),
    ("mistral_v3", "a [TOOL_RESULTS] b</s>", "a  b"),
    (
        "gptoss",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Done.<|return|>",
        "Done.",
    ),
    ("gptoss", "<|channel|>commentary<|message|>First a look.<|end|>", "First a look."),
    ("gptoss", "<|channel|>final<|message|>Move it to=functions.f", "Move it to=functions.f"),
    ("gptoss", "set mode to=5", "set mode to=5"),
    ("gptoss", "<|channel|>analysis<|message|>cut off", ""),
    ("gptoss", "<|channel|>final", ""),
    ("gptoss", "", ""),
    ("glm4moe", "\n<think></think>\nDone.<|user|>", "<think></think>\nDone."),
]


@pytest.mark.parametrize(("family", "text", "content"), TEXTS)
def test_what_is_no_call_is_text(family, text, content):
    parsed = read(family, text)
    assert (parsed.content, parsed.calls, parsed.problems) == (content, (), ())


BROKEN = [
    (
        "qwen3_5_nothink",
        "<tool_call>\n<function=set>\n<parameter=s>\na\n</function>\n</tool_call>",
        "</parameter> was expected",
    ),
    (
        "qwen3_5_nothink",
        "<tool_call>\n<function=set>\n<parameter=s>\na\n</parameter>\n</tool_call>",
        "</parameter> was expected",
    ),
    ("qwen3_5_nothink", "<tool_call>\n<function=set>\n</tool_call>", "function's end"),
    ("qwen3_5_nothink", "<tool_call>\n<function=set\n</tool_call>", "a function's tag"),
    ("qwen3_5_nothink", '<tool_call>\n{"name": "set"}\n</tool_call>', "a function's tag"),
    ("qwen3_5_nothink", "<function=set>\n</function>\n</tool_call>", "without a <tool_call>"),
    ("qwen3_5_nothink", coder(("s", "a"), ("s", "b")), "'s' stands twice"),
    ("qwen3_5_nothink", coder(("s", "a")).removesuffix("</tool_call>"), "</tool_call> was expected"),
    ("qwen3_5_nothink", "<tool_call><function=set>words</function></tool_call>", "words"),
    ("glm4moe", '<tool_call>{"name": "set", "arguments": {}}</tool_call>', "name was expected"),
    ("glm4moe", "<tool_call></tool_call>", "name was expected"),
    ("glm4moe", "<tool_call>set the light</tool_call>", "<arg_key>"),
    ("glm4moe", "<tool_call>set\n<arg_key>s</arg_key>\n<arg_value>a</tool_call>", "</arg_value> was expected"),
    ("glm4moe", "<tool_call>set\n<arg_key>s</arg_key>\n</tool_call>", "<arg_value>"),
    ("glm4moe", glm(("s", "a"), ("s", "b")), "'s' stands twice"),
    ("glm4moe", "<tool_call>set\n<arg_key>s</arg_key>\n<arg_value>a</arg_value>", "</tool_call> was expected"),
    ("llama3_1", '{"name": "f", "parameters": {"a": 1}', "expected ',' or '}'"),
    ("llama3_1", '{"parameters": {}}', 'no "name"'),
    ("llama3_1", '{"name": "get_weather"}', 'no "parameters" or "arguments"'),
    ("llama3_1", '{"name": "f", "parameters": {}, "arguments": {}}', "more than one of"),
    ("llama3_1", '{"name": "f", "parameters": "x"}', "must be a JSON object"),
    ("llama3_1", 'I look: {"name": "get_weather", "parameters": {"city": "Oslo"}}', "must be the whole reply"),
    ("llama3_1", "<|python_tag|>", "was expected"),
    ("llama3_1", "<|python_tag|>print(1)", "was expected"),
    ("llama3_1", '<|python_tag|>f.call(a="x"', "or ) was expected"),
    ("llama3_1", "<|python_tag|>f.call(a=5)", "or ) was expected"),
    ("llama3_1", '<|python_tag|>f.call(a="x", a="y")', "'a' stands twice"),
    ("llama3_1", '<think>hm <|python_tag|>{"name": "f", "parameters": {}}', "never closed"),
    ("mistral_v3", "[TOOL_CALLS]", "was expected"),
    ("mistral_v3", "[TOOL_CALLS] []", "JSON is broken"),
    ("mistral_v3", '[TOOL_CALLS] [{"name": "f", "arguments": {}}', "',' or ']' was expected"),
    ("mistral_v3", '[TOOL_CALLS] [{"name": "f"}]', 'no "arguments"'),
    ("mistral_v3", '[TOOL_CALLS] [{"name": "f", "arguments": {}}] so', "more text after it"),
    ("mistral_v13", "[TOOL_CALLS]f[ARGS]", "arguments are broken"),
    ("mistral_v13", "[TOOL_CALLS]f[ARGS][1]", "arguments are broken"),
    ("mistral_v13", "[TOOL_CALLS][ARGS]{}", "was expected"),
    ("gptoss", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{a: 1}<|call|>", "double quotes"),
    ("gptoss", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>[1]<|call|>", "a JSON object"),
    ("gptoss", '<|channel|>commentary to=functions.f<|message|>{"a": 1} {}<|call|>', "more text after its arguments"),
    ("gptoss", "<|channel|>commentary to=functions. json<|message|>{}<|call|>", "has no name"),
    ("gptoss", "<|channel|>commentary to=functions.f <|constrain|>json", "<|message|> and its arguments"),
    ("gptoss", "<|channel|>analysis to=python code<|message|>print(1)<|call|>", "call of 'python'"),
    ("deepseekv3", deepseek("<BS>f {}<ES>"), "follows"),
    ("deepseekv3", deepseek("<B>function<S>f\n```json\n{}\n<E>"), "``` was expected"),
    ("deepseekv3", deepseek("<B>f<S>{}"), "was expected after it"),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>f {}<|tool_call_end|><|tool_calls_section_end|>",
        "functions.NAME:PLACE",
    ),
    (
        "kimi_k2",
        "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{<|tool_call_end|>",
        "arguments are broken",
    ),
    (
        "minimax_m2",
        '<minimax:tool_call><invoke name="set"><parameter name="s">5</invoke></minimax:tool_call>',
        "</parameter> was expected",
    ),
    ("minimax_m2", "<minimax:tool_call></minimax:tool_call>", "a function's tag"),
    ("seed_oss", "<seed:tool_call><function=set></seed:tool_call>", "function's end"),
]


@pytest.mark.parametrize(("family", "text", "why"), BROKEN)
def test_what_is_meant_as_a_call_and_broken_is_a_problem_in_words(family, text, why):
    parsed = read(family, text)
    assert not parsed.calls and len(parsed.problems) == 1
    assert why in parsed.problems[0] and len(parsed.problems[0]) < 250


def test_calls_before_a_broken_one_count():
    parsed = read("llama3_1", '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {')
    assert said(parsed) == [("f", {})] and len(parsed.problems) == 1
    parsed = read("llama3_1", '{"name": "f", "parameters": {}} and more')
    assert said(parsed) == [("f", {})] and "more text after a call" in parsed.problems[0]
    parsed = read("mistral_v13", "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{")
    assert said(parsed) == [("f", {})] and len(parsed.problems) == 1
    parsed = read("gptoss", " to=functions.f<|message|>{}<|call|><|start|>assistant to=functions.g<|message|>{")
    assert said(parsed) == [("f", {})] and len(parsed.problems) == 1 and parsed.content == "{"


@pytest.mark.parametrize(
    ("family", "token"),
    [("glm4moe", "<|observation|>"), ("gptoss", "<|call|>"), ("llama3_1", "<|eom_id|>"), ("qwen3", None)],
)
def test_a_format_names_the_tokens_that_end_a_reply_of_calls(family, token):
    made = WRITERS[family]
    tokenizer = made.tokenizer()
    wanted = (tokenizer.convert_tokens_to_ids(token),) if token else ()
    assert tool_format(made.format, tokenizer).stop_token_ids == wanted


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"a": {"$ref": "#/$defs/none"}}},
        {"properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}},
        {"properties": []},
        [1],
        True,
    ],
)
def test_parameters_that_are_no_schema_or_lead_out_of_it_are_refused(parameters):
    with pytest.raises(ValueError, match="parameters of tool 'f' are no JSON schema"):
        ToolSpec.of_openai({"type": "function", "function": {"name": "f", "parameters": parameters}})


def test_a_schema_that_refers_to_itself_is_answered():
    tool = ToolSpec("f", parameters={"properties": {"a": {"$ref": "#/properties/a"}}})
    assert tool.problem({"a": 1}) == "the arguments are nested too deeply" and not tool.takes("a", 1)
    assert json.loads(read("glm4moe", glm(("a", "1"), name="f"), (tool,)).calls[0].arguments) == {"a": "1"}
