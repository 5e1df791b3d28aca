"""The trainer: hooks in verl's V1 trainers, whose loop is unchanged. The synchronous one is
`trainer_mode=agentevolver`.

Failed rollouts are masked, and too many end the run. Trajectories and metrics are on disk before the step continues.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import register_trainer
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.tracking import Tracking

from agentevolver.config.asynchronous import VERLS, steps_kept
from agentevolver.config.schema import of_verl
from agentevolver.config.verl_keys import SYNC
from agentevolver.rollout.sole_server import client_of
from agentevolver.trainer.actor_update import ActorUpdate, bypasses
from agentevolver.trainer.batch import GroupNames, mask_rows, ordered, rollouts_of, sample_records, trained_on
from agentevolver.trainer.checkpointing import Checkpointing
from agentevolver.trainer.credit import StepCreditPart
from agentevolver.trainer.experience import CLOSE_TIMEOUT_S, RunExperience
from agentevolver.trainer.failures import FailureGuard, lonely_groups, nothing_left
from agentevolver.trainer.filling import PoolFilling
from agentevolver.trainer.gateway import ForkWatch
from agentevolver.trainer.loading import Loading
from agentevolver.trainer.metrics import metrics_apart, rollout_metrics
from agentevolver.trainer.mismatch import MismatchWatch, of_batch
from agentevolver.trainer.monitor.log import Retention, RunLog, Status
from agentevolver.trainer.monitor.watchdog import STARTING, WEIGHTS, WORKERS, Watchdog, described_waits
from agentevolver.trainer.no_signal import make_watch
from agentevolver.trainer.parts import TrainerPart, TrainerParts
from agentevolver.trainer.polling import pace
from agentevolver.trainer.recipe_parts import PartContext, recipe_parts
from agentevolver.trainer.records import Records
from agentevolver.trainer.reward_stages import RewardStages
from agentevolver.trainer.timing import timed_whole
from agentevolver.trainer.update import optimiser_steps, required_multiple
from agentevolver.trainer.validating import Validating
from agentevolver.types import RowKey, Trajectory
from task_manager.tasks import read_tasks


class EvolverTrainer(Loading, PoolFilling, Validating, Checkpointing, PPOTrainer):
    """Mixin over verl's `PPOTrainer`. Its subclasses also inherit the verl trainer that schedules rollouts and
    updates."""

    verl_mode = VERLS[SYNC]

    def __init__(self, config: Any) -> None:
        self.settings = of_verl(config)
        self.directory = self.settings.experiment_dir
        self.status = Status(self.directory)
        section = self.settings.trainer
        limits = section.max_failed_rollouts, section.max_failed_steps
        self._failures, self._validation_failures, self._filling_failures = (FailureGuard(*limits) for _ in range(3))
        self._rollout_metrics: dict[str, float] = {}
        self._trajectories: list[Trajectory] = []
        self._reward_stages = RewardStages(section.reward_stages, self.settings)
        self._updates = ActorUpdate(self.settings, config)
        self._mismatch = MismatchWatch(section.max_log_prob_diff)
        self._records = Records(self.directory, Retention(self.directory, self.settings.retention))
        self.parts = TrainerParts(())
        self._tasks = None
        self._experience = None
        self._places = GroupNames(self.settings.data.seed)
        self._closed = False
        self._watchdog = Watchdog(
            self.settings.watchdog, self.directory / "logs" / "watchdog.log", self.status.note, self._waits
        )
        super().__init__(config)

    def make_parts(self) -> None:
        settings = self.settings
        recipes = recipe_parts(PartContext(settings, self.config, self._tasks))
        signal = make_watch(
            settings.trainer.max_steps_without_signal,
            self.config.algorithm.adv_estimator,
            1 if self.config.trainer.get("val_only") else settings.sizes.n,
            self.status.warn,
            self.status.tell,
        )
        own: tuple[TrainerPart | None, ...] = (
            self._records,
            ForkWatch(),
            signal,
            StepCreditPart(settings, self._records),
            self._tasks,
            self._experience,
        )
        self.parts = TrainerParts([*recipes, *(part for part in own if part is not None)])

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        self.make_parts()

    # ---- start and end ----

    def _setup(self) -> None:
        self.status.set("loading the policy and starting vLLM")
        self._watchdog.start()
        self._watchdog.enter("starting", lambda: STARTING)
        if self.settings.exp_manager.enabled:
            self._experience = RunExperience(
                self.settings, read_tasks(Path(self.config.data.val_files)), steps_kept(self.config)
            )
        super()._setup()
        if self._experience is not None:
            self._experience.wait()
        self.actor_rollout_wg.set_loss_fn(self._updates.loss())
        self._watchdog.leave()

    def on_init_end(self) -> None:
        with self._watchdog.phase("weights into vLLM", lambda: WEIGHTS):
            super().on_init_end()

    def fit(self, agent_loop_manager: Any) -> None:
        self.agent_loop_manager = agent_loop_manager
        in_time = 0.0
        try:
            self._warm_start()
            if not self.settings.exp_manager.init_exp_only:
                super().fit(agent_loop_manager)
            in_time = CLOSE_TIMEOUT_S
        finally:
            self.close(in_time)

    def close(self, in_time: float = 0.0) -> None:
        """Stop background work, also if training never began; may be called again.

        The experience distillation gets `in_time` seconds to finish.
        """
        if self._closed:
            return
        self._closed = True
        self.parts.close()
        if self._experience is not None:
            self._experience.finish(in_time)
        self._watchdog.close()

    @property
    def actors(self) -> tuple[Any, ...]:
        """Ray actors of this training beside the rollout workers."""
        return self._experience.actors if self._experience is not None else ()

    def _waits(self) -> str:
        manager = getattr(self, "agent_loop_manager", None)
        return described_waits(manager.agent_loop_workers if manager is not None else (), self.actors)

    @property
    def logger(self) -> RunLog:
        return self._run_log

    @logger.setter
    def logger(self, backend: Tracking) -> None:
        self._run_log = RunLog(self.directory, backend, self._step_is_told)

    def get_llm_client(self) -> Any:
        # Always the plain client: this project's engine itself continues aborted replies (`rollout.resuming`).
        return client_of(self.llm_server_manager)

    # ---- rollouts ----

    def _build_replay_buffer(self) -> ReplayBuffer:
        # verl compares `trainer_mode` with its own names ("sync"), so the project's name must not stay here.
        self.trainer_mode = self.verl_mode
        self.parameter_sync_step = self.config.trainer.v1.get(self.verl_mode, {}).get("parameter_sync_step", 1)
        buffer = super()._build_replay_buffer()
        buffer.sample = ordered(buffer.sample)
        pace(buffer, self._look_after_workers)
        return buffer

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        prompts = super()._next_train_batch(num_prompts)
        self._places.name(prompts, self.global_steps)
        tasks = self.parts.before_rollouts(list(prompts["task"]), self.global_steps)
        tu.assign_non_tensor_stack(prompts, "task", tasks)
        return prompts

    def on_step_begin(self) -> None:
        if self._sealed_s:
            self.timing_raw["between_steps/seal_checkpoint"], self._sealed_s = self._sealed_s, 0.0
        self._settle_experience()
        self._watchdog.enter("rollouts")
        super().on_step_begin()
        self.status.set("training", step=self.global_steps, total_steps=self.total_training_steps)

    def on_sample_begin(self) -> None:
        super().on_sample_begin()
        self._phase_began = time.perf_counter()

    def on_sample_end(self) -> None:
        self._watchdog.leave()
        super().on_sample_end()

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **kwargs: Any) -> KVBatchMeta:
        # verl's first hook after sampling: rollouts are recorded, checked and scored here, and failed ones masked.
        gen_s = time.perf_counter() - self._phase_began
        extra, trajectories = rollouts_of(batch)
        self._trajectories = trajectories
        self._records.begin(self.global_steps, trajectories)
        try:
            self._failures.check(trajectories)
            lonely = lonely_groups(trajectories)
            withdrawn = [
                i for i, key in enumerate(batch.keys) if extra[i]["masked"] or RowKey.of(key).group_id in lonely
            ]
            if len(withdrawn) == len(batch.keys):
                raise nothing_left(trajectories)
            rewards = self._reward_stages.score(batch, withdrawn, trajectories)
            told = self.parts.after_rollouts(self.global_steps, trajectories)
        except BaseException:
            self._records.write()
            raise
        self._rollout_metrics = rollout_metrics(self._records.of_step, gen_s)
        self._rollout_metrics |= {"rollout/masked_rows": float(len(withdrawn))} | rewards
        if self.settings.env_service.is_mixture:
            self._rollout_metrics |= metrics_apart(trajectories)
        self._rollout_metrics |= told
        mask_rows(batch, withdrawn)
        return super()._balance_batch(batch, metrics, **kwargs)

    # ---- update ----

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        with self._watchdog.phase("log-probs of the actor", lambda: WORKERS):
            return super()._compute_old_log_prob(batch, metrics)

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        with self._watchdog.phase("log-probs of the reference", lambda: WORKERS):
            return super()._compute_ref_log_prob(batch, metrics)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self._watchdog.enter("advantages")
        if not bypasses(self.config):
            # Before verl's computation, whose rejection changes the masks.
            metrics.update(of_batch(batch, self._trajectories, self.global_steps - 1))
            self._mismatch.look(metrics)
        batch = super()._compute_advantage(batch, metrics)
        metrics.update(self.parts.advantages(self.global_steps, batch, self._trajectories))
        self._watchdog.leave()
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        rows = trained_on(batch)
        metrics.update(self._updates.tell(batch, rows, self._trajectories))
        if self.settings.trainer.dump_samples:
            self._records.write_samples(sample_records(batch, self._updates.columns))
        update = self._updates.of_step(self.global_steps, self._optimiser_steps, self._ranks)
        with self._watchdog.phase("update", lambda: WORKERS):
            metrics.update(self._updates.update(self.actor_rollout_wg, batch, rows, update, self.parts))
        if bypasses(self.config):
            self._mismatch.look(metrics)
        return batch

    @property
    def _optimiser_steps(self) -> int:
        return optimiser_steps(self.config) // int(self.parameter_sync_step)

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        # Every rank needs equal mini-batches. The critic's mini-batches are verl's, so both multiples must hold.
        self._ranks = dp_size
        needed = required_multiple(self.config.actor_rollout_ref, dp_size, self._optimiser_steps)
        return math.lcm(needed, super()._get_required_batch_multiple(dp_size)) if self.use_critic else needed

    def on_step_end(self) -> None:
        with self._watchdog.phase("weights into vLLM", lambda: WEIGHTS):
            super().on_step_end()
        self.parts.after_step(self.global_steps)

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict[str, Any], timing_raw: dict[str, float], **kwargs: Any
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, **kwargs)
        metrics.update(self._rollout_metrics | self._watchdog.metrics() | self.agent_loop_manager.metrics())
        metrics.update(self.parts.after_update(self.global_steps, metrics))


@register_trainer("agentevolver")
@timed_whole
class EvolverTrainerSync(EvolverTrainer, PPOTrainerSync):
    """The synchronous trainer: a step's rollouts, its update, then the weights into vLLM."""
