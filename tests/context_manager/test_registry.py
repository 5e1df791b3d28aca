"""Templates by name: the built-in ones, the old names, a user's own; and keys that a template does not read."""

import sys

import pytest

from agentevolver.config.checks import load
from agentevolver.config.schema import RolloutSettings
from agentevolver.errors import ConfigError
from context_manager.reasoning import ReasoningTemplate
from context_manager.registry import COMMON, TEMPLATES, checked_template, template_class
from context_manager.self_managed import SelfManagedTemplate
from context_manager.settings import CONTEXT_TEMPLATES, OLD_TEMPLATE_NAMES, ContextSettings
from context_manager.sliding_window import SlidingWindowTemplate
from context_manager.template import CausalTemplate, ContextTemplate

ROLLOUT = "actor_rollout_ref.rollout"


@pytest.fixture(scope="module")
def settings():
    """Makes the rollout section out of the default configuration and what is set in it."""
    defaults = load(None, ["device=cpu"]).settings.rollout.model_dump()
    return lambda **values: RolloutSettings.model_validate({**defaults, **values})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("causal", CausalTemplate),
        ("linear", CausalTemplate),
        ("reasoning", ReasoningTemplate),
        ("linear_think", ReasoningTemplate),
        ("self_managed", SelfManagedTemplate),
        ("context_selfclip", SelfManagedTemplate),
        ("sliding_window", SlidingWindowTemplate),
        ("context_manager.template:CausalTemplate", CausalTemplate),
    ],
)
def test_a_name_old_or_new_or_a_place_is_a_template(settings, name, expected):
    assert template_class(settings(context_template=name).context_template) is expected


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("linea", "write one of causal, reasoning, .*linear_think"),
        ("no.such.module:Template", "No module named"),
        ("context_manager.template:Nothing", "has no attribute 'Nothing'"),
        ("context_manager.settings:ContextSettings", "is not a subclass of context_manager.template.ContextTemplate"),
        ("context_manager.registry:TEMPLATES", "is not a subclass"),
        (":X", "write one of"),
    ],
)
def test_a_name_that_cannot_be_used_says_what_to_write(name, said):
    with pytest.raises(ConfigError, match=said):
        template_class(name)


def test_the_configuration_and_the_templates_agree_on_names_and_every_optional_key_has_a_reader():
    assert set(TEMPLATES) | set(OLD_TEMPLATE_NAMES) == set(CONTEXT_TEMPLATES)
    read = {key for template in TEMPLATES.values() for key in template.reads}
    assert set(ContextSettings.model_fields) == COMMON | read


@pytest.fixture
def own_template(monkeypatch):
    class Own(ContextTemplate):
        reads = frozenset({"summary_tokens"})

    module = type(sys)("own_templates")
    module.Own = Own
    monkeypatch.setitem(sys.modules, "own_templates", module)
    return Own


def test_a_users_own_template_says_itself_which_keys_it_reads(own_template, settings):
    chosen = settings(context_template="own_templates:Own", summary_tokens=64)
    assert template_class(chosen.context_template) is own_template
    assert checked_template(chosen) is own_template
    with pytest.raises(
        ConfigError,
        match=rf"{ROLLOUT}\.think_hint is only read by reasoning, and context_template is own_templates:Own",
    ):
        checked_template(settings(context_template="own_templates:Own", think_hint="x"))


def test_a_key_that_a_built_in_template_does_not_read_is_refused():
    with pytest.raises(ConfigError, match="summary_by"):
        load(None, ["device=cpu", f"{ROLLOUT}.context_template=self_managed", f"{ROLLOUT}.summary_by=nobody"])
