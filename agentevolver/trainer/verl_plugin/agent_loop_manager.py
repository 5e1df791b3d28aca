"""verl's manager of agent loop workers, for workers that may be lost: other workers restart their groups."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4

import ray
import transfer_queue as tq
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tensordict import TensorDict
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.utils import tensordict_utils as tu

from agentevolver.config.schema import of_verl
from agentevolver.rollout.workers import Member, RayCluster, RolloutWorkers
from agentevolver.types import RowKey
from agentevolver.utils.errors import last_line

# Interval of the check for lost workers while the trainer waits for rollouts.
LOOK_S = 1.0
# Key of a prompt that is not rolled out again; its value is the reason.
GIVEN_UP = "given_up"

logger = logging.getLogger(__name__)


class WorkerManager(AgentLoopManagerTQ):
    """Manages workers that can be lost and replaced. A group whose workers are lost too often ends as env_error."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._workers = RolloutWorkers(int(self.rollout_config.agent.num_workers), self._start_worker, RayCluster())
        self._max_tries = of_verl(self.config).rollout.max_rollout_tries
        self._pause: dict[str, bool] = {}
        self._losses: Counter[str] = Counter()
        self._looked_at = 0.0
        self._lost = self._begun_again = 0

    @property
    def agent_loop_workers(self) -> list[Any]:
        """Handles of the workers that roll out."""
        return [one.handle for one in (*self._workers.active, *self._workers.retiring)]

    @property
    def actors(self) -> list[Any]:
        """Handles of all workers, starting ones included."""
        return [one.handle for one in self._workers.members]

    async def _init_agent_loop_workers(self) -> None:
        self._workers.begin()

    def _start_worker(self, node: str) -> Any:
        # A node only for rollouts declares no CPUs to Ray (docs: several nodes).
        return self.agent_loop_workers_class.options(
            name=f"agent_loop_worker_{uuid4().hex[:8]}",
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote(self.config, self.llm_client, self.teacher_client, self.reward_loop_worker_handles)

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Send a batch to the workers, which write finished rows into TransferQueue. Raises NoWorker."""
        self.look_after(0.0)
        self._arrange()
        self._forget_what_is_done()
        active = self._workers.active
        self._give(zip(active, prompts.chunk(len(active)), strict=False))

    def look_after(self, every_s: float = LOOK_S) -> None:
        """Check for lost workers at most once in `every_s` seconds and restart their groups. Raises NoWorker."""
        now = time.monotonic()
        if now - self._looked_at < every_s:
            return
        self._looked_at = now
        while lost := self._workers.lost():
            self._lost += len(lost)
            self._arrange()
            groups = [group for one in lost for batch in one.given for group in open_groups(batch)]
            clear_rows(groups)
            for place, group in enumerate(groups):
                self._give([(self._workers.active[place % len(self._workers.active)], self._again(group))])

    def pause(self, **pause: bool) -> None:
        self._pause |= pause
        _settled([one.pause.remote(**pause) for one in self.agent_loop_workers])

    def metrics(self) -> dict[str, float]:
        """Return the losses since the last call, or {} without any."""
        lost, again = self._lost, self._begun_again
        self._lost = self._begun_again = 0
        return {"rollout/lost_workers": float(lost), "rollout/groups_begun_again": float(again)} if lost else {}

    def _arrange(self) -> None:
        for new in self._workers.arrange():
            if self._pause:
                new.handle.pause.remote(**self._pause)

    def _give(self, shares: Iterable[tuple[Member, TensorDict]]) -> None:
        asked = []
        for member, batch in shares:
            member.given.append(batch)
            asked.append(member.handle.generate_sequences.remote(batch))
        _settled(asked)

    def _again(self, group: TensorDict) -> TensorDict:
        name = str(group["uid"][0])
        self._losses[name] += 1
        self._begun_again += 1
        if self._losses[name] >= self._max_tries:
            tu.assign_non_tensor_data(group, GIVEN_UP, f"its rollout worker was lost, {self._losses[name]} times")
        return group

    def _forget_what_is_done(self) -> None:
        for member in self._workers.members:
            member.given = [batch for batch in member.given if open_groups(batch)]
        self._workers.dismiss(lambda member: not member.given)


def open_groups(batch: TensorDict) -> list[TensorDict]:
    """Return the unfinished groups of a batch, each as a batch of one."""
    tags = (tq.kv_list(_partition(batch)) or {}).get(_partition(batch), {})
    states = [tags.get(str(name), {}).get("status") for name in batch["uid"]]
    return [batch[place : place + 1] for place, state in enumerate(states) if state in ("pending", "running")]


def clear_rows(groups: Sequence[TensorDict]) -> None:
    """Remove the rows of groups that are restarted."""
    for partition in {_partition(group) for group in groups}:
        names = {str(group["uid"][0]) for group in groups if _partition(group) == partition}
        tags = (tq.kv_list(partition) or {}).get(partition, {})
        rows = [key for key, tag in tags.items() if not tag.get("is_prompt") and RowKey.of(key).group_id in names]
        if rows:
            tq.kv_clear(keys=rows, partition_id=partition)


def _partition(batch: TensorDict) -> str:
    return "val" if tu.get_non_tensor_data(batch, "validate", False) else "train"


def _settled(references: Sequence[Any]) -> None:
    """Wait for calls to workers. Lost workers are only logged, because `look_after` replaces them."""
    for reference in references:
        try:
            ray.get(reference)
        except RayActorError as error:
            logger.info("a rollout worker does not answer: %s", last_line(error))
