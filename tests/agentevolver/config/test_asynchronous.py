"""Trainer modes in which rollouts go on over updates: their defaults, and what is refused beside them in one line."""

import warnings
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from agentevolver.config.checks import for_verl, load
from agentevolver.utils.errors import ConfigError
from tests.constants import ENDPOINT

BASIC = Path(__file__).parents[3] / "examples" / "basic.yaml"
MODE = "trainer.v1.trainer_mode"
SAMPLER, WARM_UP = "trainer.v1.sampler.max_off_policy", "trainer.v1.colocate_async.num_warmup_batches"
ASYNC = f"{MODE}=agentevolver_async"
ATTRIBUTION = "attribution_driven_credit_assignment.enable=true"
MADE = ("task_manager.n=1", "task_manager.mixture.synthetic_data_ratio=1")
SEPARATE = (
    f"{MODE}=agentevolver_separate",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.n_gpus_per_node=2",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
    "trainer.v1.separate_async.parameter_sync_step=2",
    "trainer.n_gpus_per_node=2",
    "ray.num_gpus=4",
)


def loaded(*overrides, device="cpu"):
    sizes = ("data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=4")
    return load(BASIC, [f"device={device}", *sizes, *overrides])


def refused(*overrides, device="cpu"):
    with pytest.raises(ConfigError) as caught:
        loaded(*overrides, device=device)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_a_person_writes_wins_over_the_modes_defaults(tmp_path):
    conf = tmp_path / "mine.yaml"
    tree = {"env_service": {"env_type": "pocket"}, "algorithm": {"rollout_correction": {"rollout_is": None}}}
    tree["trainer"] = {"v1": {"trainer_mode": "agentevolver_async", "sampler": {"max_off_policy_strategy": "drop"}}}
    OmegaConf.save(tree, conf)
    config = load(conf, ["device=cpu", f"{SAMPLER}_threshold=6", f"{WARM_UP}=0.5"]).config
    assert config.algorithm.rollout_correction.rollout_is is None
    assert (config.trainer.v1.sampler.max_off_policy_strategy, config.trainer.v1.sampler.max_off_policy_threshold) == (
        "drop",
        6,
    )
    assert load(conf, ["device=cpu", f"{MODE}=agentevolver"]).config.trainer.deterministic, "an ablation back to sync"


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["trainer.deterministic=true"], "trainer.deterministic"),
        ([*MADE, *ENDPOINT, "task_manager.curriculum.synthesize_every_epochs=1"], "curriculum.synthesize_every_epochs"),
        ([ATTRIBUTION, "llm.roles.attributor.base_url=policy"], "llm.roles.attributor.base_url"),
        ([f"{WARM_UP}=4"], f"{SAMPLER}_threshold = 4 must be above {WARM_UP} = 4"),
    ],
)
def test_what_does_not_go_with_it_is_refused_by_name(overrides, named):
    message = refused(ASYNC, *overrides)
    assert message.startswith(f"{MODE} = agentevolver_async: ") and named in message


@pytest.mark.thorough
def test_gpus_of_their_own_for_rollouts_compose_and_are_checked():
    config = loaded(*SEPARATE, device="cuda").config
    assert config.trainer.v1.sampler.max_off_policy_strategy == "wait"
    assert config.algorithm.rollout_correction.rollout_is == "token"
    for left_out, message in (
        (1, "rollout.nnodes must be above 0"),
        (3, "backend must not be naive"),
    ):
        shorter = [one for place, one in enumerate(SEPARATE) if place != left_out]
        assert message in refused(*shorter, device="cuda")
    assert "must be trainer.v1.separate_async.parameter_sync_step (4) x" in refused(
        *SEPARATE, "trainer.v1.separate_async.parameter_sync_step=4", device="cuda"
    )
    assert "device = cpu has none" in refused(*SEPARATE)
    assert "ray.num_gpus = 2 must be 4" in refused(*SEPARATE[:-1], device="cuda")
    assert "exp_manager" in refused(*SEPARATE, "exp_manager.val_rollout_mode=all", device="cuda")


@pytest.mark.thorough
@pytest.mark.parametrize(("overrides", "device"), [([ASYNC], "cpu"), ([ASYNC], "cuda"), (SEPARATE, "cuda")])
def test_verl_takes_them_too(overrides, device):
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    config = for_verl(loaded(*overrides, device=device).config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
