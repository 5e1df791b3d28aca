"""Registration of ADPO, ambiguity-dynamic policy optimisation."""

from agentevolver.utils.recipes import Recipe

RECIPE = Recipe(
    name="adpo",
    prepare="agentevolver.recipes.adpo.prepare:check_tasks",
    stages={
        "advantage": {"ambiguity": "agentevolver.recipes.adpo.stage:AmbiguityStage"},
        "clip": {"ambiguity": "agentevolver.recipes.adpo.clip:AmbiguityClip"},
    },
)
