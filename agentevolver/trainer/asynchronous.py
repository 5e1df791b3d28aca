"""Trainers whose rollouts continue across updates (`trainer_mode` agentevolver_async and agentevolver_separate).

On shared devices an update aborts replies in progress and the new weights continue them; environments and graders keep
running. With separate rollout GPUs the engine only stops for the weight transfer (untested).
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
    """Mixin for both asynchronous trainers: pauses, batches in progress, staleness metrics."""

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
        manager = getattr(self, "agent_loop_manager", None)
        if manager is not None:
            manager.pause(**pause)

    @property
    def _rollout_engines(self) -> Any:
        """verl's manager of the engines that serve training rollouts."""
        return self.checkpoint_manager

    def on_validate_begin(self) -> None:
        """Pause training rollouts, so that validation has the engine to itself."""
        if self._in_training:
            self._tell_workers(validating=True)
            # Training replies in progress, or queued at the server, are aborted and wait until the validation ends.
            self._rollout_engines.abort_replicas()
            self._rollout_engines.resume_generation_replicas()
        super().on_validate_begin()

    def on_validate_end(self) -> None:
        super().on_validate_end()
        if self._in_training:
            self._tell_workers(validating=False)

    # ---- groups ----

    def on_train_begin(self) -> None:
        self._in_training = True
        super().on_train_begin()

    def _add_async_warmup_batches(self, num_warmup_batches: int | float) -> None:
        left = self.total_training_steps - self.global_steps + 1
        # `num_warmup_batches` extra batches hide slow episodes. More than the remaining steps need would be wasted.
        super()._add_async_warmup_batches(min(num_warmup_batches, left - 1))

    def _add_batch_to_generate(self) -> None:
        batch = self.config.data.train_batch_size
        # Every group that starts is trained on, so the last steps start only the groups that are still missing.
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
                "%d unfinished groups in the checkpoint: %d are rolled out and kept, the others restart",
                *(len(groups), finished),
            )

    # ---- the batch ----

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **kwargs: Any) -> KVBatchMeta:
        batch = super()._balance_batch(batch, metrics, **kwargs)
        self._rollout_metrics |= age_metrics(self._records.of_step, self.global_steps)
        # Sampling continues outside of the rollout phase, so the rate is measured between two batches.
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
        # The importance weight of a row is 1 if its guidance was stripped: its log-probs differ because the prompt
        # changed, not because the weights are stale.
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
    """Return the group ids in the queue that are not trained on yet, finished groups included."""
    tags = (tq.kv_list(partition_id) or {}).get(partition_id, {})
    return [key for key, tag in tags.items() if tag.get("is_prompt", False)]


def rows_without_group(partition_id: str = "train") -> list[str]:
    """Return the keys of rows whose group has already been drawn from the queue."""
    tags = (tq.kv_list(partition_id) or {}).get(partition_id, {})
    groups = {key for key, tag in tags.items() if tag.get("is_prompt", False)}
    return [
        key for key, tag in tags.items() if not tag.get("is_prompt", False) and RowKey.of(key).group_id not in groups
    ]


@register_trainer(COLOCATED)
@timed_whole
class EvolverTrainerAsync(Asynchronous, PPOTrainerColocateAsync):
    """Asynchronous rollouts on the trainer's devices."""

    verl_mode = VERLS[COLOCATED]

    def on_sample_end(self) -> None:
        """Abort the replies in progress and put the engine to sleep."""
        self._tell_workers(asleep=True)
        super().on_sample_end()

    def on_step_end(self) -> None:
        """Wake the engine with the new weights."""
        super().on_step_end()
        self._tell_workers(asleep=False)


@register_trainer(SEPARATE)
@timed_whole
class EvolverTrainerSeparate(Asynchronous, PPOTrainerSeparateAsync):
    """Asynchronous rollouts on separate GPUs."""

    verl_mode = VERLS[SEPARATE]
    worker_class = SeparateWorker

    @property
    def _rollout_engines(self) -> Any:
        return self.standalone_checkpoint_manager

    def get_llm_client(self) -> Any:
        return self.standalone_server_manager.get_client()

    def on_step_end(self) -> None:
        """Transfer the weights while the engine is paused."""
        self._tell_workers(asleep=True)
        super().on_step_end()
        self._tell_workers(asleep=False)
