"""verl's agent loop worker and manager with our episode in them (`rollout.agent.agent_loop_manager_class`).

The worker differs from verl's in two places, both for the CPU time of a turn: it makes the episode itself instead of
through a configuration object per rollout, and it hands rows over together that become ready together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import ray
import transfer_queue as tq
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from agentevolver.rollout.agent_loop import Episode
from agentevolver.rollout.rows import to_row
from agentevolver.types import RowKey
from agentevolver.utils.inflight import BOARD, Waiting

# Rows that become ready within this time go to TransferQueue in one call: a call costs milliseconds of CPU however few
# it carries.
GATHER_S = 0.02

Row = tuple[str, dict[str, Any], dict[str, Any]]
_VerlWorker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class


class RowWriter:
    """Puts rows into TransferQueue, those that arrive together in one call."""

    def __init__(self, gather_s: float = GATHER_S) -> None:
        self._gather_s = gather_s
        self._waiting: dict[str, tuple[list[Row], asyncio.Task[None]]] = {}

    async def put(self, rows: Sequence[Row], partition_id: str) -> None:
        """Hand rows (key, fields, tag) over and return when they are there; raises what TransferQueue raises."""
        if partition_id not in self._waiting:
            self._waiting[partition_id] = ([], asyncio.create_task(self._flush_soon(partition_id)))
        batch, flushed = self._waiting[partition_id]
        batch.extend(rows)
        await asyncio.shield(flushed)

    async def _flush_soon(self, partition_id: str) -> None:
        await asyncio.sleep(self._gather_s)
        batch, _ = self._waiting.pop(partition_id)
        keys, fields, tags = zip(*batch, strict=True)
        await tq.async_kv_batch_put(
            keys=list(keys), fields=list_of_dict_to_tensordict(list(fields)), tags=list(tags), partition_id=partition_id
        )


class EpisodeWorker(_VerlWorker):
    """Runs the rollouts that verl hands it, many at once on one event loop."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rows = RowWriter()

    async def waiting(self) -> Waiting:
        """Return what the rollouts of this worker wait for now."""
        return BOARD.waiting()

    async def _run_agent_loop(
        self,
        sampling_params: dict[str, Any],
        trajectory: dict[str, Any],
        *,
        agent_name: str,
        trace: bool = True,
        **row: Any,
    ) -> None:
        episode = Episode(
            trainer_config=DictConfigWrap(self.config), server_manager=self.llm_client, tokenizer=self.tokenizer
        )
        outputs = await episode.run(sampling_params, **row)
        await self._agent_loop_postprocess(outputs, trajectory["validate"], **row)

    async def _agent_loop_postprocess(self, output: list[AgentLoopOutput], validate: bool, **row: Any) -> None:
        keys = [str(RowKey(str(row["uid"]), row["session_id"], index)) for index in range(len(output))]
        rows = [(key, *to_row(one, row)) for key, one in zip(keys, output, strict=True)]
        await self._rows.put(rows, "val" if validate else "train")


class EpisodeManager(AgentLoopManagerTQ):
    """verl's manager of agent loop workers, with ours."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(EpisodeWorker)
