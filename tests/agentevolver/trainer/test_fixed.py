"""What may differ between the trainings of a session, and what is refused."""

from pathlib import Path

import pytest

from agentevolver.config.checks import for_verl, load
from agentevolver.trainer.fixed import CannotChange, check_joins

BASIC = Path(__file__).parents[3] / "examples" / "basic.yaml"


def config(*overrides):
    return for_verl(load(BASIC, ["device=cpu", *overrides]).config)


@pytest.fixture(scope="module")
def first():
    return config()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("trainer.experiment_name=other", "trainer.total_training_steps=3", "actor_rollout_ref.actor.optim.lr=1e-5"),
        ("data.train_batch_size=4", "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.rollout.val_kwargs.n=2"),
        (
            "actor_rollout_ref.rollout.temperature=0.7",
            "data.seed=9",
            "actor_rollout_ref.rollout.multi_turn.max_steps=1",
        ),
        ("actor_rollout_ref.actor.use_kl_loss=false", "actor_rollout_ref.actor.clip_ratio_high=0.3"),
        (
            "actor_rollout_ref.actor.checkpoint.save_contents=[model,hf_model]",
            "actor_rollout_ref.rollout.response_length=16",
        ),
        ("attribution_driven_credit_assignment.enable=true", "task_manager.mixture.shuffle=false"),
    ],
)
def test_what_is_made_anew_may_differ(first, overrides):
    check_joins(first, config(*overrides))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("actor_rollout_ref.rollout.max_model_len=600", r"rollout.max_model_len \(576 -> 600\)"),
        ("actor_rollout_ref.rollout.max_num_seqs=32", r"rollout.max_num_seqs \(64 -> 32\)"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size=2", r"tensor_model_parallel_size \(1 -> 2\)"),
        ("trainer.n_gpus_per_node=2", r"trainer.n_gpus_per_node \(1 -> 2\)"),
        ("actor_rollout_ref.actor.fsdp_config.model_dtype=bf16", r"actor.fsdp_config.model_dtype \(fp32 -> bf16\)"),
        ("actor_rollout_ref.model.tokenizer_path=/elsewhere", r"model.tokenizer_path \(None -> /elsewhere\)"),
        (
            "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=4096",
            r"log_prob_max_token_len_per_gpu \(8192 -> 4096\)",
        ),
    ],
)
def test_what_is_up_may_not(first, override, told):
    with pytest.raises(CannotChange, match=f"^a session cannot change .*{told}") as refused:
        check_joins(first, config(override))
    assert "\n" not in str(refused.value)


@pytest.mark.thorough
def test_no_more_than_three_keys_are_told(first):
    with pytest.raises(CannotChange, match="and 2 more keys"):
        check_joins(
            first,
            config(
                *("trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.max_num_seqs=32"),
                *("actor_rollout_ref.rollout.enforce_eager=false", "actor_rollout_ref.rollout.seed=7"),
            ),
        )


def test_a_reference_that_is_not_there_is_not_made():
    without = config("actor_rollout_ref.actor.use_kl_loss=false")
    with pytest.raises(CannotChange, match=r"needs a reference policy .*use_kl_loss"):
        check_joins(without, config())


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("algorithm.adv_estimator=gae", "trains a critic"),
        ("actor_rollout_ref.model.lora_rank=8", "has adapters"),
        ("trainer.v1.trainer_mode=agentevolver_async", "leaves rollouts running"),
    ],
)
def test_what_would_outlast_its_training_is_refused(override, told):
    alike = config(override)
    with pytest.raises(CannotChange, match=told):
        check_joins(alike, alike)


@pytest.mark.thorough
def test_where_the_policy_plays_a_role_its_servers_defaults_are_fixed():
    role = "llm.roles.judge.base_url=policy", "task_manager.grader.original_grader=llm"
    with pytest.raises(CannotChange, match=r"rollout.temperature \(1.0 -> 0.7\)"):
        check_joins(config(*role), config(*role, "actor_rollout_ref.rollout.temperature=0.7"))
