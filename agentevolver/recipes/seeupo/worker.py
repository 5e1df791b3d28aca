"""Worker of the policy for updates of one turn: passes end with the turn, and only the last update ends a step."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDict
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register

from agentevolver.recipes.seeupo import prefixes
from agentevolver.trainer.worker import PolicyWorker


class TurnWorker(PolicyWorker):
    """Cuts rows at the end of their mask where a batch asks for it."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def hold_learning_rate(self, held: bool) -> None:
        """Freeze the learning-rate schedule during updates if `held`, else resume it."""
        assert self.actor is not None
        hold_learning_rate(self.actor.engine, held)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_log_prob(self, data: TensorDict) -> TensorDict | None:
        """verl's own, over rows that end at their mask where the batch asks for it."""
        if not prefixes.is_asked(data):
            return super().compute_log_prob(data)
        output = super().compute_log_prob(prefixes.cut(data))
        return None if output is None else prefixes.filled(output, data)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: TensorDict) -> TensorDict | None:
        """verl's own, over rows that end at their mask where the batch asks for it."""
        return super().update_actor(prefixes.cut(data) if prefixes.is_asked(data) else data)


def hold_learning_rate(engine: Any, held: bool) -> None:
    """Freeze an engine's learning-rate schedule if `held`, else resume it."""
    # verl ends each call of `update_actor` with a step of the schedule.
    if held:
        engine.lr_scheduler_step = lambda: engine.lr_scheduler.get_last_lr()[0]
    else:
        vars(engine).pop("lr_scheduler_step", None)
