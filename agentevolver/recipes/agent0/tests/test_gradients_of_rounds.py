"""What the overlays of a round's trainings say about rewards, advantages and clips is what the trainer takes."""

from pathlib import Path
from typing import Any

import pytest

from agentevolver.config.checks import from_config, load
from agentevolver.config.load import resolved_tree
from agentevolver.config.overlay import laid_over
from agentevolver.config.schema import Settings
from agentevolver.recipes.adpo.prepare import check_tasks
from agentevolver.recipes.agent0.overlays import GRADER, REWARD, proposer_overlay, solver_overlay
from agentevolver.recipes.agent0.settings import settings_of
from agentevolver.trainer.job.main import check_stages
from agentevolver.types import Task
from agentevolver.utils.errors import ConfigError
from tests.agentevolver.config.test_checks import BASIC, MODEL


def of_training(which: str, *overrides: str) -> Settings:
    resolved = load(BASIC, ["device=cpu", MODEL, *overrides])
    config: dict[str, Any] = dict(resolved_tree(resolved.config))
    folder, start = Path("experiments/x/round_1") / which, "/weights"
    if which == "proposer":
        made = proposer_overlay(config, resolved.settings, folder, tasks=8, start=start, executor="/frozen")
    else:
        made = solver_overlay(config, resolved.settings, folder, tasks=8, start=start)
    return from_config(laid_over(config, made))


@pytest.mark.thorough
def test_proposals_are_graded_at_the_frontier_and_rewarded_over_the_batch() -> None:
    settings = of_training("proposer")
    check_stages(settings)
    assert settings.task_manager.grader.original_grader == GRADER and settings.task_manager.grades_otherwise
    assert [stage.use for stage in settings.trainer.reward_stages] == [REWARD]
    assert settings_of(settings).frozen == "/frozen" and settings.roles == () and not settings.attribution.active
    check_tasks(None, settings, [Task("calc.left.3.f.1", "propose")])


def test_the_executor_has_the_scale_and_the_clip_of_one_pair_of_bounds() -> None:
    settings = of_training("solver", "recipes.agent0.keep=[0.2,0.9]", "recipes.agent0.adpo.s_min=0.5")
    check_stages(settings)
    outcome, ambiguity = settings.attribution.stages
    assert (outcome.use, outcome.options) == ("outcome", {"norm_by_std": True})
    assert (ambiguity.use, ambiguity.options) == ("ambiguity", {"lo": 0.2, "hi": 0.9, "s_min": 0.5})
    (clip,) = settings.trainer.row_clips
    assert (clip.use, clip.options) == ("ambiguity", {"lo": 0.2, "hi": 0.9, "bonus": 0.1})
    assert settings.attribution.attributor == "none" and settings.roles == ()
    with pytest.raises(ConfigError, match="adpo_p_hat"):
        check_tasks(None, settings, [Task("r1.0007", "calc")])


def test_without_adpo_training_is_grpo_as_it_was() -> None:
    settings = of_training("solver", "recipes.agent0.adpo.enable=false")
    assert not settings.attribution.enable and not settings.trainer.row_clips


def test_step_credit_of_the_configuration_stays_before_the_scale() -> None:
    credit = "attribution_driven_credit_assignment"
    settings = of_training("solver", f"{credit}.enable=true", f"{credit}.attributor=gigpo")
    assert settings.attribution.attributor == "gigpo"
    assert [stage.use for stage in settings.attribution.stages] == [
        *("outcome", "attribution", "hybrid_scale", "ambiguity")
    ]
