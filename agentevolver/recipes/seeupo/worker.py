"""Worker for turn-by-turn updates: passes end with the turn, and the learning rate changes once a training step."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDict
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register

from agentevolver.recipes.seeupo import prefixes
from agentevolver.trainer.worker import PolicyWorker


class TurnWorker(PolicyWorker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def hold_learning_rate(self, held: bool) -> None:
        assert self.actor is not None
        hold_learning_rate(self.actor.engine, held)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_log_prob(self, data: TensorDict) -> TensorDict | None:
        if not prefixes.is_asked(data):
            return super().compute_log_prob(data)
        output = super().compute_log_prob(prefixes.cut(data))
        return None if output is None else prefixes.filled(output, data)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: TensorDict) -> TensorDict | None:
        return super().update_actor(prefixes.cut(data) if prefixes.is_asked(data) else data)


def hold_learning_rate(engine: Any, held: bool) -> None:
    # verl ends each call of `update_actor` with a step of the schedule.
    if held:
        engine.lr_scheduler_step = lambda: engine.lr_scheduler.get_last_lr()[0]
    else:
        vars(engine).pop("lr_scheduler_step", None)
