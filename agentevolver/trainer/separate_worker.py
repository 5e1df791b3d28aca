"""The worker of the trainer with separate rollout GPUs."""

from __future__ import annotations

from verl.experimental.separation.engine_workers import DetachActorWorker

from agentevolver.trainer.worker import PolicyWorker


class SeparateWorker(PolicyWorker, DetachActorWorker):
    """`PolicyWorker` on verl's detached worker, which also keeps policies in memory beside the trained one."""
