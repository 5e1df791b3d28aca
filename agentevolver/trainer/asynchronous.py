"""Trainers whose rollouts go on over updates: `trainer.v1.trainer_mode` agentevolver_async and agentevolver_separate.

On shared devices (verl's `PPOTrainerColocateAsync`) the engine sleeps while the policy is updated. What it was sampling
is cut off and continued by the new weights (`agentevolver.rollout.resuming`); environments, graders and judges go on
meanwhile. `num_warmup_batches` more batches than a step needs are on their way, so that a slow episode holds nobody up.
Whole groups are trained on, those begun first before others; `trainer.v1.sampler` bounds how old one may be.

With GPUs of their own for rollouts (verl's `PPOTrainerSeparateAsync`) the engine stops for the transfer of weights
alone. That has not been run yet.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import register_trainer
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

from agentevolver.config.asynchronous import VERLS
from agentevolver.config.verl_keys import COLOCATED, SEPARATE
from agentevolver.trainer.batch import trained_on
from agentevolver.trainer.separate_worker import SeparateWorker
from agentevolver.trainer.staleness import age_metrics, oldest_first
from agentevolver.trainer.timing import timed_whole
from agentevolver.trainer.trainer import EvolverTrainer
from agentevolver.types import RowKey

logger = logging.getLogger(__name__)

WEIGHTS_COLUMN = "rollout_is_weights"


class Asynchronous(EvolverTrainer):
    """Mixin: what both trainers do beside the synchronous one."""

    _in_training = False
    _drawn_at: float | None = None

    def _build_replay_buffer(self) -> ReplayBuffer:
        buffer = super()._build_replay_buffer()
        buffer._select_prompt_uids = oldest_first(
            buffer._select_prompt_uids, lambda partition: buffer.prompt_global_steps[partition]
        )
        return buffer

    # ---- pauses ----

    def _tell_workers(self, **pause: bool) -> None:
        """Tell the workers of the rollouts when the engine pauses (`EnginePause.set`)."""
        manager = getattr(self, "agent_loop_manager", None)
        if manager is not None:
            manager.pause(**pause)

    @property
    def _rollout_engines(self) -> Any:
        """verl's manager of the engines that training rollouts ask."""
        return self.checkpoint_manager

    def on_validate_begin(self) -> None:
        """Let validation have the engine to itself."""
        if self._in_training:
            self._tell_workers(validating=True)
            # What was sampled, or parked at the server, comes back and waits with the others.
            self._rollout_engines.abort_replicas()
            self._rollout_engines.resume_generation_replicas()
        super().on_validate_begin()

    def on_validate_end(self) -> None:
        """Let training rollouts go on."""
        super().on_validate_end()
        if self._in_training:
            self._tell_workers(validating=False)

    # ---- groups ----

    def on_train_begin(self) -> None:
        """Begin the batches that are ahead, no more than there are steps."""
        self._in_training = True
        super().on_train_begin()

    def _add_async_warmup_batches(self, num_warmup_batches: int | float) -> None:
        left = self.total_training_steps - self.global_steps + 1
        super()._add_async_warmup_batches(min(num_warmup_batches, left - 1))

    def _add_batch_to_generate(self) -> None:
        """Begin another batch, as far as the steps that are left need one: what is begun is trained on."""
        batch = self.config.data.train_batch_size
        wanted = (self.total_training_steps - self.global_steps + 1) * batch - len(groups_on_their_way())
        if wanted > 0:
            self._add_prompts_to_generate(min(batch, wanted))

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        rows = rows_without_group()
        if rows:  # of the step that the checkpoint was written in
            tq.kv_clear(keys=rows, partition_id="train")
        if groups := groups_on_their_way():
            tags = tq.kv_list("train")["train"]
            finished = sum(tags[group]["status"] == "finished" for group in groups)
            logger.info(
                "of %d groups that were begun, %d are rolled out and kept, the others begin anew",
                *(len(groups), finished),
            )

    # ---- the batch ----

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **kwargs: Any) -> KVBatchMeta:
        batch = super()._balance_batch(batch, metrics, **kwargs)
        self._rollout_metrics |= age_metrics(self._records.of_step, self.global_steps)
        # Sampling does not end with the phase that waits for it.
        before, self._drawn_at = self._drawn_at, time.perf_counter()
        if before is not None:
            tokens = self._rollout_metrics["rollout/action_tokens"]
            self._rollout_metrics["rollout/tokens_per_s"] = tokens / (self._drawn_at - before)
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch = super()._compute_advantage(batch, metrics)
        if self.config.algorithm.rollout_correction.rollout_is is not None:
            self._keep_stripped(batch)
        return batch

    def _keep_stripped(self, batch: KVBatchMeta) -> None:
        """Weigh rows that lost their guidance with 1: what sets their log-probs apart is another prompt, not age."""
        stripped = {one.trajectory_id for one in self._trajectories if one.stripped}
        keys = [key for key in (batch.keys[i] for i in trained_on(batch)) if RowKey.of(key).trajectory_id in stripped]
        if not keys:
            return
        found = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=[WEIGHTS_COLUMN])
        ones = [torch.ones_like(row) for row in found[WEIGHTS_COLUMN].unbind()]
        fields = TensorDict(
            {WEIGHTS_COLUMN: torch.nested.as_nested_tensor(ones, layout=torch.jagged)}, batch_size=len(keys)
        )
        tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=fields)


def groups_on_their_way(partition_id: str = "train") -> list[str]:
    """Return the groups that were begun and not trained on yet, finished ones among them."""
    tags = (tq.kv_list(partition_id) or {}).get(partition_id, {})
    return [key for key, tag in tags.items() if tag.get("is_prompt", False)]


def rows_without_group(partition_id: str = "train") -> list[str]:
    """Return the rows whose group is there no longer: it was drawn."""
    tags = (tq.kv_list(partition_id) or {}).get(partition_id, {})
    groups = {key for key, tag in tags.items() if tag.get("is_prompt", False)}
    return [
        key for key, tag in tags.items() if not tag.get("is_prompt", False) and RowKey.of(key).group_id not in groups
    ]


@register_trainer(COLOCATED)
@timed_whole
class EvolverTrainerAsync(Asynchronous, PPOTrainerColocateAsync):
    """Asynchronous rollouts on the devices of the trainer."""

    verl_mode = VERLS[COLOCATED]

    def on_sample_end(self) -> None:
        """Cut off what is being sampled, and put the engine to sleep."""
        self._tell_workers(asleep=True)
        super().on_sample_end()

    def on_step_end(self) -> None:
        """Wake it with the new weights."""
        super().on_step_end()
        self._tell_workers(asleep=False)


@register_trainer(SEPARATE)
@timed_whole
class EvolverTrainerSeparate(Asynchronous, PPOTrainerSeparateAsync):
    """Asynchronous rollouts on GPUs of their own."""

    verl_mode = VERLS[SEPARATE]
    worker_class = SeparateWorker

    @property
    def _rollout_engines(self) -> Any:
        return self.standalone_checkpoint_manager

    def get_llm_client(self) -> Any:
        """verl's plain client of the engines that rollouts have to themselves."""
        return self.standalone_server_manager.get_client()

    def on_step_end(self) -> None:
        """Send the weights, for which the engine stops."""
        self._tell_workers(asleep=True)
        super().on_step_end()
        self._tell_workers(asleep=False)
