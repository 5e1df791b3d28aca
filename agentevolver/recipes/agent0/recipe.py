"""Registration of Agent0: a proposer makes tasks for an executor."""

from agentevolver.recipes.agent0.settings import Agent0Settings
from agentevolver.utils.recipes import Recipe

RECIPE = Recipe(
    name="agent0",
    settings=Agent0Settings,
    layer="agentevolver.recipes.agent0.launch:layer",
    check="agentevolver.recipes.agent0.checks:check",
    warnings="agentevolver.recipes.agent0.checks:warnings",
    serves="agentevolver.recipes.agent0.launch:serves",
    services="agentevolver.recipes.agent0.launch:services",
    frozen_gpus="agentevolver.recipes.agent0.launch:frozen_gpus",
    main="agentevolver.recipes.agent0.launch:main",
    progress="coevolve.json",
    view="agentevolver.recipes.agent0.view:VIEW",
    open_keys=("proposer.override",),
    neutral_keys=("rounds", "url", "executor.gpus"),
    moved={
        "coevolve": "recipes.agent0",
        "recipes.agent0.executor.override": "its keys outside recipes.agent0: the file is the executor's configuration",
    },
)
