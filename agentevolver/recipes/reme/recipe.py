"""Registration of the experience service."""

from agentevolver.utils.recipes import Recipe

RECIPE = Recipe(
    name="reme",
    stages={
        "backend": {"http": "agentevolver.recipes.reme.client:RemeBackend"},
        "command": {"experience_manager serve": "agentevolver.recipes.reme.command:serve"},
    },
    services="agentevolver.recipes.reme.launch:services",
    asks={"reme": ("summariser",)},
)
