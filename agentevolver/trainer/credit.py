"""Step credit: the advantages of a step's rows, computed by the stages of `advantage_processor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import transfer_queue as tq
from transfer_queue import KVBatchMeta

from advantage_processor.pipeline import Processor, assign
from agentevolver.config.schema import Settings
from agentevolver.trainer.batch import plain, put_advantages, scale_synthetic, trained_on
from agentevolver.trainer.parts import TrainerPart
from agentevolver.trainer.records import Records
from agentevolver.types import Trajectory


class StepCreditPart(TrainerPart):
    """Replaces verl's advantages if `attribution_driven_credit_assignment.enable` is set.

    With `stages` alone they are only reported. In a hybrid mixture the advantages of synthetic tasks are scaled.
    """

    def __init__(self, settings: Settings, records: Records) -> None:
        attribution, hybrid = settings.attribution, settings.task_manager.mixture.is_hybrid
        self._processor = Processor(attribution, hybrid_data=hybrid) if attribution.active else None
        self._replaces = attribution.enable
        self._scales = hybrid and not attribution.enable
        self._records = records

    def advantages(self, step: int, batch: KVBatchMeta, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        metrics = {} if self._processor is None else self._assign(self._processor, step, batch, trajectories)
        if self._scales:
            scale_synthetic(batch, trajectories)
        return metrics

    def _assign(
        self, processor: Processor, step: int, batch: KVBatchMeta, trajectories: Sequence[Trajectory]
    ) -> Mapping[str, float]:
        keys = [batch.keys[i] for i in trained_on(batch)]
        if not keys:
            return {}
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        step_ids = [plain(fields)["step_ids"] for fields in data["extra_fields"]]
        advantages, metrics = assign(processor, step, trajectories, keys, step_ids)
        if self._replaces:
            put_advantages(batch, keys, advantages)
        self._records.write()
        return metrics
