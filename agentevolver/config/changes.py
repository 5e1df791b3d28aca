"""Differences between two configurations, key by key.

An experiment has exactly one configuration. Configurations differ if a key that affects learning or measuring has two
values. Keys about duration, speed, place and frequency (`NEUTRAL`) are ignored. So are keys that only one configuration
has, except in sections that take any key: a new release may add some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

from agentevolver.config.model_files import FOLDERS, local
from agentevolver.config.trees import leaves, open_keys
from agentevolver.utils import recipes

# Patterns of keys that do not change what is learned; `*` also stands for dots.
_NEUTRAL = """
    trainer.total_training_steps trainer.total_epochs *.optim.total_training_steps trainer.logger trainer.*_freq
    trainer.*_ckpt_* trainer.max_*_ckpt_to_keep trainer.val_before_train trainer.val_only trainer.resume_*
    trainer.default_*_dir trainer.*_data_dir trainer.log_val_generations trainer.balance_batch trainer.dump_samples
    trainer.project_name trainer.experiment_name
    trainer.ray_wait_register_center_timeout *.nnodes *.n_gpus_per_node experiment.* watchdog.* retention.*
    ray.* ray_kwargs.*
    transfer_queue.* global_profiler.* *.profiler.* *.prometheus.* *.trace.* *.nccl_timeout device_env.*
    data.dataloader_num_workers data.train_files data.val_files *.checkpoint.* *.checkpoint_engine.* *_offload
    *_max_token_len_per_gpu *_micro_batch_size_per_gpu *.enable_gradient_checkpointing *.enable_activation_offload
    actor_rollout_ref.rollout.gpu_memory_utilization actor_rollout_ref.rollout.tensor_model_parallel_size
    actor_rollout_ref.rollout.max_num_* actor_rollout_ref.rollout.enforce_eager
    actor_rollout_ref.rollout.free_cache_engine actor_rollout_ref.rollout.enable_sleep_mode
    actor_rollout_ref.rollout.max_env_worker
    actor_rollout_ref.rollout.step_timeout_s actor_rollout_ref.rollout.agent.* env_service.env_url
    env_service.external env_service.pass_env llm.teacher.url llm.cache llm.ledger
    llm.budget.* llm.*api_key_env llm.*concurrency llm.*tries llm.*price_* *timeout_s
    task_manager.store task_manager.num_*_threads task_manager.train_data_path
    attribution_driven_credit_assignment.llm_evaluation_log_dir
    exp_manager.reme.base_url exp_manager.init_exp_only
"""
NEUTRAL = tuple(_NEUTRAL.split())
SHOWN = 8
_MISSING = object()


@dataclass(frozen=True)
class Change:
    """Key with its old and new value. None if the key is missing."""

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key} ({_short(self.before)} -> {_short(self.after)})"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Return the differing keys that affect learning, in the order of `after`."""
    old, new = dict(leaves(before)), dict(leaves(after))
    found = []
    for key in dict.fromkeys((*new, *old)):
        if not decides(key):
            continue
        was, will = old.get(key, _MISSING), new.get(key, _MISSING)
        if (was is _MISSING or will is _MISSING) and not key.startswith(tuple(f"{free}." for free in open_keys())):
            continue
        if _comparable(key, was) != _comparable(key, will):
            found.append(Change(key, None if was is _MISSING else was, None if will is _MISSING else will))
    return found


def decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that affect learning, with their values in comparable form."""
    return {key: _comparable(key, value) for key, value in leaves(config) if decides(key)}


def listed(differing: Sequence[Change]) -> str:
    """Return the first changes as a list in words, followed by the number of further ones."""
    more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    return ", ".join(map(str, differing[:SHOWN])) + more


def decides(key: str) -> bool:
    """Whether a key affects what is learned, on what, or how it is measured."""
    of_recipes = (
        f"recipes.{name}.{pattern}" for name, one in recipes.recipes().items() for pattern in one.neutral_keys
    )
    return not any(fnmatchcase(key, pattern) for pattern in (*NEUTRAL, *of_recipes))


def _comparable(key: str, value: Any) -> Any:
    if key in FOLDERS and isinstance(value, str):
        value = local(value)
    # An endpoint may move to another host: only the kind of address counts.
    if isinstance(value, str) and key.rpartition(".")[2] == "base_url" and urlsplit(value).scheme in ("http", "https"):
        return "http"
    # Shipped files: the checkout may be moved to another folder.
    if isinstance(value, str) and value.endswith(tuple(f"/{folder.name}" for folder in recipes.models().values())):
        return value.rpartition("/")[2]
    if isinstance(value, str) and value.endswith("/agentevolver/config/agent_loops.yaml"):
        return "agent_loops.yaml"
    return {} if isinstance(value, Mapping) or value is _MISSING else value


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
