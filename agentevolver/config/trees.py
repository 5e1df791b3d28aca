"""Configurations as plain trees: dotted keys and their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentevolver.utils import recipes

# Mappings that take any key, because others define their keys (vLLM's arguments, a model's config, an environment's
# parameters).
FREE_FORM = (
    "actor_rollout_ref.model.override_config",
    "actor_rollout_ref.rollout.engine_kwargs",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "data.apply_chat_template_kwargs",
    "data.train_filter",
    "data.val_filter",
    "device_env",
    "env_service.env_params",
    "env_service.env_type",
    "env_service.environments",
    "env_service.val_env_params",
    "exp_manager.ranking",
    "exp_manager.scout.filter",
    "llm.roles",
    "llm.sampling",
    "ray_kwargs.ray_init",
    "trainer.v1.sampler.sampler_kwargs",
)


def open_keys() -> tuple[str, ...]:
    """Return the keys whose mapping takes any key, including those of recipes."""
    own = (f"recipes.{name}.{key}" for name, recipe in recipes.recipes().items() for key in recipe.open_keys)
    return (*FREE_FORM, *own)


def leaves(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys with their values. An empty mapping counts as a value."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def paths(tree: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every key, including sections."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            path = f"{prefix}{key}"
            yield path
            yield from paths(value, f"{path}.")


def select(tree: Any, path: str, default: Any = None) -> Any:
    """Return the value at a dotted path, or `default` if the path is missing."""
    for key in path.split("."):
        if not isinstance(tree, Mapping) or key not in tree:
            return default
        tree = tree[key]
    return tree


def nested(path: str, value: Any) -> dict[str, Any]:
    """Return a tree with `value` at a dotted path."""
    for key in reversed(path.split(".")):
        value = {key: value}
    tree: dict[str, Any] = value
    return tree


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
