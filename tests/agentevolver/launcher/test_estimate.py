"""What a configuration asks of language models, counted from its keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentevolver.config.checks import load
from agentevolver.launcher import cli
from agentevolver.launcher.estimate import expected

EXAMPLES = Path(__file__).parents[3] / "examples"


def calls(example: str, *overrides: str) -> dict[str, int]:
    resolved = load(EXAMPLES / example, ["exp_manager.encoder.kind=hashing", *overrides])
    trainer = resolved.config.trainer
    activities, _ = expected(resolved.settings, trainer.total_training_steps, trainer.total_epochs)
    return {activity.name: activity.calls for activity in activities if activity.calls}


@pytest.mark.thorough
def test_calls_follow_from_the_sizes() -> None:
    sizes = [
        *("task_manager.max_seed_tasks=10", "task_manager.n=2", "trainer.total_training_steps=5"),
        *("data.train_batch_size=4", "actor_rollout_ref.rollout.n=6", "actor_rollout_ref.actor.ppo_mini_batch_size=4"),
        *("task_manager.strategy_args.breadth_steps=3", "task_manager.strategy_args.depth_steps=5"),
    ]
    found = calls("overall.yaml", *sizes)
    assert found["exploring"] == 10 * 2 * 8
    assert found["making up tasks"] == 20
    assert found["labelling steps"] == 5 * 4 * 6
    labelled = "attribution_driven_credit_assignment.adca_grpo.prm_steps=2"
    more = calls("overall.yaml", *sizes, "task_manager.verification.resolve=true", labelled)
    assert more["solving again"] == 20 * 5 * 7
    assert more["labelling steps"] == 2 * 4 * 6
    assert found.keys() ^ more.keys() == {"solving again"}


@pytest.mark.thorough
def test_a_dry_run_tells_it_and_warns_of_the_budget(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    conf = str(EXAMPLES / "questioning.yaml")
    overrides = ["llm.budget.max_tokens=1000", f"experiment.root={tmp_path}"]
    assert cli.main(["--conf", conf, *overrides, "--dry-run"], tmp_path) == 0
    said = capsys.readouterr().out
    assert "language models: an estimate" in said and "exploring" in said
    assert "WARNING: the budget would be spent before the end" in said
