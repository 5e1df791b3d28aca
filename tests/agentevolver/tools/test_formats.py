"""Formats by name, and the one that a chat template writes."""

import pytest

from agentevolver.errors import ConfigError
from agentevolver.tools.formats import TOOL_FORMATS, detect_format, tool_format
from tests.agentevolver.tools.replies import tokenizer_of
from tests.real_tokenizers import real_template

WRITTEN = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_instruct_2507": "hermes",
    "qwen3_vl": "hermes",
    "qwen3_5_think": "qwen3_coder",
    "qwen3_5_nothink": "qwen3_coder",
    "qwen3_6": "qwen3_coder",
    "nemotron_3_nano": "qwen3_coder",
    "llama3_1": "llama3",
    "llama3_2": "llama3",
    "glm4moe": "glm",
    "gptoss": "gpt_oss",
    "deepseekv3": "deepseek",
}


class Templated:
    """A tokenizer as far as its chat template goes."""

    def __init__(self, chat_template):
        self.chat_template = chat_template


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_a_format_says_its_name(name):
    assert tool_format(name, tokenizer_of("qwen3")).name == name


@pytest.mark.parametrize(("template", "name"), WRITTEN.items())
def test_auto_tells_a_format_by_the_real_template(template, name):
    assert detect_format(Templated(real_template(template))) == name
    assert detect_format(Templated({"default": "", "tool_use": real_template(template)})) == name


def test_auto_is_the_format_of_the_tokenizers_template():
    assert tool_format("auto", tokenizer_of("qwen3")).name == "hermes"


@pytest.mark.parametrize("template", ["gemma3", "gemma4", "phi3_5", "llama3", "cohere", "lfm2"])
def test_auto_refuses_a_template_that_it_cannot_tell_and_lists_the_names(template):
    with pytest.raises(ConfigError, match="no format that is known") as refused:
        detect_format(Templated(real_template(template)))
    assert all(name in str(refused.value) for name in TOOL_FORMATS)


@pytest.mark.parametrize("tokenizer", [object(), Templated(None), Templated({})])
def test_auto_refuses_a_tokenizer_without_a_template(tokenizer):
    with pytest.raises(ConfigError, match="no chat template"):
        tool_format("auto", tokenizer)


def test_a_name_that_is_no_formats_is_refused_with_the_names():
    with pytest.raises(ConfigError, match="no format is called 'hermse'; there are hermes"):
        tool_format("hermse", tokenizer_of("qwen3"))
