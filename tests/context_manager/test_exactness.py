"""What is sent and what the chat template renders of the whole conversation, token for token: the table of
docs/context_manager.md, computed with the real templates; and the warnings before training."""

from pathlib import Path

import pytest

from context_manager.chat import ChatRenderer, ChatTemplateError
from context_manager.exactness import ROLES, check_template, find_drift
from context_manager.settings import ContextSettings
from tests.real_tokenizers import build_family
from tests.tools_of_families import TOOL_FAMILIES

DOCS = Path(__file__).parents[2] / "docs" / "context_manager.md"
# The models of the table: a family, and what its chat template is told.
MODELS = {
    "Qwen2.5": ("qwen2_5", {}),
    "Qwen3, thinking": ("qwen3", {}),
    "Qwen3, `enable_thinking: false`": ("qwen3", {"enable_thinking": False}),
    "Qwen3-Instruct-2507": ("qwen3_instruct_2507", {}),
    "Qwen3.5, thinking": ("qwen3_5_think", {}),
    "Qwen3.5, `enable_thinking: false`": ("qwen3_5_think", {"enable_thinking": False}),
    "Qwen3.5 up to 2B": ("qwen3_5_nothink", {}),
    "Llama 3.1": ("llama3_1", {}),
    "Llama 3.2": ("llama3_2", {}),
    "GLM-4-MoE, thinking": ("glm4moe", {}),
    "GLM-4-MoE, `enable_thinking: false`": ("glm4moe", {"enable_thinking": False}),
    "Mistral, third format": ("mistral_v3", {}),
    "Mistral, seventh format": ("mistral_v7", {}),
    "gpt-oss": ("gptoss", {}),
    "DeepSeek-V3": ("deepseekv3", {}),
}
TEMPLATES = ("causal", "reasoning")
HEAD = f"| model | {' | '.join(f'`{name}`, {role}' for name in TEMPLATES for role in ROLES)} | can be shortened |"


def outcome(renderer, template, role):
    try:
        drift = find_drift(renderer, ContextSettings(context_template=template), role)
    except ChatTemplateError:
        return "refused"
    return "drifts" if drift else "**exact**"


def row(model, vocabulary="bytes"):
    name, kwargs = MODELS[model]
    renderer = ChatRenderer(build_family(TOOL_FAMILIES[name], vocabulary), kwargs)
    cells = [outcome(renderer, template, role) for template in TEMPLATES for role in ROLES]
    shortened = {outcome(renderer, template, "user") for template in ("sliding_window", "self_managed")}
    return f"| {model} | {' | '.join(cells)} | {'no' if 'refused' in shortened else 'yes'} |"


@pytest.mark.thorough
@pytest.mark.parametrize("model", MODELS)
def test_the_table_says_what_the_templates_do(model):
    lines = DOCS.read_text(encoding="utf-8").splitlines()
    assert HEAD in lines, f"the head of the table is\n{HEAD}\n|{'---|' * (HEAD.count('|') - 1)}"
    assert row(model) in lines, f"the row of {model} is\n{row(model)}"


def settings(**keys):
    return ContextSettings(**keys)


def real(name, **kwargs):
    return ChatRenderer(build_family(TOOL_FAMILIES[name]), kwargs)


def test_nothing_is_said_of_what_is_exact():
    assert check_template(real("qwen2_5"), settings()) == []
    assert check_template(real("qwen3"), settings(observation_role="tool")) == []
    assert check_template(real("qwen3_instruct_2507"), settings(), []) == []


def test_a_combination_that_drifts_is_said_with_what_differs_and_what_to_choose():
    (warning,) = check_template(real("qwen3"), settings())
    assert "with context_template causal and observation_role user the chat template" in warning
    assert "before reply 2 the policy reads" in warning and "Weigh 1." in warning
    assert warning.endswith(
        "identical with context_template causal and observation_role tool, "
        "context_template reasoning and observation_role user"
    )


def test_what_a_template_refuses_is_refused():
    with pytest.raises(ChatTemplateError, match="refuses messages of the roles user, assistant, tool"):
        check_template(real("gptoss"), settings(observation_role="tool"))
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        check_template(real("mistral_v7"), settings(context_template="sliding_window"))
