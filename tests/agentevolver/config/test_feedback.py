"""Feedback of an environment: validation and the making of tasks never hear it."""

from pathlib import Path

import pytest

from agentevolver.config.checks import load
from agentevolver.config.manager_settings import from_settings
from agentevolver.utils.errors import ConfigError

BASIC = Path(__file__).parents[3] / "examples" / "basic.yaml"


def settings(*items):
    return load(BASIC, ["device=cpu", "actor_rollout_ref.model.path=x", *items]).settings


@pytest.mark.thorough
def test_validation_is_always_plain_and_so_is_making_tasks():
    made = settings("env_service.env_params.feedback=recovery")
    environment = made.environments[0]
    assert environment.params(validation=False)["feedback"] == "recovery"
    assert environment.params(validation=True)["feedback"] == "plain"
    assert "feedback" not in from_settings(made).env_service.env_params
    assert "feedback" not in settings().environments[0].params(validation=True)
    with pytest.raises(ConfigError, match="validation always uses plain"):
        settings("env_service.val_env_params.feedback=schema")
