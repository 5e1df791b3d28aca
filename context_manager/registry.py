"""Context templates by name or `package.module:Class`."""

from __future__ import annotations

from agentevolver.utils.errors import ConfigError
from agentevolver.utils.names import load_class
from context_manager.reasoning import ReasoningTemplate
from context_manager.self_managed import SelfManagedTemplate
from context_manager.settings import OLD_TEMPLATE_NAMES, ContextSettings
from context_manager.sliding_window import SlidingWindowTemplate
from context_manager.template import CausalTemplate, ContextTemplate

TEMPLATES: dict[str, type[ContextTemplate]] = {
    "causal": CausalTemplate,
    "reasoning": ReasoningTemplate,
    "sliding_window": SlidingWindowTemplate,
    "self_managed": SelfManagedTemplate,
}
# Keys that every template reads.
COMMON = frozenset({"context_template", "observation_role", "max_samples_per_trajectory", "sample_choice"})


def template_class(name: str) -> type[ContextTemplate]:
    built_in = TEMPLATES.get(OLD_TEMPLATE_NAMES.get(name, name))
    if built_in is not None:
        return built_in
    try:
        return load_class(name, ContextTemplate, (*TEMPLATES, *OLD_TEMPLATE_NAMES))
    except ValueError as error:
        raise ConfigError(f"context_template = {name}: {error}") from error


def checked_template(settings: ContextSettings) -> type[ContextTemplate]:
    """Return the configured template class; raises ConfigError for an unknown name or a key that it does not read."""
    template = template_class(settings.context_template)
    for key in ContextSettings.model_fields:
        if getattr(settings, key) is None or key in COMMON | template.reads:
            continue
        readers = " and ".join(name for name, other in TEMPLATES.items() if key in other.reads)
        raise ConfigError(
            f"actor_rollout_ref.rollout.{key} is only read by {readers}, and context_template is "
            f"{settings.context_template}: "
            "remove the key or choose another template"
        )
    return template
