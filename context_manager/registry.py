"""Context templates by name: the built-in ones, AgentEvolver's old names, and a user's own as `package.module:Class`.

A name that cannot be used, or an optional key that the template does not read, raises `ConfigError` before any episode begins.
"""

from __future__ import annotations

import importlib
from dataclasses import fields

from agentevolver.config.schema import OLD_TEMPLATE_NAMES, RolloutSettings, SizeSettings
from agentevolver.errors import ConfigError
from context_manager.causal import CausalTemplate
from context_manager.reasoning import ReasoningTemplate
from context_manager.self_managed import SelfManagedTemplate
from context_manager.sliding_window import SlidingWindowTemplate
from context_manager.template import ContextLimits, ContextOptions, ContextTemplate

TEMPLATES: dict[str, type[ContextTemplate]] = {
    "causal": CausalTemplate,
    "reasoning": ReasoningTemplate,
    "sliding_window": SlidingWindowTemplate,
    "self_managed": SelfManagedTemplate,
}
# What every template reads.
COMMON = frozenset({"observation_role", "max_samples_per_trajectory", "sample_choice"})


def template_class(name: str) -> type[ContextTemplate]:
    """Return the class behind a name. Raises ConfigError if there is none."""
    built_in = TEMPLATES.get(OLD_TEMPLATE_NAMES.get(name, name))
    if built_in is not None:
        return built_in
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        known = ", ".join([*TEMPLATES, *OLD_TEMPLATE_NAMES])
        raise ConfigError(f"context_template = {name}: {error}; write one of {known}, or package.module:Class") from error
    if not (isinstance(found, type) and issubclass(found, ContextTemplate)):
        raise ConfigError(f"context_template = {name}: {found!r} is not a subclass of context_manager.template.ContextTemplate")
    return found


def context_options(settings: RolloutSettings) -> ContextOptions:
    """Return the optional keys of a configuration, checked against what its template reads. Raises ConfigError."""
    options = ContextOptions(**{field.name: getattr(settings, field.name) for field in fields(ContextOptions)})
    reads = template_class(settings.context_template).reads | COMMON
    for field in fields(ContextOptions):
        if getattr(options, field.name) is not None and field.name not in reads:
            raise ConfigError(f"actor_rollout_ref.rollout.{field.name} is not read by the template {settings.context_template}: remove it")
    return options


def context_limits(rollout: RolloutSettings, sizes: SizeSettings) -> ContextLimits:
    """Return the limits of a configuration's conversations, in tokens."""
    return ContextLimits(
        max_prompt_tokens=sizes.max_prompt_length,
        max_response_tokens=sizes.max_response_length,
        max_model_len=sizes.max_model_len,
        max_new_tokens=sizes.response_length,
        max_observation_tokens=rollout.max_env_len,
    )
