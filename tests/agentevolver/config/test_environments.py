"""Several environments in one run: what may be written, what is refused, and what each of them is asked for."""

from pathlib import Path

import pytest

from agentevolver.config.checks import for_verl, from_config, load
from agentevolver.config.manager_settings import questionings
from agentevolver.config.schema import of_verl
from agentevolver.utils.errors import ConfigError
from tests.constants import ENDPOINT

BASIC = Path(__file__).parents[3] / "examples" / "basic.yaml"
TWO = "env_service.env_type={pocket: 2, gymnasium: 1}"
MADE = ("task_manager.n=1", "task_manager.mixture.synthetic_data_ratio=1")


def several(*overrides, two=TWO):
    return load(BASIC, ["device=cpu", "actor_rollout_ref.model.path=x", two, *overrides])


def test_a_name_is_one_environment_whose_settings_are_those_of_the_sections():
    settings = several(
        "env_service.env_params.slack=1", "env_service.val_env_params.slack=0", two="data.seed=2"
    ).settings
    (one,) = settings.environments
    assert settings.env_service.env_type == one.env_type == "pocket" and not settings.env_service.is_mixture
    assert one.params(validation=False) == {"slack": 1} and one.params(validation=True) == {"slack": 0}
    assert (one.train_split, one.val_splits) == ("train", ("dev",)) and not settings.draws_epochs
    assert several(two="env_service.env_type={pocket: 3}").settings == several(two="data.seed=1").settings


def test_several_keep_their_order_their_weights_and_what_is_different_in_one():
    settings = several(
        "env_service.env_params.slack=1",
        "env_service.environments.gymnasium={env_params: {}, val_splits: [val, test]}",
        "env_service.environments.gymnasium.train_filter={worlds: [Taxi-v4]}",
    ).settings
    pocket, gymnasium = settings.environments
    assert (pocket.env_type, pocket.weight, gymnasium.env_type, gymnasium.weight) == ("pocket", 2, "gymnasium", 1)
    assert pocket.params(validation=True) == {"slack": 1} and gymnasium.params(validation=True) == {}
    assert pocket.val_splits == ("dev",) and gymnasium.val_splits == ("val", "test")
    assert gymnasium.train_filter == {"worlds": ["Taxi-v4"]} and gymnasium.val_filter == {}
    assert settings.draws_epochs and settings.environment("gymnasium") is gymnasium
    with pytest.raises(ValueError, match="'bfcl' is not one of the run's environments: pocket, gymnasium"):
        settings.environment("bfcl")


def test_what_was_composed_reads_the_same_again_in_the_main_job_and_in_verls_processes():
    resolved = several("env_service.environments.gymnasium.val_splits=[val]")
    assert from_config(resolved.config) == of_verl(for_verl(resolved.config)) == resolved.settings


def test_the_command_line_puts_a_name_in_the_place_of_several(tmp_path):
    conf = tmp_path / "mix.yaml"
    conf.write_text("env_service: {env_type: {pocket: 2, gymnasium: 1}}\n")
    assert load(conf, ["device=cpu", "env_service.env_type=pocket"]).settings.env_service.env_type == "pocket"
    changed = load(conf, ["device=cpu", "env_service.env_type.gymnasium=3"]).settings.env_service
    assert changed.env_type == {"pocket": 2.0, "gymnasium": 3.0}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env_service.env_type={pocket: 0, gymnasium: 0}"], "env_type: all weights are 0"),
        (["env_service.env_type={pocket: -1, gymnasium: 1}"], "the weight of pocket must be a number of at least 0"),
        (["env_service.environments.bfcl.train_split=x"], r"environments.bfcl is not one of .* \(pocket, gymnasium\)"),
        (
            ["env_service.env_type.gymnasium=0", "env_service.environments.gymnasium.val_splits=[]"],
            "env_type.gymnasium = 0 and it has no val_splits",
        ),
        ([f"env_service.environments.{name}.val_splits=[]" for name in ("pocket", "gymnasium")], "val_splits is .."),
        (["data.shuffle=false"], "the command line: `data.shuffle` has no effect .* task_manager.mixture.shuffle"),
        ([*MADE, "task_manager.env_types=[bfcl]"], "env_types: bfcl is not trained on; .* pocket, gymnasium"),
        ([*MADE], "llm.base_url = offline: .*; name an endpoint for the role explorer .* or leave"),
        (
            [*MADE, "task_manager.env_types=[pocket]", "task_manager.mixture.use_original_tasks=false"],
            "use_original_tasks = false leaves gymnasium without tasks",
        ),
    ],
)
def test_what_cannot_be_is_one_line(overrides, message):
    with pytest.raises(ConfigError, match=message) as caught:
        several(*overrides, two=TWO if not overrides[0].startswith("env_service.env_type=") else "data.seed=1")
    assert "\n" not in str(caught.value)


@pytest.mark.thorough
def test_each_questioned_environment_has_its_own_file_journal_parameters_and_splits():
    resolved = several(
        *(*MADE, *ENDPOINT),
        "env_service.environments.gymnasium={train_split: val, val_splits: [test], env_params: {max_steps: 9}}",
    )
    pocket, gymnasium = questionings(resolved.settings)
    assert [one.env_service.env_type for one in (pocket, gymnasium)] == ["pocket", "gymnasium"]
    assert gymnasium.env_service.env_params == {"max_steps": 9} and pocket.env_service.env_params == {}
    assert (gymnasium.data.train_split, gymnasium.data.val_splits) == ("val", ["test"])
    names = [one.task_manager.train_data_path.name for one in (pocket, gymnasium)]
    assert names == ["tasks_explored.train.pocket.jsonl", "tasks_explored.train.gymnasium.jsonl"]
    assert pocket.task_manager.store_path != gymnasium.task_manager.store_path
    (plain,) = questionings(several(*MADE, *ENDPOINT, two="data.seed=1").settings)
    assert plain.task_manager.train_data_path.name == "tasks_explored.train.jsonl"


def test_a_weight_of_0_is_validated_on_and_nothing_else():
    settings = several(*MADE, *ENDPOINT, "env_service.env_type.gymnasium=0").settings
    assert settings.questioned == ("pocket",) and settings.environment("gymnasium").val_splits == ("dev",)
