"""A resolved configuration with other values: what followed a key follows it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentevolver.config.checks import load
from agentevolver.config.load import resolved_tree
from agentevolver.config.overlay import check_overlay, laid_over
from agentevolver.config.trees import select
from agentevolver.utils.errors import ConfigError


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return resolved_tree(load(Path("examples/basic.yaml"), ["device=cpu", "llm.cache=${oc.env:HOME}"]).config)


@pytest.mark.thorough
def test_what_depends_on_a_key_follows_it_and_what_was_set_by_itself_stays(config: dict[str, Any]) -> None:
    own = laid_over({**config, "data": {**config["data"], "max_prompt_length": 123}}, {})
    assert own.data.max_prompt_length == 123
    changed = laid_over(config, {"experiment.dir": "/else/where", "data.max_response_length": 777})
    assert changed.trainer.default_local_dir == "/else/where/checkpoints"
    assert changed.actor_rollout_ref.actor.loss_scale_factor == 777
    apart = laid_over(config, {"actor_rollout_ref.actor.loss_scale_factor": 5, "data.max_response_length": 777})
    assert apart.actor_rollout_ref.actor.loss_scale_factor == 5


@pytest.mark.thorough
def test_a_mapping_takes_the_place_of_one_and_secrets_stay_where_they_are(config: dict[str, Any]) -> None:
    with_params = {**config, "env_service": {**config["env_service"], "env_params": {"verbose": True}}}
    changed = laid_over(with_params, {"env_service.env_params": {}})
    assert changed.env_service.env_params == {}
    raw = resolved_tree(changed)
    assert select(raw, "llm.cache") == "${oc.env:HOME}"


@pytest.mark.thorough
def test_a_key_that_nobody_reads_is_refused_with_its_source(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"recipes.agent0.proposer.override: unknown key `data.max_prompt`"):
        check_overlay(
            {**config, "llm": {**config["llm"], "cache": None}},
            {"data.max_prompt": 3},
            "recipes.agent0.proposer.override",
        )
