"""Fixed keys: what cannot change from one training of a session to the next, because it is up already.

Up are the workers with the reference policy, vLLM's engines and TransferQueue. All that they were started with is
fixed; what the trainer, the policy's optimiser and the workers of the agent loop read is not, for those are made anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.utils import need_critic, need_reference_policy, need_teacher_policy

from agentevolver.config.asynchronous import goes_on
from agentevolver.config.schema import of_verl
from agentevolver.config.trees import leaves
from agentevolver.config.verl_keys import MODE
from agentevolver.errors import ConfigError
from agentevolver.llm.settings import POLICY
from agentevolver.trainer.weights import has_adapters

_ABSENT = "nothing"

FIXED = (
    *("trainer.device", "trainer.nnodes", "trainer.n_gpus_per_node", "trainer.v1.trainer_mode"),
    *("actor_rollout_ref.model", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"),
    *("actor_rollout_ref.actor.strategy", "actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.hybrid_engine"),
    *("reward", "transfer_queue", "global_profiler", "agentevolver.device_env"),
)
# Within these: what vLLM and the reference are not started with. A rollout's requests say themselves how they are
# sampled; what a role asks of the policy over HTTP may leave it to what vLLM was started with.
OF_REQUESTS = tuple(f"actor_rollout_ref.rollout.{key}" for key in ("temperature", "top_k", "top_p", "response_length"))
FREE = (
    *("actor_rollout_ref.ref.rollout_n", "actor_rollout_ref.actor.fsdp_config.seed"),
    *(
        f"actor_rollout_ref.rollout.{key}"
        for key in (
            *("do_sample", "n", "val_kwargs", "over_sample_rate"),
            *("prompt_length", "multi_turn", "agent", "trace", "calculate_log_probs"),
            *("log_prob_micro_batch_size", "log_prob_micro_batch_size_per_gpu"),
            *("log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu"),
        )
    ),
)


class CannotChange(ConfigError):
    """A training cannot join a session, and has to be started by itself."""


def trains_critic(config: DictConfig) -> bool:
    """Whether there is a critic, by verl, which warns wherever there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return bool(need_critic(config))


def check_joins(first: DictConfig, training: DictConfig) -> None:
    """Refuse a training that a session cannot carry out beside the one that it was opened for.

    Args:
        first: the configuration that the session was opened with, as `for_verl` makes it.
        training: that of the training.

    Raises:
        CannotChange: in one line, what would have to be the same.
    """
    unfit = next(_unfit(first, training), None)
    if unfit is not None:
        raise CannotChange(f"a session cannot train this: {unfit}: train it by itself")
    changes = list(changed(first, training))
    if changes:
        told = ", ".join(f"{key} ({before} -> {now})" for key, before, now in changes[:3])
        more = f" and {len(changes) - 3} more keys" if len(changes) > 3 else ""
        raise CannotChange(
            f"a session cannot change {told}{more}: give its trainings the same values, or train this one by itself"
        )


def _unfit(first: DictConfig, training: DictConfig) -> Iterator[str]:
    if need_reference_policy(training) and not need_reference_policy(first):
        yield "it needs a reference policy (actor_rollout_ref.actor.use_kl_loss), and the session has none"
    for config in (first, training):
        if goes_on(config):
            yield f"{MODE} = {config.trainer.v1.trainer_mode} leaves rollouts running"
        if trains_critic(config):
            yield f"algorithm.adv_estimator = {config.algorithm.adv_estimator} trains a critic, which is not made anew"
        if need_teacher_policy(config):
            yield "distillation has teachers, which are not made anew"
        if config.reward.reward_model.enable:
            yield "reward.reward_model is a model of its own, which is not made anew"
        if has_adapters(config.actor_rollout_ref.model):
            yield "actor_rollout_ref.model has adapters (LoRA), which vLLM would keep"


def changed(first: DictConfig, training: DictConfig) -> Iterator[tuple[str, Any, Any]]:
    """Yield each key that is fixed and differs: its full name, and both values."""
    free = FREE if _policy_plays_a_role(training) else (*FREE, *OF_REQUESTS)
    for section in FIXED:
        before, now = _leaves(first, section), _leaves(training, section)
        for key in sorted({*before, *now}):
            one, other = before.get(key, _ABSENT), now.get(key, _ABSENT)
            if one != other and not any(key == name or key.startswith(f"{name}.") for name in free):
                yield key, one, other


def _policy_plays_a_role(config: DictConfig) -> bool:
    settings = of_verl(config)
    return any(settings.llm.endpoint(role).base_url == POLICY for role in settings.roles)


def _leaves(config: DictConfig, section: str) -> dict[str, Any]:
    value = OmegaConf.select(config, section)
    plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    return dict(leaves({section: plain}))
