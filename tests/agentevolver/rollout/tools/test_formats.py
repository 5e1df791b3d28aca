"""Formats by name, and the one that a chat template writes."""

import pytest

from agentevolver.rollout.tools.formats import detect_format, tool_format
from agentevolver.utils.errors import ConfigError
from tests.real_tokenizers import build_real, real_template


class Templated:
    """A tokenizer as far as its chat template goes."""

    def __init__(self, chat_template):
        self.chat_template = chat_template


@pytest.mark.parametrize(("template", "name"), [("qwen2_5", "hermes"), ("qwen3", "hermes"), ("llama3_1", "llama3")])
def test_auto_tells_a_format_by_the_real_template(template, name):
    assert detect_format(Templated(real_template(template))) == name
    assert detect_format(Templated({"default": "", "tool_use": real_template(template)})) == name


@pytest.mark.parametrize(("name", "instead"), [("hermse", "hermes, llama3, vllm:NAME"), ("kimi", "vllm:kimi_k2")])
def test_a_name_that_is_no_formats_is_refused_with_what_to_write(name, instead):
    with pytest.raises(ConfigError, match=f"there is no format '{name}'; set it to {instead}"):
        tool_format(name, build_real("qwen3"))
