"""Proposer and executor carry out one round on calc, by executed labels or votes, the sizes made small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.policies import calc_policy
from tests.e2e.runs import Launched

pytestmark = [pytest.mark.e2e, pytest.mark.examples, pytest.mark.timeout(1800)]

AGENT0 = Path(__file__).parents[1] / "examples" / "agent0.yaml"
# Few steps, tasks and episodes: what is looked at is that the stages fit together.
SMALL = (
    *("device=cpu", "ray.dashboard=false", "recipes.agent0.rounds=1", "recipes.agent0.executor.steps=2"),
    *("recipes.agent0.executor.label_k=6", "recipes.agent0.executor.eval_n=1", "data.val_filter.levels=[2,3]"),
    *("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.rollout.n=4"),
    *("recipes.agent0.pool=24", "recipes.agent0.draws=96", "recipes.agent0.min_pool=4"),
)
CONDITIONS = {
    "executed": (
        *("recipes.agent0.proposer.steps=2", "recipes.agent0.proposer.batch_size=4", "recipes.agent0.proposer.n=4"),
        "recipes.agent0.executor.k=4",
    ),
    "frozen_vote": ("recipes.agent0.proposer.trained=false", "recipes.agent0.gate=vote"),
}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return calc_policy(tmp_path_factory.mktemp("calc") / "policy")


@pytest.mark.parametrize("name", list(CONDITIONS))
def test_one_round(name: str, policy: Path, tmp_path: Path) -> None:
    own = (f"actor_rollout_ref.model.path={policy}", *SMALL, *CONDITIONS[name])
    launched = Launched(tmp_path, name, own, conf=AGENT0)
    try:
        assert launched.wait(1500) == 0, launched.output
        assert launched.processes() == launched.left_behind() == set()
        manifest = json.loads((launched.directory / "coevolve.json").read_text())
    finally:
        launched.end()
    stages: dict[str, Any] = manifest["rounds"][1]["stages"]
    assert stages["propose"]["state"] == ("done" if name == "executed" else "skipped")
    assert stages["label"]["counts"]["kept"] >= 4
    assert stages["solve"]["state"] == stages["evaluate"]["state"] == "done", stages
