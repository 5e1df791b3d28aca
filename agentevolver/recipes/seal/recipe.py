"""Registration of SEAL: diagnoses of failures, and new tasks against the weaknesses that they show."""

from agentevolver.recipes.seal.settings import SealSettings
from agentevolver.utils.recipes import Recipe

RECIPE = Recipe(
    name="seal",
    settings=SealSettings,
    check="agentevolver.recipes.seal.checks:check",
    roles="agentevolver.recipes.seal.checks:roles",
    parts="agentevolver.recipes.seal.part:parts",
    moved={"task_manager.closed_loop": "recipes.seal"},
)
