"""Complete timing of a training step, including the time outside verl's timers.

The phases of `timing_s/step` do not overlap; the rest is `timing_s/untimed`. `timing_s/NAME/PART` is a part of a phase.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

# In order of time; some are present only if configured.
PHASES = (
    *("submit", "gen", "reward", "collect", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"),
    *("save_checkpoint", "update_weights", "end_step"),
)
# Trainer methods that verl's loop calls within a step but outside its timers, and the phase that each belongs to.
PHASE_OF = {
    "on_step_begin": "submit",
    "prepare_step": "submit",  # the data loader, and prompts handed to the rollout workers
    "_balance_batch": "collect",  # rollouts read, recorded, checked; rows ordered
    "on_step_end": "end_step",  # `update_weights` in it is a timer of verl's
}
# A part of the timer `gen`.
PART_OF = {"on_sample_end": "gen/sleep"}

Trainer = TypeVar("Trainer", bound=type)


def phases(timing: Mapping[str, float]) -> dict[str, float]:
    return {name: timing[name] for name in PHASES if name in timing}


def untimed(timing: Mapping[str, float]) -> float:
    return timing["step"] - sum(phases(timing).values())


def timed_whole(trainer: Trainer) -> Trainer:
    """Class decorator for a subclass of verl's `PPOTrainer`: its timers cover the whole step."""
    for method, name in {**PHASE_OF, **PART_OF}.items():
        setattr(trainer, method, _timed(name, getattr(trainer, method)))
    trainer.on_step_begin = _with_gap(trainer.on_step_begin)  # type: ignore[attr-defined]
    trainer.on_step_end = _marking_the_end(trainer.on_step_end)  # type: ignore[attr-defined]
    trainer._init_resource_pool_mgr = _with_own_workers(trainer._init_resource_pool_mgr)  # type: ignore[attr-defined]
    trainer._compute_metrics = _with_untimed(trainer._compute_metrics)  # type: ignore[attr-defined]
    return trainer


def _timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def inner(self: Any, *arguments: Any, **options: Any) -> Any:
        timing: dict[str, float] = self.timing_raw
        began, counted = time.perf_counter(), sum(phases(timing).values())
        try:
            return method(self, *arguments, **options)
        finally:
            # Time of nested timers is subtracted, so that no second counts twice.
            within = sum(phases(timing).values()) - counted
            timing[name] = timing.get(name, 0.0) + time.perf_counter() - began - within

    return inner


def _with_gap(on_step_begin: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(on_step_begin)
    def inner(self: Any) -> None:
        before: tuple[float, dict[str, float]] | None = getattr(self, "_step_ended", None)
        if before is not None:
            ended, timing = before
            self.timing_raw["between_steps"] = time.perf_counter() - ended - timing.get("testing", 0.0)
        on_step_begin(self)

    return inner


def _marking_the_end(on_step_end: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(on_step_end)
    def inner(self: Any) -> None:
        on_step_end(self)
        for seconds in self.actor_rollout_wg.sync_seconds():
            for part, value in seconds.items():  # of the slowest rank
                self.timing_raw[f"update_weights/{part}"] = max(
                    value, self.timing_raw.get(f"update_weights/{part}", 0.0)
                )
        self._step_ended = (time.perf_counter(), self.timing_raw)

    return inner


def _with_own_workers(init_resource_pool_mgr: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init_resource_pool_mgr)
    def inner(self: Any) -> None:
        import ray
        from verl.trainer.ppo.utils import Role

        from agentevolver.trainer.worker import PolicyWorker

        init_resource_pool_mgr(self)
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef):
            if role in self.role_worker_mapping:
                worker = self.parts.worker or getattr(self, "worker_class", PolicyWorker)
                self.role_worker_mapping[role] = ray.remote(worker)

    return inner


def _with_untimed(compute_metrics: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(compute_metrics)
    def inner(self: Any, batch: Any, metrics: dict[str, Any], timing_raw: dict[str, float], **options: Any) -> None:
        timing_raw["untimed"] = untimed(timing_raw)
        compute_metrics(self, batch, metrics, timing_raw, **options)

    return inner
