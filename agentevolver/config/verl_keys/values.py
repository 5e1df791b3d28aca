"""Values of verl's keys beyond their kind: names, bounds, and the kinds that no dataclass of verl tells."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentevolver.config.verl_keys.ignored import ACTOR, COLOCATED, MODE, MODEL, REF, ROLLOUT, SEPARATE, SYNC
from agentevolver.config.verl_keys.kinds import Kind

_TEXT, _INTEGER = Kind.of("str", null=True), Kind.of("int", null=True)
# Keys whose sections have no dataclass and whose default is null, or whose annotation in verl says less than is taken.
KINDS: dict[str, Kind] = {
    "data.gen_batch_size": _INTEGER,
    "data.val_batch_size": _INTEGER,
    "data.custom_cls.path": _TEXT,
    "data.custom_cls.name": _TEXT,
    "trainer.total_training_steps": _INTEGER,
    "trainer.logger": Kind.of("str", "list", items=Kind.of("str")),
    "trainer.experiment_name": _TEXT,
    "trainer.rollout_data_dir": _TEXT,
    "trainer.validation_data_dir": _TEXT,
    "trainer.resume_from_path": _TEXT,
    "trainer.v1.sampler.max_off_policy_threshold": _INTEGER,
    "trainer.v1.colocate_async.num_warmup_batches": Kind.of("int", "float"),
    "trainer.v1.separate_async.num_warmup_batches": Kind.of("int", "float"),
    "trainer.checkpoint_callback_class": _TEXT,
    "trainer.max_actor_ckpt_to_keep": _INTEGER,
    "trainer.max_critic_ckpt_to_keep": _INTEGER,
    "trainer.v1.sampler.custom_sampler.path": _TEXT,
    "trainer.v1.sampler.custom_sampler.name": _TEXT,
    "global_profiler.steps": Kind.of("list", null=True, items=Kind.of("int")),
    "global_profiler.global_tool_config.nsys.worker_nsight_options.capture-range-end": _TEXT,
    "ray_kwargs.ray_init.runtime_env.py_executable": _TEXT,
    "ray_kwargs.timeline_json_file": _TEXT,
    f"{REF}.log_prob_micro_batch_size": _INTEGER,
    f"{REF}.log_prob_micro_batch_size_per_gpu": _INTEGER,
    f"{MODEL}.exclude_modules": Kind.of("str", "list", null=True, items=Kind.of("str")),
    f"{MODEL}.target_modules": Kind.of("str", "list", items=Kind.of("str")),
    f"{MODEL}.external_lib": Kind.of("str", "list", null=True, items=Kind.of("str")),
}

# The package behind each logger of verl (`verl.utils.tracking.Tracking`), None where verl has it itself.
LOGGERS: dict[str, str | None] = {
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "swanlab": "swanlab",
    "vemlp_wandb": "volcengine_ml_platform",
    "console": None,
    "clearml": "clearml",
    "trackio": "trackio",
    "file": None,
    "rl_insight": "rl_insight",
}
# Of `algorithm.adv_estimator`, those that need what the synchronous trainer does not give them: a greedy rollout's
# reward, sum pi^2, rewards of several names.
ESTIMATORS_WITHOUT_DATA = ("remax", "optimal_token_baseline", "tir_optimal_token_baseline", "gdpo")
_KL = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
_KL_NAMES = (*_KL, *(f"{name}+" for name in _KL))
_PRECISION = ("fp16", "float16", "fp32", "float32", "bf16", "bfloat16")
_CONTENTS = ("model", "optimizer", "extra", "hf_model")
_STRATEGIES = ("fsdp", "fsdp2")

# Key -> names. Of a list, each item is one of them.
CHOICES: dict[str, tuple[str, ...]] = {
    f"{ACTOR}.strategy": _STRATEGIES,
    f"{REF}.strategy": _STRATEGIES,
    "critic.strategy": _STRATEGIES,
    f"{ACTOR}.policy_loss.loss_mode": (
        "vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dro", "cispo",
        "bypass_mode",
        "trajectory",
    ),
    f"{ACTOR}.loss_agg_mode": (
        *("token-mean", "token-sum"),
        *("seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"),
    ),
    f"{ACTOR}.kl_loss_type": _KL_NAMES,
    f"{ACTOR}.fsdp_config.model_dtype": _PRECISION,
    f"{REF}.fsdp_config.model_dtype": _PRECISION,
    f"{ACTOR}.optim.lr_scheduler_type": ("constant", "cosine"),
    f"{ACTOR}.checkpoint.save_contents": _CONTENTS,
    f"{ACTOR}.checkpoint.load_contents": _CONTENTS,
    f"{ROLLOUT}.name": ("vllm",),
    f"{ROLLOUT}.mode": ("async",),
    f"{ROLLOUT}.dtype": ("auto", "half", "float16", "bfloat16", "float", "float32"),
    f"{ROLLOUT}.load_format": (
        "auto", "hf", "dummy", "fastsafetensors", "instanttensor", "mistral", "modelexpress", "npcache", "pt",
        "runai_streamer",
        "runai_streamer_sharded", "safetensors", "sharded_state", "tensorizer",
    ),
    f"{ROLLOUT}.logprobs_mode": ("processed_logprobs", "raw_logprobs", "processed_logits", "raw_logits"),
    f"{ROLLOUT}.scheduling_policy": ("fcfs", "priority"),
    "algorithm.adv_estimator": (
        "grpo", "gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "rloo", "opo", "grpo_passk", "gpg",
        "rloo_vectorized",
        "grpo_vectorized",
    ),
    "algorithm.kl_penalty": _KL_NAMES,
    "algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    MODE: (SYNC, COLOCATED, SEPARATE),
    "trainer.v1.sampler.max_off_policy_strategy": ("drop", "wait"),
    "trainer.resume_mode": ("auto", "disable", "resume_path"),
    "trainer.logger": tuple(LOGGERS),
    "global_profiler.tool": ("nsys", "npu", "torch", "torch_memory", "precision_debugger"),
    "skip.rollout_tq.action": ("cache", "repeat"),
    "transfer_queue.backend.storage_backend": ("SimpleStorage", "MooncakeStore"),
}  # fmt: skip


@dataclass(frozen=True)
class Bound:
    """A bound of a number: in words, and as a test."""

    words: str
    holds: Callable[[float], bool]


POSITIVE = Bound("above 0", lambda value: value > 0)
NOT_NEGATIVE = Bound("0 or more", lambda value: value >= 0)
SHARE = Bound("from 0 to 1", lambda value: 0 <= value <= 1)
SHARE_ABOVE_ZERO = Bound("above 0 and at most 1", lambda value: 0 < value <= 1)
BELOW_ONE = Bound("from 0 to below 1", lambda value: 0 <= value < 1)
ABOVE_ONE = Bound("above 1", lambda value: value > 1)
COUNT_OR_ALL = Bound("1 or more, or -1", lambda value: value >= 1 or value == -1)
_BOUNDS: tuple[tuple[Bound, tuple[str, ...]], ...] = (
    (
        POSITIVE,
        (
            "trainer.total_training_steps",
            "trainer.total_epochs",
            f"{ACTOR}.ppo_epochs",
            r".*\.ppo_max_token_len_per_gpu",
            r".*\.ppo_micro_batch_size(_per_gpu)?",
            r".*\.log_prob_max_token_len_per_gpu",
            r".*\.log_prob_micro_batch_size(_per_gpu)?",
            rf"{ROLLOUT}\.(tensor_model|data|expert|pipeline_model)_parallel_size",
            rf"{ROLLOUT}\.(max_num_seqs|max_num_batched_tokens|temperature)",
            f"{ROLLOUT}.agent.num_workers",
            f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes",
            r".*\.optim\.(clip_grad|num_cycles)",
            r".*\.ulysses_sequence_parallel_size",
            r".*\.entropy_from_logits_chunk_size",
            r".*\.pad_to_length_bucket",
            f"{MODEL}.lora_alpha",
            "data.gen_batch_size",
            r"trainer\.v1\.sampler\.max_off_policy_threshold",
            r"trainer\.v1\.separate_async\.parameter_sync_step",
            "data.val_batch_size",
            "algorithm.filter_groups.max_inflight_gen_batches",
            "algorithm.kl_ctrl.horizon",
            r"transfer_queue\.backend\.SimpleStorage\..*",
        ),
    ),
    (
        NOT_NEGATIVE,
        (
            r".*\.optim\.(lr|weight_decay)",
            rf"{ACTOR}\.clip_ratio_high",
            rf"{ACTOR}\.(kl_loss_coef|tau_pos|tau_neg)",
            f"{ROLLOUT}.val_kwargs.temperature",
            f"{ROLLOUT}.seed",
            f"{MODEL}.lora_rank",
            "data.dataloader_num_workers",
            r"trainer\.v1\.(colocate|separate)_async\.num_warmup_batches",
            "trainer.critic_warmup",
            "trainer.log_val_generations",
            "algorithm.kl_ctrl.kl_coef",
        ),
    ),
    (
        SHARE,
        (rf"{ACTOR}\.clip_ratio_low", r"algorithm\.(gamma|lam)", r".*\.optim\.(min_lr_ratio|lr_warmup_steps_ratio)"),
    ),
    (SHARE_ABOVE_ZERO, (f"{ROLLOUT}.gpu_memory_utilization", f"{ROLLOUT}.top_p", f"{ROLLOUT}.val_kwargs.top_p")),
    (BELOW_ONE, (r".*\.optim\.betas",)),
    (ABOVE_ONE, (f"{ACTOR}.clip_ratio_c",)),
    (
        COUNT_OR_ALL,
        (
            "data.train_max_samples",
            "data.val_max_samples",
            f"{ROLLOUT}.top_k",
            f"{ROLLOUT}.val_kwargs.top_k",
            r".*\.fsdp_size",
        ),
    ),
)
BOUNDS: tuple[tuple[Bound, re.Pattern[str]], ...] = tuple(
    (bound, re.compile("|".join(patterns))) for bound, patterns in _BOUNDS
)


def bound_of(path: str) -> Bound | None:
    """Return the bound of a key's value, or of each number in its list."""
    return next((bound for bound, pattern in BOUNDS if pattern.fullmatch(path)), None)


def items_of(value: Any) -> list[Any]:
    """Return what names and bounds are asked of: a list's items, the value itself, nothing for null."""
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
