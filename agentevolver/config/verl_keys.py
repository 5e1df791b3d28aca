"""verl's keys in an experiment: keys without effect and values of a wrong type are refused.

`check` runs with every load and imports nothing of verl. Values that cannot be checked by the type of their default (a
name, a list, a default of null) are left to verl's dataclasses: `ask_verl`, in a dry run and when a training starts.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import math
import re
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import TypeAdapter, ValidationError

from agentevolver.config.layers import Layer
from agentevolver.config.trees import FREE_FORM, leaves, one_line, select
from agentevolver.utils.errors import ConfigError

MODE = "trainer.v1.trainer_mode"
SYNC, COLOCATED, SEPARATE = "agentevolver", "agentevolver_async", "agentevolver_separate"
ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "ref", "rollout", "model"))
_ATTRIBUTION = "attribution_driven_credit_assignment.enable"
_ESTIMATOR, _LOSS = "algorithm.adv_estimator", f"{ACTOR}.policy_loss.loss_mode"

# Advice -> keys that are not read here or must keep their default. `*` matches anything, including dots. Their readers
# are in code of verl that this project replaces (agent loops, tools, rewards, other trainers) or in engines that are
# not used (Megatron, SGLang).
UNREAD: dict[str, str] = {
    "nothing reads it here: remove it": f"""
        model_engine trainer.use_v1 trainer.balance_batch trainer.esi_redundant_time distillation.*
        trainer.ray_wait_register_center_timeout transfer_queue.enable actor_rollout_ref.nccl_timeout
        {ROLLOUT}.over_sample_rate {ROLLOUT}.multi_stage_wake_up {ROLLOUT}.disaggregation.* {ROLLOUT}.trace.*
        {ROLLOUT}.agent.custom_async_server.* {ROLLOUT}.enable_rollout_routing_replay
        {ROLLOUT}.moe_load_balance_metrics_interval {ROLLOUT}.engine_kwargs.sglang* {ROLLOUT}.engine_kwargs.trtllm*
        {ACTOR}.use_prefix_grouper {ACTOR}.freeze_vision_tower {ACTOR}.calculate_sum_pi_squared {ACTOR}.qat.*
        *.mtp.speculative_* *.mtp.enable_train *.mtp.detach_encoder *.mtp.mtp_loss_scaling_factor *.turbo_config.*
        *.tiled_mlp.* *.checkpoint.async_save *.checkpoint.strict *.fsdp_config.dtype critic.fsdp.dtype
        critic.forward_* critic.ppo_max_token_len_per_gpu algorithm.use_pf_ppo algorithm.pf_ppo.*
        skip.rollout.* skip.async_rollout.*""",
    "episodes are graded by their environment or by task_manager.grader: remove it": """
        reward.* custom_reward_function.* reward_model.* sandbox_fusion.*""",
    f"the environment service has the tools, and {ROLLOUT}.multi_turn.max_steps bounds an episode: remove it": f"""
        {ROLLOUT}.multi_turn.* data.tool_config_path data.function_tool_path""",
    "tasks come from the environment's splits (data.train_split, data.val_splits): remove it": """
        data.prompt_key data.reward_fn_key data.image_key data.video_key data.audio_key data.use_shm data.return_*
        data.image_patch_size data.filter_overlong_* data.mm_processor_kwargs*""",
    "an opening that is too long ends its rollout as context_full: remove it": "data.truncation",
    "it follows from other keys and must stay: remove it": f"""
        *.rollout_n *.fsdp_config.strategy *.fsdp_config.forward_only critic.fsdp.strategy critic.fsdp.forward_only
        critic.enable {ROLLOUT}.calculate_log_probs {ROLLOUT}.log_prob_use_dynamic_bsz""",
    "set trainer.total_training_steps or total_epochs": "*.optim.total_training_steps",
    f"write {ACTOR}.clip_ratio_low and clip_ratio_high": f"{ACTOR}.clip_ratio",
    "write grad_clip's value as optim.clip_grad": f"{ACTOR}.grad_clip critic.grad_clip",
    f"write {MODEL}.use_remove_padding or use_fused_kernels": f"{ACTOR}.use_remove_padding {ACTOR}.use_fused_kernels",
    "write fsdp_config.use_torch_compile": f"{ACTOR}.use_torch_compile {REF}.use_torch_compile",
    f"write {MODEL}.lora_rank, lora_alpha, target_modules, exclude_modules or lora_adapter_path": """
        *.lora.type *.lora.rank *.lora.alpha *.lora.dropout* *.lora.*_modules *.lora.dtype *.lora.adapter_path
        *.lora.lora_* *.lora.a2a_* *.lora.freeze_*""",
    f"an agent of your own is {ROLLOUT}.agent_flow=package.module:Class": f"""
        {ROLLOUT}.agent.default_agent_loop {ROLLOUT}.agent.agent_loop_config_path""",
    "write the temperature, 0 for greedy decoding": f"{ROLLOUT}.do_sample {ROLLOUT}.val_kwargs.do_sample",
    f"write {MODEL}.tokenizer_path or trust_remote_code": "data.tokenizer data.trust_remote_code",
    "checkpoints are local: write trainer.default_local_dir": "trainer.default_hdfs_dir",
    "the launcher sets it: write device=NAME": "trainer.device device_name",
    "the launcher sets it: write ray.NAME (address, num_cpus, num_gpus, object_store_memory, dashboard)": """
        ray_kwargs.ray_init.address ray_kwargs.ray_init.num_* ray_kwargs.ray_init.object_store_memory
        ray_kwargs.ray_init.include_dashboard ray_kwargs.ray_init.log_to_driver""",
    "the launcher sets it: write device_env": "ray_kwargs.ray_init.runtime_env.env_vars*",
    "write algorithm.filter_groups.max_inflight_gen_batches": "algorithm.filter_groups.max_num_gen_batches",
}
# (keys, switch, values): the keys are read only if the switch has one of the values. A key may have several conditions.
READ_WITH: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("trainer.v1.colocate_async.*", MODE, (COLOCATED,)),
    ("trainer.v1.separate_async.*", MODE, (SEPARATE,)),
    ("trainer.v1.sampler.max_off_policy_*", MODE, (COLOCATED, SEPARATE)),
    ("data.gen_batch_size algorithm.filter_groups.max_inflight_gen_batches", MODE, (SYNC,)),
    (f"{ROLLOUT}.nnodes actor_rollout_ref.hybrid_engine {ROLLOUT}.checkpoint_engine.backend", MODE, (SEPARATE,)),
    (f"{ROLLOUT}.checkpoint_engine.engine_kwargs* {ROLLOUT}.checkpoint_engine.custom_*", MODE, (SEPARATE,)),
    # vLLM's batch-invariant kernels exist for GPUs. Its CPU kernels are batch-invariant in fp32 anyway.
    (f"{ROLLOUT}.full_determinism", "device_name", ("cuda",)),
    # Epochs of synthetic tasks and curricula are drawn by task_manager (mixture.shuffle; data.train_filter narrows).
    ("data.shuffle data.train_max_samples", "task_manager.mixture.synthetic_data_ratio", (0,)),
    ("data.shuffle data.train_max_samples", "task_manager.curriculum.enable", (False,)),
    # Attribution computes all advantages itself.
    (f"{_ESTIMATOR} algorithm.norm_adv_by_std_in_grpo", _ATTRIBUTION, (False,)),
    ("algorithm.norm_adv_by_std_in_grpo", _ESTIMATOR, ("grpo", "grpo_passk")),
    ("algorithm.gamma", _ESTIMATOR, ("gae", "reinforce_plus_plus")),
    ("algorithm.lam critic.* trainer.critic_warmup trainer.max_critic_ckpt_to_keep", _ESTIMATOR, ("gae",)),
    ("algorithm.filter_groups.*", "algorithm.filter_groups.enable", (True,)),
    ("algorithm.kl_ctrl.* algorithm.kl_penalty", "algorithm.use_kl_in_reward", (True,)),
    *(
        (f"{section}.{prefix}_{name}", f"{section}.{switch}", (value,))
        for section, prefix, switch in (
            (ACTOR, "ppo", "use_dynamic_bsz"),
            (ROLLOUT, "log_prob", "log_prob_use_dynamic_bsz"),
            (REF, "log_prob", "log_prob_use_dynamic_bsz"),
        )
        for name, value in (("micro_batch_size*", False), ("max_token_len_per_gpu", True))
    ),
    (f"{ACTOR}.policy_loss.clip_cov_*", _LOSS, ("clip_cov",)),
    (f"{ACTOR}.policy_loss.kl_cov_ratio {ACTOR}.policy_loss.ppo_kl_coef", _LOSS, ("kl_cov",)),
    (f"{ACTOR}.policy_loss.dro_beta", _LOSS, ("dro",)),
    (f"{ACTOR}.tau_*", _LOSS, ("sapo",)),
    ("trainer.resume_from_path", "trainer.resume_mode", ("resume_path",)),
)
# Names that verl would refuse only in the middle of a step. In a list, each item must be one of them.
_KL = "kl k1 abs mse k2 low_var_kl k3 kl+ k1+ abs+ mse+ k2+ low_var_kl+ k3+"
CHOICES: dict[str, str] = {
    MODE: f"{SYNC} {COLOCATED} {SEPARATE}",
    f"{ACTOR}.strategy": "fsdp fsdp2",
    f"{ACTOR}.kl_loss_type": _KL,
    f"{ACTOR}.loss_agg_mode": "token-mean token-sum seq-mean-token-sum seq-mean-token-mean seq-mean-token-sum-norm",
    f"{ACTOR}.checkpoint.save_contents": "model optimizer extra hf_model",
    f"{ROLLOUT}.name": "vllm",
    # Without estimators that need data the trainer does not provide (a greedy rollout's reward, several named rewards).
    _ESTIMATOR: "grpo gae reinforce_plus_plus reinforce_plus_plus_baseline rloo opo grpo_passk gpg rloo_vectorized "
    "grpo_vectorized",
    "algorithm.kl_penalty": _KL,
    "trainer.v1.sampler.max_off_policy_strategy": "drop wait",
    "trainer.resume_mode": "auto disable resume_path",
    "trainer.logger": "tensorboard wandb mlflow swanlab vemlp_wandb console clearml trackio file rl_insight",
}
_LOGGERS_OF_VERL = ("console", "file", "vemlp_wandb", "rl_insight")
_EVERY = "the trainer's log-probs count every token; val_kwargs are free"
# Bounds that verl does not check: (words, test, keys).
_BOUNDS: tuple[tuple[str, Any, str], ...] = (
    (f"of 1 ({_EVERY})", lambda value: value == 1, f"{ROLLOUT}.top_p"),
    (f"of -1 ({_EVERY})", lambda value: value in (-1, 0), f"{ROLLOUT}.top_k"),
    (
        "above 0",
        lambda value: value > 0,
        f"""trainer.total_training_steps trainer.total_epochs {ACTOR}.ppo_epochs *.ppo_max_token_len_per_gpu
        *_micro_batch_size_per_gpu *.log_prob_max_token_len_per_gpu {ROLLOUT}.*_parallel_size {ROLLOUT}.temperature
        {ROLLOUT}.agent.num_workers data.*_batch_size trainer.v1.sampler.max_off_policy_threshold
        trainer.v1.separate_async.parameter_sync_step""",
    ),
    (
        "0 or more",
        lambda value: value >= 0,
        f"""*.optim.lr {ACTOR}.clip_ratio_low {ACTOR}.clip_ratio_high {ACTOR}.kl_loss_coef {MODEL}.lora_rank
        {ROLLOUT}.val_kwargs.temperature trainer.v1.*_async.num_warmup_batches""",
    ),
    ("above 0 and at most 1", lambda value: 0 < value <= 1, f"{ROLLOUT}.gpu_memory_utilization {ROLLOUT}.*top_p"),
    ("from 0 to 1", lambda value: 0 <= value <= 1, "algorithm.gamma algorithm.lam"),
)
# Keys that accept other types than their default's, and counts whose default is null outside of verl's dataclasses.
_WIDER = f"""trainer.logger {ROLLOUT}.top_p trainer.v1.*_async.num_warmup_batches {MODEL}.*_modules
    *.rollout_is_threshold"""
_COUNTS = """*_micro_batch_size_per_gpu trainer.total_training_steps trainer.max_*_ckpt_to_keep data.gen_batch_size
    data.val_batch_size trainer.v1.sampler.max_off_policy_threshold"""
# Sections of verl's dataclasses, and their keys that are checked elsewhere (`loss_modes`, the file system).
_JUDGED, _ELSEWHERE = "actor_rollout_ref.* algorithm.*", f"{_LOSS} *path"
_WORDS: dict[type, str] = dict(
    zip(
        (bool, int, float, str, list, dict),
        ("true or false", "an integer", "a number", "text", "a list", "a mapping"),
        strict=True,
    )
)


def check(layers: Sequence[Layer], config: DictConfig, defaults: DictConfig, ours: Set[str]) -> tuple[str, ...]:
    """Refuse keys of verl without effect, and values that verl cannot use.

    Args:
        layers: the user's, weakest first.
        config: the composed configuration, with these layers.
        defaults: the same without them.
        ours: paths that our own models check.

    Returns:
        The keys whose values only verl's dataclasses can check (`ask_verl`).

    Raises:
        ConfigError: one line with the layer, the key, the value found, and what to write instead.
    """
    undecided = []
    strongest = {path: strength for strength, layer in enumerate(layers) for path, _ in leaves(layer.content)}
    for path, strength in strongest.items():
        own = _is_within(path, ours)
        if own and path != "device_name":  # ours, but chosen by the device group
            continue
        value, default = _plain(config, path), _plain(defaults, path)
        if type(value) is type(default) and value == default:
            continue
        _refuse_unread(path, strength, layers, config)
        if not own and not _is_within(path, FREE_FORM):
            _refuse_value(path, value, default, layers[strength].source)
            known = path in CHOICES or _matches(path, f"{_COUNTS} {_ELSEWHERE}")
            if not known and _matches(path, _JUDGED) and (value is None or not isinstance(default, int | float)):
                undecided.append(path)
    saved, rank = f"{ACTOR}.checkpoint.save_contents", f"{MODEL}.lora_rank"
    if "hf_model" in _plain(config, saved) and _plain(config, rank):
        raise ConfigError(
            f"{saved}: hf_model cannot be combined with {rank} above 0, because verl would save the adapters under "
            "names that no model has: leave it out, and merge a checkpoint with `python -m verl.model_merger`"
        )
    return tuple(undecided)


def _refuse_unread(path: str, strength: int, layers: Sequence[Layer], config: DictConfig) -> None:
    source = layers[strength].source
    for instead, patterns in UNREAD.items():
        if _matches(path, patterns):
            raise ConfigError(f"{source}: `{path}` has no effect: {instead}")
    for patterns, switch, values in READ_WITH:
        if not _matches(path, patterns) or _plain(config, switch) in values:
            continue
        # The command line may switch off the reader of a key in the experiment's yaml, as ablations do.
        if any(select(layer.content, switch) is not None for layer in layers[strength + 1 :]):
            continue
        raise ConfigError(
            f"{source}: `{path}` has an effect only with {switch} = {' or '.join(map(str, values))}: set that too, "
            "or remove the key"
        )


def _refuse_value(path: str, value: Any, default: Any, source: str) -> None:
    kind = int if _matches(path, _COUNTS) else type(default)
    wanted = None if value is None or _matches(path, _WIDER) or _is_of(kind, value) else _WORDS.get(kind)
    items = value if isinstance(value, list) else [] if value is None else [value]
    names = CHOICES.get(path, "").split()
    if wanted is None and names and not set(items) <= set(names):
        wanted = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    for words, holds, patterns in _BOUNDS:
        if wanted is None and _matches(path, patterns) and not all(map(holds, items)):
            wanted = f"a number {words}"
    if wanted is not None:
        quoted = ", in quotes" if kind is str and isinstance(value, int | float) else ""
        raise ConfigError(f"{source}: {path}: write {wanted}{quoted}, found {value!r}")
    for name in items if path == "trainer.logger" else ():
        if name not in _LOGGERS_OF_VERL and importlib.util.find_spec(name) is None:
            raise ConfigError(f"{source}: {path}: the package {name} is not installed: install it, or leave {name} out")


def _is_of(kind: type, value: Any) -> bool:
    """Whether a value may replace a default of type `kind`. A float takes an integer, but no NaN."""
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    return type(value) is kind or kind not in _WORDS


@functools.cache
def _pattern(patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(one).replace(r"\*", ".*") for one in patterns.split()))


def _matches(path: str, patterns: str) -> bool:
    return _pattern(patterns).fullmatch(path) is not None


def _is_within(path: str, places: Set[str] | Sequence[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:depth]) in places for depth in range(1, len(parts) + 1))


def _plain(config: DictConfig, path: str) -> Any:
    value = OmegaConf.select(config, path, throw_on_missing=False)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def ask_verl(config: DictConfig, keys: Sequence[str] | None = None) -> None:
    """Let verl's dataclasses check the values. Imports verl, which takes seconds.

    Args:
        config: the configuration that verl receives.
        keys: keys whose types are checked; None: all.

    Raises:
        ConfigError: one line that names the key.
    """
    for place, section in _dataclasses(config):
        module, _, name = str(section._target_).rpartition(".")
        hints = typing.get_type_hints(getattr(import_module(module), name))
        for key in hints.keys() & set(section):
            path, value = f"{place}.{key}", _plain(section, key)
            # Some defaults of verl 0.9.1 are null although their annotation does not allow it.
            if isinstance(value, Mapping) or (value is None if keys is None else path not in keys):
                continue
            try:
                TypeAdapter(hints[key]).validate_json(json.dumps(value), strict=True)
            except ValidationError as error:
                message = error.errors()[0]["msg"]
                raise ConfigError(f"{path}: {message[0].lower()}{message[1:]}, found {value!r}") from error
    _compose_dataclasses(config)


def _dataclasses(config: DictConfig) -> Iterator[tuple[str, DictConfig]]:
    """Yield the sections that verl converts to dataclasses, with their paths."""
    pending = [(place, OmegaConf.select(config, place)) for place in ("algorithm", ACTOR, REF, ROLLOUT, MODEL)]
    while pending:
        place, section = pending.pop()
        if section.get("_target_"):
            yield place, section
        pending += [(f"{place}.{key}", value) for key, value in section.items() if isinstance(value, DictConfig)]


def _compose_dataclasses(config: DictConfig) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    place = "the configuration"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # verl warns that there is no critic
        critic, reference = need_critic(config), need_reference_policy(config)
    try:
        for place in ("algorithm", ACTOR, ROLLOUT):  # the critic's dataclass would load its model
            omega_conf_to_dataclass(OmegaConf.select(config, place))
        place = "the configuration"
        with redirect_stdout(io.StringIO()):  # verl prints that all checks passed
            validate_config(config, use_reference_policy=reference, use_critic=critic)
    except Exception as error:  # verl's dataclasses raise errors of any type
        raise ConfigError(f"{place}: verl refuses it: {one_line(error.__cause__ or error)}") from error
