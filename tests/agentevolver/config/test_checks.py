"""The configuration: every mistake is one line before anything is started, and what is accepted is read."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from agentevolver.config.checks import for_verl, load
from agentevolver.config.schema import of_verl
from agentevolver.utils.errors import ConfigError
from tests.constants import ENDPOINT

BASIC = Path(__file__).parents[3] / "examples" / "basic.yaml"
QUESTIONING = BASIC.with_name("questioning.yaml")
NAVIGATING = BASIC.with_name("navigating.yaml")
MODEL = "actor_rollout_ref.model.path=somewhere"


def basic(*overrides, device="cpu"):
    return load(BASIC, [f"device={device}", MODEL, *overrides])


def test_the_cpu_group_overrides_the_gpu_defaults_and_the_command_line_overrides_both():
    key = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"

    def most(*overrides, device="cpu"):
        return OmegaConf.select(basic(*overrides, device=device).config, key)

    assert most() < most(device="cuda")
    assert most(f"{key}={4 * most()}") == 4 * most()


def test_the_experiments_yaml_overrides_the_device_group(tmp_path):
    conf = tmp_path / "mine.yaml"
    conf.write_text("data: {train_batch_size: 16}\nenv_service: {env_type: pocket}\n")
    resolved = load(conf, ["device=cpu", MODEL])
    assert resolved.settings.sizes.train_batch_size == 16
    assert resolved.config.trainer.experiment_name == "mine"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("env_service.pass_env=[../KEY]", r"env_service.pass_env.*found '../KEY'"),
        ("actor_rollout_ref.rollout.response_length=30000", r"one reply must fit"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=dro", r"loss_mode = dro needs .*dro_beta above 0, found None"),
        ("data.train_batch_size=7", r"must be a multiple of actor_rollout_ref.actor.ppo_mini_batch_size"),
        ("task_manager.mixture.use_original_tasks=false", r"task_manager.mixture: use_original_tasks is false"),
        ("task_manager.mixture.synthetic_data_ratio=1", r"no file of synthetic tasks at .*explored.train.jsonl"),
        ("task_manager.grader.original_grader=state", r"original_grader = state: "),
    ],
)
def test_a_wrong_override_is_one_line_that_says_what_to_change(override, message):
    with pytest.raises(ConfigError, match=message) as caught:
        basic(override)
    assert "\n" not in str(caught.value)


ENABLED = "attribution_driven_credit_assignment.enable=true"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env_service.env_type=bfcl"], r"llm.base_url = offline: .*; name an endpoint for the role attributor"),
        (["llm.base_url=https://api.example.com/v1"], r"asks https://api.example.com/v1, whose key is missing"),
        (
            [*ENDPOINT, "algorithm.use_kl_in_reward=true"],
            r"algorithm.use_kl_in_reward = true: attribution uses only the outcome",
        ),
    ],
)
def test_a_judge_that_cannot_work_is_refused_before_the_start(overrides, message, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert basic(*overrides).settings.roles == ()
    with pytest.raises(ConfigError, match=message) as caught:
        basic(ENABLED, *overrides)
    assert "\n" not in str(caught.value)


SUMMARISED = (
    "actor_rollout_ref.rollout.context_template=sliding_window",
    "actor_rollout_ref.rollout.summary_by=summariser",
)


@pytest.mark.thorough
def test_summaries_that_nobody_can_write_are_refused_before_the_start(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"offline: .*; name an endpoint for the role summariser"):
        basic(*SUMMARISED, "env_service.env_type=bfcl")
    with pytest.raises(ConfigError, match=r"the role summariser asks .* whose key is missing"):
        basic(*SUMMARISED, "llm.base_url=https://api.example.com/v1")


def roles(*overrides):
    return sorted(role.value for role in basic(*ENDPOINT, *overrides).settings.roles)


@pytest.mark.thorough
def test_making_tasks_and_grading_ask_the_roles_they_need_and_no_others():
    makes = ("task_manager.n=1", "task_manager.mixture.synthetic_data_ratio=1")
    assert roles() == roles("task_manager.n=1") == []
    assert roles(*makes) == ["explorer", "judge", "synthesiser"]
    assert roles(*makes, "task_manager.verification.resolve=true") == ["explorer", "judge", "synthesiser", "verifier"]
    alone = ("task_manager.verification.judge=false", "task_manager.grader.synthetic_grader=state")
    assert roles(*makes, *alone) == ["explorer", "synthesiser"]
    assert roles("task_manager.grader.original_grader=llm") == ["judge"]
    assert roles("task_manager.grader.compare_with=llm") == ["judge"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("llm.roles.judge.base_url=policy", "llm.roles.judge.base_url = policy: the role"),
        ("llm.base_url=https://api.example.com/v1", "the role explorer asks .* whose key is missing"),
        ("task_manager.grader.fallback_grader=state", r"fallback_grader = state cannot grade such tasks"),
    ],
)
def test_questioning_that_cannot_work_is_refused_before_the_start(override, message, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=message) as caught:
        load(QUESTIONING, ["device=cpu", MODEL, *(ENDPOINT if "api.example" not in override else ()), override])
    assert "\n" not in str(caught.value)


def test_a_key_that_stands_where_its_name_belongs_is_not_shown():
    with pytest.raises(ConfigError, match="api_key_env") as caught:
        basic("llm.api_key_env=sk-verysecret")
    assert "verysecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("trainer: [", "cannot be read as yaml"),
        ("defaults: [x]", "unknown key `defaults`: the launcher"),
        ("trainer: {exprment_name: x}", "did you mean `trainer.experiment_name`"),
    ],
)
def test_a_wrong_yaml_is_one_line_that_names_the_file(tmp_path, content, message):
    conf = tmp_path / "bad.yaml"
    conf.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load(conf, ["device=cpu"])
    assert "bad.yaml" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.thorough
def test_verl_gets_its_own_keys_alone_and_our_view_beside_them():
    config = for_verl(basic().config)
    assert "context_template" not in config.actor_rollout_ref.rollout
    assert "max_steps" not in config.actor_rollout_ref.rollout.multi_turn
    assert of_verl(config) == basic().settings


def navigating(*overrides):
    return load(
        NAVIGATING,
        ["device=cpu", MODEL, *(f"exp_manager.{item}" if not item.startswith("=") else item[1:] for item in overrides)],
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["rollout_ratio=0.1"],
            r"exp_manager.rollout_ratio = 0.1 of actor_rollout_ref.rollout.n = 8 rollouts rounds to 0",
        ),
        (["=algorithm.rollout_correction.bypass_mode=true"], r"would use log-probs of the guided prompt"),
        (["=actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov"], r"loss_mode = clip_cov has no upper clip"),
        (["=algorithm.filter_groups.enable=true"], r"algorithm.filter_groups.enable = true would also filter"),
        (["=llm.base_url=policy"], r"llm.roles.summariser.base_url = policy: the role is also called while no policy"),
    ],
)
def test_guidance_that_cannot_be_given_or_trained_on_is_refused_before_the_start(overrides, message):
    with pytest.raises(ConfigError, match=message) as caught:
        navigating(*overrides)
    assert "\n" not in str(caught.value)


def test_guidance_from_a_pool_that_nothing_fills_is_refused_unless_there_is_one(tmp_path):
    guided = ("exp_manager.train_rollout_mode=all", "exp_manager.reme.enable_context_generator=true")
    with pytest.raises(ConfigError, match=r"there is no pool at .* nothing would fill one"):
        basic(*guided)
    (tmp_path / "mine.sqlite").touch()
    assert basic(*guided, f"exp_manager.store={tmp_path}/mine.sqlite").settings.exp_manager.guides
