"""Registration of paired utility."""

from agentevolver.utils.recipes import Recipe

RECIPE = Recipe(
    name="utility",
    check="agentevolver.recipes.utility.checks:check",
    stages={"ranking": {"utility": "agentevolver.recipes.utility.ranking:UtilityRanking"}},
    moved={"exp_manager.utility": "exp_manager.ranking=utility, or exp_manager.ranking={use: utility, prior_sd: ...}"},
)
