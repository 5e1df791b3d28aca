"""Which runs the teacher is started for, and which it refuses."""

import pytest

from agentevolver.config.checks import load
from agentevolver.llm.settings import OFFLINE
from agentevolver.utils.errors import ConfigError
from task_manager.settings import QuestioningConfiguration

CREDIT = "attribution_driven_credit_assignment"
ENABLED = f"{CREDIT}.enable=true"
MADE = ("task_manager.n=1", "task_manager.mixture.synthetic_data_ratio=1")
KNOWS = "the built-in teacher knows the environments pocket, pocket_app"


def test_its_seed_is_part_of_what_made_a_runs_tasks():
    def models(**teacher):
        tree = {"env_service": {"env_type": "pocket"}, "llm": {"teacher": teacher}}
        return QuestioningConfiguration.model_validate(tree).models

    assert models(seed=7)["judge"] != models()["judge"]


def made(*overrides, env_type="pocket"):
    return load(None, ["device=cpu", f"env_service.env_type={env_type}", *overrides]).settings


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "plays"),
    [
        ((), False),
        ((ENABLED,), True),
        ((ENABLED, f"{CREDIT}.attributor=gigpo"), False),
        ((ENABLED, "llm.roles.attributor={base_url: 'http://127.0.0.1:1/v1', api_key_env: null}"), False),
        (MADE, True),
    ],
)
def test_the_teacher_is_wanted_only_where_it_plays_a_role(overrides, plays):
    settings = made(*overrides)
    assert any(settings.llm.endpoint(role).base_url == OFFLINE for role in settings.roles) == plays


@pytest.mark.parametrize(
    ("overrides", "env_type", "message"),
    [
        ((ENABLED,), "bfcl", f"as attributor {KNOWS} alone, not bfcl"),
        ((ENABLED,), "pocket_long", f"as attributor {KNOWS} alone"),
        (
            (
                "actor_rollout_ref.rollout.context_template=sliding_window",
                "actor_rollout_ref.rollout.summary_by=summariser",
            ),
            "bfcl",
            f"as summariser {KNOWS}, pocket_long alone",
        ),
        (MADE, "{pocket: 2, gymnasium: 1}", "as explorer the built-in teacher knows .* not gymnasium; .* or leave"),
    ],
)
def test_an_environment_that_it_does_not_know_is_refused(overrides, env_type, message):
    with pytest.raises(ConfigError, match=message):
        made(*overrides, env_type=env_type)
