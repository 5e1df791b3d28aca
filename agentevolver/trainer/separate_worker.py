"""verl's worker where rollouts have GPUs of their own, that knows where the seconds of its last weight sync went."""

from __future__ import annotations

from verl.experimental.separation.engine_workers import DetachActorWorker

from agentevolver.trainer.worker import PolicyWorker


class SeparateWorker(PolicyWorker, DetachActorWorker):
    """Ours, with the policies that verl's keeps in memory beside the one that is trained."""
