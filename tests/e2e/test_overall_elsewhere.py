"""examples/overall.yaml on another world, all its roles played by a language model that behaves like a real one: two
real steps.

Sizes are made small (`test_examples`) and the policy is a random model with room for the world's openings; nothing else
is changed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.runs import Launched
from tests.e2e.test_examples import (
    ALL,
    FEW_OF_A_BENCHMARK,
    ROLLOUT,
    SHORT,
    STEPS,
    Case,
    check_parts,
    check_rollouts,
    counts,
    model,
    world,
)
from tests.llm.serving import served

pytestmark = [pytest.mark.e2e, pytest.mark.examples, pytest.mark.timeout(1200)]
__all__ = ["model"]

# Rows of thousands of tokens take their time on two cores.
FEW_ROWS = (
    "data.train_batch_size=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    f"{ROLLOUT}n=2",
    f"{ROLLOUT}val_kwargs.n=1",
)
CASES = {
    "bfcl": Case(
        (
            *(*FEW_OF_A_BENCHMARK, *SHORT, *FEW_ROWS, "data.max_prompt_length=6580", "data.val_splits=[dev]"),
            "data.val_filter.categories=[multi_turn_base]",
        ),
        model=True,
        room=8704,
    ),
    "appworld": Case((*FEW_OF_A_BENCHMARK, *SHORT, *FEW_ROWS, "data.max_prompt_length=4096"), model=True, room=6144),
}


@pytest.mark.parametrize("env_type", ["bfcl", "appworld"])
def test_overall_trains_there_with_a_server_that_behaves_like_a_real_one(
    env_type: str, tmp_path: Path, model: Path
) -> None:
    env = world(env_type)
    with served("--temper", "mild") as address:
        roles = (f"llm.base_url={address}/v1", "llm.model=any", "llm.api_key_env=null")
        overrides = (
            f"env_service.env_type={env_type}",
            *CASES[env_type].overrides(model),
            *roles,
            "ray.dashboard=false",
        )
        launched = Launched(tmp_path, env_type, overrides, conf="overall", env=env)
        try:
            assert launched.wait(1000) == 0, launched.output
            assert launched.processes() == launched.left_behind() == set()
            assert launched.steps_done() == list(range(STEPS + 1)), "the first validation, and each step"
            check_rollouts(launched, rows=4)
            check_parts(launched, ALL)
        finally:
            launched.end()
        asked = counts(address)
    ways = {name.removeprefix("way ") for name in asked if name.startswith("way ")}
    assert len(ways) >= 4 and asked["answered"] > 50, "it did behave like one"
