"""Registration of SeeUPO: one update for each turn of a trajectory."""

from agentevolver.recipes.seeupo.settings import SeeupoSettings
from agentevolver.utils.recipes import Recipe

RECIPE = Recipe(
    name="seeupo",
    settings=SeeupoSettings,
    check="agentevolver.recipes.seeupo.part:check",
    parts="agentevolver.recipes.seeupo.part:parts",
    stages={"advantage": {"batch_norm": "agentevolver.recipes.seeupo.stage:BatchNormStage"}},
    moved={
        "algorithm.update_order": "recipes.seeupo.order",
        "algorithm.sequential_clip": "recipes.seeupo.clip",
    },
)
