"""The trainer: verl's V1 trainers with ours in their hooks, the synchronous one registered as
`trainer.v1.trainer_mode=agentevolver`; the others are in `agentevolver.trainer.asynchronous`.

What it adds to verl's: rollouts that failed take no part in any statistic or gradient, and end the run when there are
too many; trajectories and metrics are on disk before the step goes on; validation is averaged exactly. verl's loop
itself is untouched.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import transfer_queue as tq
from omegaconf import OmegaConf, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import register_trainer
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.tracking import Tracking

from advantage_processor.pipeline import Processor, assign
from agentevolver.config.asynchronous import VERLS, steps_kept
from agentevolver.config.schema import of_verl
from agentevolver.config.verl_keys import SYNC
from agentevolver.monitor.log import Retention, RunLog, Status
from agentevolver.monitor.watchdog import STARTING, WEIGHTS, WORKERS, Watchdog, described_waits
from agentevolver.rollout.sole_server import client_of
from agentevolver.trainer.actor_update import ActorUpdate
from agentevolver.trainer.adopt import Adopting
from agentevolver.trainer.batch import (
    Places,
    mask_rows,
    ordered,
    plain,
    put_advantages,
    put_scores,
    rollouts_of,
    sample_records,
    scale_synthetic,
    trained_on,
)
from agentevolver.trainer.checkpointing import Checkpointing
from agentevolver.trainer.experience import CLOSE_TIMEOUT_S, RunExperience, scout_path, warm_start_path
from agentevolver.trainer.failures import FailureGuard, lonely_groups, nothing_left
from agentevolver.trainer.gateway import ForkWatch
from agentevolver.trainer.loss import selective_ppo_loss
from agentevolver.trainer.metrics import metrics_apart, rollout_metrics
from agentevolver.trainer.mismatch import MismatchWatch, of_batch
from agentevolver.trainer.no_signal import make_watch
from agentevolver.trainer.polling import pace
from agentevolver.trainer.reward_stages import RewardStages
from agentevolver.trainer.roll_out import roll_out
from agentevolver.trainer.self_play import SelfPlay, win_rates
from agentevolver.trainer.tasks import TrainingTasks
from agentevolver.trainer.timing import timed_whole
from agentevolver.trainer.update import optimiser_steps, required_multiple
from agentevolver.trainer.validation import Validation
from agentevolver.types import RowKey, Task, Trajectory
from agentevolver.utils.files import read_jsonl, write_jsonl
from experience_manager.guide import validation_rollouts
from task_manager.actions import format_of
from task_manager.diagnose import diagnose
from task_manager.synthetic import funnel_metrics
from task_manager.tasks import read_tasks

logger = logging.getLogger(__name__)


class EvolverTrainer(Checkpointing, PPOTrainer):
    """Mixin over verl's `PPOTrainer`: our records, our validation and our treatment of failed rollouts, in its hooks.

    When weights and rollouts take turns is said by the trainer of verl's that it is put before.
    """

    verl_mode = VERLS[SYNC]

    def __init__(self, config: Any) -> None:
        self.settings = of_verl(config)
        self.directory = self.settings.experiment_dir
        self.status = Status(self.directory)
        limits = self.settings.trainer.max_failed_rollouts, self.settings.trainer.max_failed_steps
        self._failures, self._validation_failures, self._filling_failures = (FailureGuard(*limits) for _ in range(3))
        self._rollout_metrics: dict[str, float] = {}
        self._forks = ForkWatch()
        self._trajectories: list[Trajectory] = []
        # Of the batches that the step has trained on before this one; a step has one but with GPUs for rollouts alone.
        self._earlier: list[Trajectory] = []
        self._is_hybrid = self.settings.task_manager.mixture.is_hybrid
        attribution = self.settings.attribution
        self._processor = Processor(attribution, hybrid_data=self._is_hybrid) if attribution.active else None
        self._reward_stages = RewardStages(self.settings.trainer.reward_stages, self.settings)
        self._updates = ActorUpdate(self.settings, config)
        self._mismatch = MismatchWatch(self.settings.trainer.max_log_prob_diff)
        section = self.settings.trainer
        self._signal = make_watch(
            section.max_steps_without_signal, config.algorithm.adv_estimator, self.settings.sizes.n
        )
        self._self_play = SelfPlay(self.settings) if self.settings.self_play.enable else None
        self._tasks = None
        self._experience = None
        self._retention = Retention(self.directory, self.settings.retention)
        self._places = Places(self.settings.data.seed)
        self._closed = False
        self._watchdog = Watchdog(
            self.settings.watchdog, self.directory / "logs" / "watchdog.log", self.status.note, self._waits
        )
        super().__init__(config)

    def on_init_end(self) -> None:
        """Send the weights that the run begins with."""
        with self._watchdog.phase("weights into vLLM", lambda: WEIGHTS):
            super().on_init_end()

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        with self._watchdog.phase("log-probs of the actor", lambda: WORKERS):
            return super()._compute_old_log_prob(batch, metrics)

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        with self._watchdog.phase("log-probs of the reference", lambda: WORKERS):
            return super()._compute_ref_log_prob(batch, metrics)

    def _waits(self) -> str:
        manager = getattr(self, "agent_loop_manager", None)
        return described_waits(
            manager.agent_loop_workers if manager is not None else (),
            self.actors,
        )

    def _build_replay_buffer(self) -> ReplayBuffer:
        # A name of our own must not turn verl's behaviour off.
        self.trainer_mode = self.verl_mode
        self.parameter_sync_step = self.config.trainer.v1.get(self.verl_mode, {}).get("parameter_sync_step", 1)
        buffer = super()._build_replay_buffer()
        buffer.sample = ordered(buffer.sample)
        pace(buffer, self._look_after_workers)
        return buffer

    def _look_after_workers(self) -> None:
        """Have rollouts of a worker that was lost begun anew; called while the step waits for rollouts."""
        manager = getattr(self, "agent_loop_manager", None)
        if manager is not None:
            manager.look_after()

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        prompts = super()._next_train_batch(num_prompts)
        self._places.name(prompts, self.global_steps)
        if self._self_play is not None:
            tu.assign_non_tensor_stack(prompts, "task", self._self_play.seat(list(prompts["task"]), self.global_steps))
        return prompts

    @property
    def logger(self) -> RunLog:
        """Where verl's loop logs a step's metrics."""
        return self._run_log

    @logger.setter
    def logger(self, backend: Tracking) -> None:
        self._run_log = RunLog(self.directory, backend, self._step_is_told)

    def get_llm_client(self) -> Any:
        """A plain client, where rollouts go on over updates too: an aborted reply goes on in our engine."""
        return client_of(self.llm_server_manager)

    def _setup(self) -> None:
        self.status.set("loading the policy and starting vLLM")
        self._watchdog.start()
        self._watchdog.enter("starting", lambda: STARTING)
        experience = self.settings.exp_manager
        if experience.enabled:
            self._experience = RunExperience(
                self.settings, read_tasks(Path(self.config.data.val_files)), steps_kept(self.config)
            )
        super()._setup()
        if self._experience is not None:
            self._experience.wait()
        actor = self.config.actor_rollout_ref.actor
        if experience.kl_to == "old":  # `for_verl` turned it off, so that verl makes no reference
            actor = OmegaConf.merge(actor, {"use_kl_loss": True})
        self.actor_rollout_wg.set_loss_fn(
            partial(selective_ppo_loss, config=omega_conf_to_dataclass(actor), kl_to=experience.kl_to)
        )
        self._watchdog.leave()

    def fit(self, agent_loop_manager: Any) -> None:
        """Fill the pool of experience where that is wanted, and train; what runs in the background ends with it."""
        self.agent_loop_manager = agent_loop_manager
        in_time = 0.0
        try:
            if self.settings.exp_manager.init_exp_before_training and self.global_steps == 0:
                self._fill_pool("warm_start", warm_start_path(self.settings))
            if self._experience is not None and self.global_steps == 0:
                self._experience.save(self._experience.beginning)
            if not self.settings.exp_manager.init_exp_only:
                super().fit(agent_loop_manager)
            in_time = CLOSE_TIMEOUT_S
        finally:
            self.close(in_time)

    def close(self, in_time: float = 0.0) -> None:
        """End what runs in the background, whether or not training had begun; may be called again.

        Args:
            in_time: seconds for what is being distilled to be finished.
        """
        if self._closed:
            return
        self._closed = True
        if self._tasks is not None:
            self._tasks.close()
        if self._experience is not None:
            self._experience.close(in_time)
        self._watchdog.close()

    @property
    def actors(self) -> tuple[Any, ...]:
        """Ray's actors that are there for this training alone, beside the rollout workers."""
        return self._experience.actors if self._experience is not None else ()

    def _fill_pool(self, name: str, path: Path, step: int | None = None) -> None:
        if self._experience is None:
            return

        def tell(done: int, total: int) -> None:
            self._watchdog.enter(f"filling the experience pool ({name})")
            what = f"filling the experience pool ({name}): {done} of {total} tasks"
            self.status.set(what, step=self.global_steps, done=done, total=total)

        self._experience.fill(name, read_tasks(path), partial(self._roll_out, name), tell, step=step)
        self._watchdog.leave()

    def _roll_out(self, name: str, tasks: Sequence[Task], n: int) -> list[Trajectory]:
        """Roll out tasks outside of the step's batch (`roll_out`); fails where too many of them did."""
        seed, step, meanwhile = self.settings.data.seed, self.global_steps, self._look_after_workers
        trajectories = roll_out(self.agent_loop_manager, name, tasks, n, seed=seed, step=step, meanwhile=meanwhile)
        self._filling_failures.check(trajectories)
        return trajectories

    def _init_dataloader(self) -> None:
        """verl's, and in the place of its training loader ours where epochs are a mixture or follow a curriculum."""
        super()._init_dataloader()
        if self.settings.exp_manager.val_rollout_mode == "both":
            self.val_dataset.rollouts = sum(validation_rollouts(self.settings.exp_manager, self.settings.sizes.val_n))
        if self.settings.draws_epochs:
            self._draw_epochs()
        trainer = self.config.trainer
        if trainer.total_training_steps and not trainer.get("val_only"):
            # verl's loop ends with the epochs too, then without the last step's validation and checkpoint.
            epochs = math.ceil(trainer.total_training_steps / self.steps_per_epoch)
            trainer.total_epochs = max(trainer.total_epochs, epochs)

    def _draw_epochs(self) -> None:
        data, trainer = self.config.data, self.config.trainer
        self._tasks = TrainingTasks(self.settings, Path(data.train_files))
        self.train_dataset = self._tasks.dataset
        self.train_dataloader = self._tasks.dataset.loader(
            data.get("gen_batch_size") or data.train_batch_size, collate_fn
        )
        self.steps_per_epoch = len(self.train_dataset) // data.train_batch_size
        self.total_training_steps = trainer.total_training_steps or self.steps_per_epoch * trainer.total_epochs
        # The learning-rate schedule counts optimiser steps, as verl's own does.
        with open_dict(self.config):
            for section in ("actor_rollout_ref.actor.optim", "critic.optim"):
                if OmegaConf.select(self.config, section):
                    OmegaConf.update(
                        self.config,
                        f"{section}.total_training_steps",
                        self.total_training_steps * self.parameter_sync_step,
                    )

    def on_validate_begin(self) -> None:
        super().on_validate_begin()
        validates_alone = bool(self.config.trainer.get("val_only", False))
        is_last = validates_alone or self.global_steps >= self.total_training_steps
        if is_last and self.settings.exp_manager.scout.split is not None:
            self._fill_pool("scout", scout_path(self.settings), self.global_steps)
        prompts, n = (
            len(self.val_dataset),
            sum(validation_rollouts(self.settings.exp_manager, self.settings.sizes.val_n)),
        )
        # An evaluation is of a step; none is before it.
        total = {} if validates_alone else {"total_steps": self.total_training_steps}
        self.status.set(f"validating {prompts} tasks x {n}", step=self.global_steps, **total)
        self._phase_began = time.perf_counter()
        self._settle_experience()
        self._watchdog.enter("validation")

    def on_validate_end(self) -> None:
        self._watchdog.leave()
        super().on_validate_end()

    def _settle_experience(self) -> None:
        if self._experience is not None:
            with self._watchdog.phase("experience of the step before"):
                self._experience.settle()

    def on_step_begin(self) -> None:
        if self._sealed_s:
            self.timing_raw["between_steps/seal_checkpoint"], self._sealed_s = self._sealed_s, 0.0
        self._settle_experience()
        self._watchdog.enter("rollouts")
        super().on_step_begin()
        self._trajectories, self._earlier = [], []
        self.status.set("training", step=self.global_steps, total_steps=self.total_training_steps)

    def on_step_end(self) -> None:
        with self._watchdog.phase("weights into vLLM", lambda: WEIGHTS):
            super().on_step_end()
        if self._tasks is not None and self.global_steps < self.total_training_steps:
            self._tasks.end_step(self.global_steps, self.steps_per_epoch)
        self._retention.tidy(self.global_steps)

    def on_sample_begin(self) -> None:
        super().on_sample_begin()
        self._phase_began = time.perf_counter()

    def on_sample_end(self) -> None:
        self._watchdog.leave()
        super().on_sample_end()

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **kwargs: Any) -> KVBatchMeta:
        """verl's first look at a step's rollouts, hence ours: record them, check them, withdraw those that failed."""
        gen_s = time.perf_counter() - self._phase_began
        extra, trajectories = rollouts_of(batch)
        self._earlier += self._trajectories
        self._trajectories = trajectories
        if self.settings.diagnoses:
            self._diagnose()
        try:
            self._failures.check(trajectories)
            self._forks.look(trajectories)
            lonely = lonely_groups(trajectories)
            withdrawn = [
                i for i, key in enumerate(batch.keys) if extra[i]["masked"] or RowKey.of(key).group_id in lonely
            ]
            if len(withdrawn) == len(batch.keys):
                raise nothing_left(trajectories)
            rewards = self._reward(batch, withdrawn)
        finally:
            self._write_trajectories()
        self.status.warn(self._signal.look(trajectories))
        self._rollout_metrics = rollout_metrics(self._of_step, gen_s) | {"rollout/masked_rows": float(len(withdrawn))}
        self._rollout_metrics |= rewards
        if self.settings.env_service.is_mixture:
            self._rollout_metrics |= metrics_apart(trajectories)
        if self._tasks is not None:
            self._rollout_metrics |= self._tasks.record(self.global_steps, trajectories)
        if self._self_play is not None:
            self._rollout_metrics |= self._self_play.record(self.global_steps, trajectories)
        if self._experience is not None:
            self._experience.submit(self.global_steps, trajectories)
        mask_rows(batch, withdrawn)
        return super()._balance_batch(batch, metrics, **kwargs)

    def _diagnose(self) -> None:
        spec = self.settings.task_manager.action_format
        for one in self._trajectories:
            one.diagnoses = diagnose(one, format_of(one.task.env_type, spec))

    def _reward(self, batch: KVBatchMeta, withdrawn: Sequence[int]) -> dict[str, float]:
        """Have the reward stages make new scores, and put them in the place of the graders'."""
        if not self._reward_stages:
            return {}
        metrics = self._reward_stages.apply(self._trajectories)
        left_out = set(withdrawn)
        put_scores(batch, [i for i in range(len(batch.keys)) if i not in left_out], self._trajectories)
        return metrics

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Equal mini-batches on every rank, of our size; a critic's mini-batches are verl's."""
        self._ranks = dp_size
        needed = required_multiple(self.config.actor_rollout_ref, dp_size, self._optimiser_steps)
        return math.lcm(needed, super()._get_required_batch_multiple(dp_size)) if self.use_critic else needed

    @property
    def _of_step(self) -> list[Trajectory]:
        """The rollouts of the step so far, in order."""
        return [*self._earlier, *self._trajectories]

    @property
    def _optimiser_steps(self) -> int:
        """The optimiser steps of one batch."""
        return optimiser_steps(self.config) // int(self.parameter_sync_step)

    def _write_trajectories(self) -> None:
        write_jsonl(
            self.directory / "trajectories" / f"step_{self.global_steps}.jsonl",
            (one.to_dict() for one in self._of_step),
        )

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """verl's, then step credit over it where the configuration wants that,
        and the scale of synthetic tasks in a hybrid mixture."""
        self._watchdog.enter("advantages")
        if not (self.config.algorithm.get("rollout_correction") or {}).get("bypass_mode", False):
            # Before verl's, whose rejection changes the masks.
            metrics.update(of_batch(batch, self._trajectories, self.global_steps - 1))
            self._mismatch.look(metrics)
        batch = super()._compute_advantage(batch, metrics)
        if self._processor is not None:
            self._assign_credit(batch, metrics, self._processor)
        if self._is_hybrid and not self.settings.attribution.enable:
            scale_synthetic(batch, self._trajectories)
        self._watchdog.leave()
        return batch

    def _assign_credit(self, batch: KVBatchMeta, metrics: dict[str, Any], processor: Processor) -> None:
        keys = [batch.keys[i] for i in trained_on(batch)]
        if not keys:
            return
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        step_ids = [plain(fields)["step_ids"] for fields in data["extra_fields"]]
        advantages, report = assign(processor, self.global_steps, self._trajectories, keys, step_ids)
        metrics.update(report)
        if self.settings.attribution.enable:
            put_advantages(batch, keys, advantages)
        self._write_trajectories()

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """verl's, with mini-batches of as many tasks' rows as the configuration says,
        and columns that our loss reads."""
        rows = trained_on(batch)
        metrics.update(self._updates.tell(batch, rows, self._trajectories))
        if self.settings.trainer.dump_samples:
            records = sample_records(batch, self._updates.columns)
            path = self.directory / "samples" / f"step_{self.global_steps}.jsonl"
            write_jsonl(path, [*(read_jsonl(path) if self._earlier else ()), *records])
        step, steps, workers = self.global_steps, self._optimiser_steps, self.actor_rollout_wg
        with self._watchdog.phase("update", lambda: WORKERS):
            metrics.update(self._updates.update(workers, batch, rows, step=step, steps=steps, ranks=self._ranks))
        return batch

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict[str, Any], timing_raw: dict[str, float], **kwargs: Any
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, **kwargs)
        metrics.update(self._rollout_metrics | self._watchdog.metrics() | self.agent_loop_manager.metrics())
        if self._tasks is not None and self.global_steps == 1:
            several = self.settings.env_service.is_mixture
            metrics.update(
                funnel_metrics(self.settings.experiment_dir, self.settings.questioned if several else (None,))
            )
        if self._experience is not None:
            metrics.update(self._experience.collect())

    def _val_metrics_update(
        self,
        data_sources: list[str],
        sample_uids: list[str],
        reward_extra_infos_dict: dict[str, list[Any]],
        sample_turns: list[int],
        expected_acc_counts: Any = None,
    ) -> dict[str, float]:
        """Replace verl's bootstrap by exact averages, and keep the validation's trajectories."""
        seen = Validation.of(data_sources, sample_uids, reward_extra_infos_dict, sample_turns)
        path = self.directory / "validation" / f"step_{self.global_steps}.jsonl"
        write_jsonl(path, seen.records)
        self._validation_failures.check(seen.trajectories)
        metrics = seen.metrics(self.settings.exp_manager, self.settings.sizes.val_n)
        if self._experience is not None:
            metrics |= self._experience.collect()
        if self._self_play is not None:
            metrics |= win_rates(seen.trajectories, self.settings.self_play)
        metrics["timing_s/testing"] = time.perf_counter() - self._phase_began
        return metrics


@register_trainer("agentevolver")
@timed_whole
class EvolverTrainerSync(EvolverTrainer, Adopting, PPOTrainerSync):
    """The synchronous trainer: a step's rollouts, then its update, then the weights into vLLM."""
