"""Recipes: methods beside the core, and how the core finds them.

A recipe of this repository is a folder `agentevolver/recipes/<name>/` whose module `recipe` holds `RECIPE`; other
packages use entry points of the group `agentevolver.recipes`. The core imports only what a registration names, when it
is needed.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentevolver.utils.names import imported, load_named

GROUP = "agentevolver.recipes"
FOLDER = Path(__file__).resolve().parents[1] / "recipes"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Registration of a recipe. Functions are named as `package.module:function`, so that reading it is cheap: its
    module may import pydantic, but not torch, verl or ray."""

    name: str
    settings: type[BaseModel] | None = None
    """Model of the section `recipes.<name>`. With the defaults of all fields the recipe does nothing."""
    defaults: Path | None = None
    """YAML above the device group's layer and below the experiment: defaults that refer to other keys."""
    layer: str | None = None
    """`function(device, written) -> Mapping`: defaults that depend on the device group and on what the user wrote."""
    over: str | None = None
    """`function(written) -> Sequence[Mapping]`: keys over the user's own, if what the user wrote asks for them."""
    check: str | None = None
    """`function(settings, config, layers)`: raises `ConfigError` for an invalid configuration. `layers` are the
    user's own trees, each with its source, or () if only the composed tree is known."""
    warnings: str | None = None
    """`function(settings, config) -> list[str]`: warnings about allowed but risky settings."""
    prepare: str | None = None
    """`function(config, settings, tasks)`: checks the run's tasks before the costly start; raises `ConfigError`."""
    parts: str | None = None
    """`function(context) -> Sequence[TrainerPart]` (`agentevolver.trainer.recipe_parts`); empty if it is off."""
    stages: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Names that other keys may use, by kind (`advantage`, `reward`, `clip`, `ranking`, `backend`): name ->
    `package.module:Class`. Kind `command`: commands of `python -m PACKAGE`, as `PACKAGE COMMAND`."""
    services: str | None = None
    """`function(launch) -> Services | None` (`agentevolver.launcher.plan`)."""
    asks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """NAME of a service that `--with-NAME` starts -> roles of the section `llm` that the service calls."""
    frozen_gpus: str | None = None
    """`function(section) -> int | None`: GPUs that only the server of frozen policies uses, or None without such a
    server. `section` is `recipes.<name>` as a plain tree."""
    main: str | None = None
    """`function(settings) -> str | None`: the module to run as the main job instead of the trainer."""
    progress: str | None = None
    """File in the experiment's folder from which the recipe's main job resumes. Its trainings, with their checkpoints,
    have their own folders."""
    roles: str | None = None
    """`function(settings) -> Sequence[Role]`: roles of the section `llm` that the recipe calls outside rollouts."""
    env_params: str | None = None
    """`function(settings, env_type) -> Mapping`: parameters of instances, beside the configured ones."""
    serves: str | None = None
    """`function(settings) -> Sequence[str]`: environments that the run's service serves, beside the configured one."""
    stand_in: type[BaseModel] | None = None
    """Settings of a program that plays the roles of the section `llm` whose endpoint is `offline`
    (a subclass of `agentevolver.llm.settings.StandIn`)."""
    environment: str | None = None
    """Default environment of commands."""
    models: Mapping[str, Path] = field(default_factory=dict)
    """Models that come with the recipe: name -> folder."""
    view: str | None = None
    """`package.module:VIEW` of a view of the page (`agentevolver.view.views.AddedView`)."""
    open_keys: tuple[str, ...] = ()
    """Keys of the section whose values are mappings with free keys."""
    neutral_keys: tuple[str, ...] = ()
    """Patterns of keys of the section that do not affect the training result."""
    moved: Mapping[str, str] = field(default_factory=dict)
    """Keys of earlier releases: old name -> new spelling."""

    def call(self, hook: str, *arguments: Any) -> Any:
        named: str | None = getattr(self, hook)
        return None if named is None else imported(named)(*arguments)


class StageSettings(BaseModel):
    """A stage by name, with options: `NAME`, or `{use: NAME, option: value}`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    use: str = Field(min_length=1, description="a built-in stage, an entry point's name, or package.module:Stage")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"use": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    def make(self, kind: str, *arguments: Any) -> Any:
        """Construct what `use` names among the stages of a kind, with the options. Raises ValueError, which names both.

        Args:
            arguments: come before the options.
        """
        try:
            made: Any = load_named(self.use, stages(kind))
            return made(*arguments, **self.options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.use!r} with the options {self.options}: {error}") from error


@functools.cache
def recipes() -> Mapping[str, Recipe]:
    # Recipes of this repository win over entry points of the same name.
    found: dict[str, Recipe] = {point.name: point.load() for point in entry_points(group=GROUP)}
    for path in sorted(FOLDER.glob("*/recipe.py")):
        recipe: Recipe = importlib.import_module(f"agentevolver.recipes.{path.parent.name}.recipe").RECIPE
        found[recipe.name] = recipe
    return found


def stages(kind: str) -> Mapping[str, str]:
    """Return one kind of stage of all recipes: name -> `package.module:Class`."""
    return {name: spec for recipe in recipes().values() for name, spec in recipe.stages.get(kind, {}).items()}


def models() -> Mapping[str, Path]:
    return {name: folder for recipe in recipes().values() for name, folder in recipe.models.items()}


def default_environment() -> str | None:
    return next((recipe.environment for recipe in recipes().values() if recipe.environment is not None), None)


def frozen_gpus(config: Any) -> int | None:
    """Return how many GPUs only the server of frozen policies uses, or None."""
    sections = config.get("recipes") or {}
    found = (recipe.call("frozen_gpus", sections[name]) for name, recipe in recipes().items() if name in sections)
    return next((gpus for gpus in found if gpus is not None), None)


def in_progress(experiment: Path) -> bool:
    return any((experiment / recipe.progress).exists() for recipe in recipes().values() if recipe.progress)


def written(layers: Sequence[Mapping[str, Any]], path: str) -> Any:
    """Return the value at a dotted path in the strongest layer that has one, or None."""
    for layer in reversed(layers):
        value: Any = layer
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def called(hook: str, *arguments: Any) -> list[Any]:
    """Call a hook of every recipe and return the results that are not None."""
    answers = (recipe.call(hook, *arguments) for _, recipe in sorted(recipes().items()))
    return [answer for answer in answers if answer is not None]
