"""Templates by name: the built-in ones, the old names, a user's own; and keys that a template does not read."""

import sys

import pytest

from agentevolver.config.checks import load
from agentevolver.config.schema import RolloutSettings
from agentevolver.utils.errors import ConfigError
from context_manager.registry import COMMON, TEMPLATES, checked_template, template_class
from context_manager.settings import CONTEXT_TEMPLATES, OLD_TEMPLATE_NAMES, ContextSettings
from context_manager.template import ContextTemplate

ROLLOUT = "actor_rollout_ref.rollout"


@pytest.fixture(scope="module")
def settings():
    """Makes the rollout section out of the default configuration and what is set in it."""
    defaults = load(None, ["device=cpu"]).settings.rollout.model_dump()
    return lambda **values: RolloutSettings.model_validate({**defaults, **values})


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
        match=rf"{ROLLOUT}\.think_style is only read by reasoning, and context_template is own_templates:Own",
    ):
        checked_template(settings(context_template="own_templates:Own", think_style="granite"))
