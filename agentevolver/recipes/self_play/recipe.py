"""Registration of self-play."""

from pathlib import Path

from agentevolver.recipes.self_play.settings import SelfPlaySettings
from agentevolver.utils.recipes import Recipe

RECIPE = Recipe(
    name="self_play",
    settings=SelfPlaySettings,
    defaults=Path(__file__).with_name("defaults.yaml"),
    check="agentevolver.recipes.self_play.checks:check",
    env_params="agentevolver.recipes.self_play.checks:env_params",
    parts="agentevolver.recipes.self_play.part:parts",
    services="agentevolver.recipes.self_play.service:services",
    frozen_gpus="agentevolver.recipes.self_play.service:frozen_gpus",
    neutral_keys=("url",),
    view="agentevolver.recipes.self_play.view:VIEW",
    moved={"self_play": "recipes.self_play"},
)
