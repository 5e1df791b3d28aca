"""Registration of Agent0: a proposer and an executor that raise each other."""

from agentevolver.utils.recipes import Recipe

RECIPE = Recipe(name="agent0", view="agentevolver.recipes.agent0.view:VIEW")
