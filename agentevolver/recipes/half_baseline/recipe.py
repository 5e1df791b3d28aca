"""Registration of the half baseline."""

from agentevolver.utils.recipes import Recipe

RECIPE = Recipe(
    name="half_baseline",
    stages={"reward": {"half_baseline": "agentevolver.recipes.half_baseline.stage:HalfBaseline"}},
)
