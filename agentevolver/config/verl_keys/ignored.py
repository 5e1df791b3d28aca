"""verl's keys that cannot have an effect here, each with what to do instead:
one table, and nothing else decides about it.

Most have their reader in code of verl that this project replaces (its agent loops, tools, reward loop, its other
trainers) or in an engine that is not used (Megatron, SGLang); some are read by nobody in verl 0.9.1 either. A test
compares the table with verl's source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "ref", "rollout", "model"))
ESTIMATOR = "algorithm.adv_estimator"
ATTRIBUTION = "attribution_driven_credit_assignment.enable"
MODE, SYNC, COLOCATED, SEPARATE = (
    *("trainer.v1.trainer_mode", "agentevolver"),
    *("agentevolver_async", "agentevolver_separate"),
)
LOSS_MODE = f"{ACTOR}.policy_loss.loss_mode"


@dataclass(frozen=True)
class Ignored:
    """Keys without an effect.

    Attributes:
        pattern: a key's path; `*` stands for anything, dots too.
        why: the rest of the sentence that begins with the key: what is so, and what to write instead.
        unless: a key and those of its values under which the keys are read after all.
        lenient: whether they may stand in a layer below the one that chose another value (an ablation over an
            experiment's yaml).
    """

    pattern: str
    why: str
    unless: tuple[str, tuple[Any, ...]] | None = None
    lenient: bool = True

    @cached_property
    def _matcher(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.pattern).replace(r"\*", ".*"))

    def matches(self, path: str) -> bool:
        """Whether a key is one of these."""
        return self._matcher.fullmatch(path) is not None


_GRADED = "is never read, episodes are graded by their environment or by task_manager.grader: remove it"
_TURNS = (
    f"is verl's own tool loop's; the environment service has the tools, and {ROLLOUT}.multi_turn.max_steps "
    "bounds an episode: remove it"
)
_DATASET = "is read by verl's own dataset alone, tasks come from the environment's splits: remove it"
_LORA = (
    f"is read by Megatron alone: write {MODEL}.lora_rank, lora_alpha, target_modules, exclude_modules or "
    "lora_adapter_path"
)
_LAUNCHER = "is set by the launcher: write"

IGNORED: tuple[Ignored, ...] = (
    # -- engines and trainers that are not used
    # ----------------------------------------------------------------------------------------
    Ignored("model_engine", "has no effect, verl's keys for FSDP are composed and no others: remove it"),
    Ignored(
        "trainer.v1.colocate_async.*",
        f"is read with {MODE} = {COLOCATED} alone: write that too, or remove it",
        (MODE, (COLOCATED,)),
    ),
    Ignored(
        "trainer.v1.separate_async.*",
        f"is read with {MODE} = {SEPARATE} alone: write that too, or remove it",
        (MODE, (SEPARATE,)),
    ),
    Ignored(
        "trainer.v1.sampler.max_off_policy_*",
        f"is read where rollouts go on over updates: write {MODE} = {COLOCATED} too, or remove it",
        (MODE, (COLOCATED, SEPARATE)),
    ),
    Ignored("data.gen_batch_size", f"is 1 where rollouts go on over updates: remove it, or {MODE}", (MODE, (SYNC,))),
    Ignored(
        "algorithm.filter_groups.max_inflight_gen_batches",
        f"has no effect where rollouts go on over updates: remove it, or {MODE}",
        (MODE, (SYNC,)),
    ),
    Ignored("trainer.use_v1", "has no effect, verl's V1 trainer is the one that is extended: remove it"),
    Ignored(
        f"{ROLLOUT}.nnodes",
        "is read where rollouts have nodes of their own; here they share trainer.nnodes: remove it",
        (MODE, (SEPARATE,)),
    ),
    Ignored(
        f"{ROLLOUT}.engine_kwargs.sglang*",
        f"is read by SGLang, rollouts are vLLM's: write {ROLLOUT}.engine_kwargs.vllm",
    ),
    Ignored(
        f"{ROLLOUT}.engine_kwargs.trtllm*",
        f"is read by TensorRT-LLM, rollouts are vLLM's: write {ROLLOUT}.engine_kwargs.vllm",
    ),
    Ignored(f"{ROLLOUT}.over_sample_rate", "is never read: remove it"),
    Ignored(f"{ROLLOUT}.multi_stage_wake_up", "is read by SGLang, rollouts are vLLM's: remove it"),
    Ignored(f"{ROLLOUT}.disaggregation.bootstrap_port", "is read by SGLang, rollouts are vLLM's: remove it"),
    Ignored(f"{ROLLOUT}.disaggregation.ib_device", "is read by SGLang, rollouts are vLLM's: remove it"),
    Ignored(
        "*.mtp.speculative_*",
        "is read by SGLang, rollouts are vLLM's: write method and num_speculative_tokens beside it",
    ),
    Ignored("*.mtp.enable_train", "is read by Megatron alone: remove it"),
    Ignored("*.mtp.detach_encoder", "is read by Megatron alone: remove it"),
    Ignored("*.mtp.mtp_loss_scaling_factor", "is read by Megatron alone: remove it"),
    Ignored("*.turbo_config.*", "is read by the strategy fsdp_turbo alone: remove it"),
    *(
        Ignored(f"*.lora.{name}", _LORA)
        for name in ("type", "rank", "alpha", "dropout", "target_modules", "exclude_modules", "dtype")
    ),
    *(Ignored(f"*.lora.{name}", _LORA) for name in ("dropout_position", "lora_*_init_method", "a2a_experimental")),
    *(Ignored(f"*.lora.{name}", _LORA) for name in ("adapter_path", "freeze_*")),
    Ignored(
        "*.checkpoint.async_save",
        "works with Megatron alone; with FSDP no checkpoint would ever be found again: remove it",
    ),
    Ignored("*.checkpoint.strict", "is read by Megatron alone: remove it"),
    # -- keys of the actor that the engine takes from elsewhere
    # ------------------------------------------------------------------------
    Ignored("*.rollout_n", f"follows {ROLLOUT}.n: remove it"),
    Ignored(
        f"{ACTOR}.clip_ratio",
        f"is never read while both sides are set: write {ACTOR}.clip_ratio_low and clip_ratio_high",
    ),
    Ignored(f"{ACTOR}.grad_clip", f"is never read: write {ACTOR}.optim.clip_grad"),
    Ignored("critic.grad_clip", "is never read: write critic.optim.clip_grad"),
    Ignored(f"{ACTOR}.use_remove_padding", f"is never read: write {MODEL}.use_remove_padding"),
    Ignored(f"{ACTOR}.use_fused_kernels", f"is never read: write {MODEL}.use_fused_kernels"),
    Ignored(f"{ACTOR}.use_torch_compile", f"is never read: write {ACTOR}.fsdp_config.use_torch_compile"),
    Ignored(f"{REF}.use_torch_compile", f"is never read: write {REF}.fsdp_config.use_torch_compile"),
    Ignored(f"{ACTOR}.qat.*", f"is never read: write {ACTOR}.fsdp_config.qat"),
    Ignored(f"{ACTOR}.use_prefix_grouper", "is never read by verl's engine: remove it"),
    Ignored(f"{ACTOR}.freeze_vision_tower", "is never read: remove it"),
    Ignored(f"{ACTOR}.calculate_sum_pi_squared", "is never read by the synchronous trainer: remove it"),
    Ignored(
        "*.optim.total_training_steps",
        "is computed from trainer.total_training_steps or total_epochs: set one of these",
    ),
    *(
        Ignored(f"{section}.{name}", why)
        for section in (f"{ACTOR}.fsdp_config", f"{REF}.fsdp_config", "critic.fsdp")
        for name, why in (
            ("strategy", f"follows {ACTOR}.strategy: write that"),
            ("forward_only", "follows from the worker's role: remove it"),
            ("dtype", "is never read: write mixed_precision and model_dtype beside it"),
        )
    ),
    Ignored("*.tiled_mlp.*", "is never read by verl's FSDP engine: remove it"),
    Ignored(
        "actor_rollout_ref.hybrid_engine",
        "must stay true: actor and rollout share their devices; remove it",
        (MODE, (SEPARATE,)),
    ),
    Ignored("actor_rollout_ref.nccl_timeout", "is never read: remove it"),
    Ignored("distillation.*", "has no effect, rollouts ask no teacher for its log-probs: remove it"),
    # -- rollouts: the agent loop and what surrounds it
    # --------------------------------------------------------------------------------
    Ignored(f"{ROLLOUT}.multi_turn.*", _TURNS),
    Ignored(
        f"{ROLLOUT}.agent.default_agent_loop",
        f"is never read: an agent of your own is {ROLLOUT}.agent_flow=package.module:Class",
    ),
    Ignored(
        f"{ROLLOUT}.agent.agent_loop_config_path",
        f"is never read: an agent of your own is {ROLLOUT}.agent_flow=package.module:Class",
    ),
    Ignored(f"{ROLLOUT}.agent.custom_async_server.*", "is never read: remove it"),
    Ignored(
        f"{ROLLOUT}.trace.*",
        "is read by verl's own agent loops; a run writes its trajectories itself (docs/view.md): remove it",
    ),
    Ignored(f"{ROLLOUT}.do_sample", f"is never read: write {ROLLOUT}.temperature"),
    Ignored(
        f"{ROLLOUT}.val_kwargs.do_sample",
        f"is never read: write {ROLLOUT}.val_kwargs.temperature=0 for greedy decoding",
    ),
    Ignored(
        f"{ROLLOUT}.calculate_log_probs",
        "must stay true, every training row holds the log-probs of its sampling: remove it",
    ),
    Ignored(
        f"{ROLLOUT}.log_prob_use_dynamic_bsz", f"must be what {ACTOR}.use_dynamic_bsz is, and follows it: remove it"
    ),
    Ignored(
        f"{ROLLOUT}.full_determinism",
        "asks for vLLM's batch-invariant kernels, which it has for GPUs alone; on a CPU its kernels are so in fp32: "
        "remove it",
        ("device_name", ("cuda", "cuda_small")),
    ),
    Ignored(f"{ROLLOUT}.enable_rollout_routing_replay", "has no effect, rows hold no routes of experts: remove it"),
    Ignored(f"{ROLLOUT}.moe_load_balance_metrics_interval", "has no effect, rows hold no routes of experts: remove it"),
    Ignored(
        f"{ROLLOUT}.checkpoint_engine.backend",
        "must stay naive: actor and rollout share their devices; remove it",
        (MODE, (SEPARATE,)),
    ),
    Ignored(
        f"{ROLLOUT}.checkpoint_engine.engine_kwargs*",
        "is read by other backends than naive: remove it",
        (MODE, (SEPARATE,)),
    ),
    Ignored(
        f"{ROLLOUT}.checkpoint_engine.custom_backend_module",
        "registers backends, and naive is the one in use: remove it",
        (MODE, (SEPARATE,)),
    ),
    Ignored("skip.rollout.*", "is read by another trainer of verl's: write skip.rollout_tq"),
    Ignored("skip.async_rollout.*", "is read by another trainer of verl's: write skip.rollout_tq"),
    # -- rewards
    # ------------------------------------------------------------------------------------------------------------------
    Ignored("reward.*", _GRADED),
    Ignored("custom_reward_function.*", _GRADED),
    Ignored("reward_model.*", _GRADED),
    Ignored("sandbox_fusion.*", _GRADED),
    # -- data ----------------------------------------------------------------------------------------------------------
    *(
        Ignored(f"data.{name}", _DATASET)
        for name in ("prompt_key", "reward_fn_key", "image_key", "video_key", "audio_key", "use_shm")
    ),
    *(
        Ignored(f"data.{name}", _DATASET)
        for name in ("return_*", "image_patch_size", "filter_overlong_*", "mm_processor_kwargs*")
    ),
    Ignored(
        "data.truncation", "is never read, an opening that is too long ends its rollout as context_full: remove it"
    ),
    Ignored("data.tokenizer", f"is never read: write {MODEL}.tokenizer_path"),
    Ignored("data.trust_remote_code", f"is never read: write {MODEL}.trust_remote_code"),
    Ignored("data.tool_config_path", _TURNS),
    Ignored("data.function_tool_path", _TURNS),
    *(
        Ignored(f"data.{name}", f"is not read where epochs are drawn by task_manager: {instead}", unless)
        for name, instead in (
            ("shuffle", "write task_manager.mixture.shuffle"),
            ("train_max_samples", "narrow the split by data.train_filter"),
        )
        for unless in (
            ("task_manager.mixture.synthetic_data_ratio", (0,)),
            ("task_manager.curriculum.enable", (False,)),
        )
    ),
    # -- the trainer's own
    # -------------------------------------------------------------------------------------------------------------
    Ignored("trainer.balance_batch", "has no effect, batches are always balanced over the devices: remove it"),
    Ignored("trainer.esi_redundant_time", "is read by verl's former trainer alone: remove it"),
    Ignored("trainer.ray_wait_register_center_timeout", "is read by verl's former trainer alone: remove it"),
    Ignored("trainer.default_hdfs_dir", "has no effect, FSDP checkpoints are local: write trainer.default_local_dir"),
    Ignored("trainer.device", f"{_LAUNCHER} device=NAME"),
    Ignored("device_name", f"{_LAUNCHER} device=NAME"),
    Ignored("transfer_queue.enable", "is always true: remove it"),
    *(
        Ignored(f"ray_kwargs.ray_init.{name}", f"{_LAUNCHER} ray.{ours}")
        for name, ours in (
            ("address", "address"),
            ("num_cpus", "num_cpus"),
            ("num_gpus", "num_gpus"),
            ("object_store_memory", "object_store_memory"),
            ("include_dashboard", "dashboard"),
        )
    ),
    Ignored(
        "ray_kwargs.ray_init.log_to_driver", "is set by the launcher, workers write to the experiment's logs: remove it"
    ),
    Ignored("ray_kwargs.ray_init.runtime_env.env_vars*", f"{_LAUNCHER} device_env"),
    # -- advantages
    # ------------------------------------------------------------------------------------------------------------------
    Ignored(
        ESTIMATOR,
        "has no effect beside attribution, which computes all advantages: remove it",
        (ATTRIBUTION, (False,)),
        lenient=False,
    ),
    Ignored(
        "algorithm.norm_adv_by_std_in_grpo",
        "has no effect beside attribution: see adca_grpo.sigma there",
        (ATTRIBUTION, (False,)),
        lenient=False,
    ),
    Ignored(
        "algorithm.norm_adv_by_std_in_grpo",
        "is read by grpo and grpo_passk alone: remove it",
        (ESTIMATOR, ("grpo", "grpo_passk")),
    ),
    Ignored(
        "algorithm.gamma",
        "is read by gae and reinforce_plus_plus alone: remove it",
        (ESTIMATOR, ("gae", "reinforce_plus_plus")),
    ),
    Ignored("algorithm.lam", "is read by gae alone: remove it", (ESTIMATOR, ("gae",))),
    Ignored("algorithm.use_pf_ppo", "would write the advantages of one row to another: remove it"),
    Ignored("algorithm.pf_ppo.*", "is read with algorithm.use_pf_ppo alone, which is refused: remove it"),
    Ignored(
        "algorithm.filter_groups.max_num_gen_batches",
        "is never read: write algorithm.filter_groups.max_inflight_gen_batches",
    ),
    Ignored(
        "algorithm.filter_groups.*",
        "is read with algorithm.filter_groups.enable alone",
        ("algorithm.filter_groups.enable", (True,)),
    ),
    Ignored(
        "algorithm.kl_ctrl.*", "is read with algorithm.use_kl_in_reward alone", ("algorithm.use_kl_in_reward", (True,))
    ),
    Ignored(
        "algorithm.kl_penalty",
        f"is read with use_kl_in_reward alone: write {ACTOR}.kl_loss_type",
        ("algorithm.use_kl_in_reward", (True,)),
    ),
    # -- the critic, which gae alone has
    # -----------------------------------------------------------------------------------------------
    Ignored("critic.enable", f"follows from {ESTIMATOR}, gae alone has a critic: remove it"),
    Ignored("critic.forward_*", "is never read: remove it"),
    Ignored("critic.ppo_max_token_len_per_gpu", "is never read: remove it"),
    Ignored("critic.*", f"has no effect without a critic: write {ESTIMATOR}=gae, or remove it", (ESTIMATOR, ("gae",))),
    Ignored(
        "trainer.critic_warmup", "would only delay the policy, there is no critic: remove it", (ESTIMATOR, ("gae",))
    ),
    Ignored("trainer.max_critic_ckpt_to_keep", "has no effect without a critic: remove it", (ESTIMATOR, ("gae",))),
    # -- read under another key's values
    # -----------------------------------------------------------------------------------------------
    *(
        Ignored(f"{section}.{name}", why.format(switch=f"{section}.{switch}"), (f"{section}.{switch}", values))
        for section, switch, prefix in (
            (ACTOR, "use_dynamic_bsz", "ppo"),
            (ROLLOUT, "log_prob_use_dynamic_bsz", "log_prob"),
            (REF, "log_prob_use_dynamic_bsz", "log_prob"),
        )
        for name, values, why in (
            (
                f"{prefix}_micro_batch_size*",
                (False,),
                f"is read with {{switch}} = false alone: write {prefix}_max_token_len_per_gpu beside it",
            ),
            (
                f"{prefix}_max_token_len_per_gpu",
                (True,),
                f"is read with {{switch}} = true alone: write {prefix}_micro_batch_size_per_gpu",
            ),
        )
    ),
    Ignored(
        f"{ACTOR}.policy_loss.clip_cov_*",
        f"is read with {LOSS_MODE} = clip_cov alone: remove it",
        (LOSS_MODE, ("clip_cov",)),
    ),
    Ignored(
        f"{ACTOR}.policy_loss.kl_cov_ratio",
        f"is read with {LOSS_MODE} = kl_cov alone: remove it",
        (LOSS_MODE, ("kl_cov",)),
    ),
    Ignored(
        f"{ACTOR}.policy_loss.ppo_kl_coef",
        f"is read with {LOSS_MODE} = kl_cov alone: remove it",
        (LOSS_MODE, ("kl_cov",)),
    ),
    Ignored(f"{ACTOR}.policy_loss.dro_beta", f"is read with {LOSS_MODE} = dro alone: remove it", (LOSS_MODE, ("dro",))),
    Ignored(f"{ACTOR}.tau_*", f"is read with {LOSS_MODE} = sapo alone: remove it", (LOSS_MODE, ("sapo",))),
    Ignored(
        "trainer.resume_from_path",
        "is read with trainer.resume_mode = resume_path alone: set that too",
        ("trainer.resume_mode", ("resume_path",)),
    ),
    Ignored(
        "transfer_queue.backend.MooncakeStore.*",
        "is read with transfer_queue.backend.storage_backend = MooncakeStore alone: remove it",
        ("transfer_queue.backend.storage_backend", ("MooncakeStore",)),
    ),
    Ignored(
        "transfer_queue.backend.SimpleStorage.*",
        "is read with transfer_queue.backend.storage_backend = SimpleStorage alone: remove it",
        ("transfer_queue.backend.storage_backend", ("SimpleStorage",)),
    ),
)
