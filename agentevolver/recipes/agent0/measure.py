"""Measures a proposed task with k episodes of the frozen executor, and labels it."""

from __future__ import annotations

from agentevolver.recipes.agent0.execute import execute
from agentevolver.recipes.agent0.gates import gate
from agentevolver.recipes.agent0.play import Player
from agentevolver.recipes.agent0.pool import JudgedProposal
from agentevolver.recipes.agent0.settings import Agent0Settings
from agentevolver.recipes.agent0.types import DroppedProposal, Measurement, ProposedTask
from agentevolver.recipes.agent0.votes import measured
from agentevolver.types import Task
from env_service.protocol import Instances


def task_of(proposal: ProposedTask, world: str, answer: str | None = None) -> Task:
    """Return a proposal as a task of its world, graded by `answer`; without one every episode scores 0. Raises
    ValueError if the proposal was refused."""
    if proposal.refused or not proposal.question:
        raise ValueError(f"proposal {proposal.proposal_id} is no task: {proposal.refused or 'it has no question'}")
    problem = {"question": proposal.question} | ({"answer": answer} if answer else {})
    return Task(proposal.proposal_id, world, metadata={"env_params": {"problem": problem}, "split": "proposed"})


async def measure(
    player: Player, checkpoint: str, world: str, proposal: ProposedTask, k: int, name: str, label: str | None = None
) -> Measurement:
    """Return what k episodes of the policy at `checkpoint` answer to a proposal.

    Equal names and equal weights give equal measurements. Without `label` the most frequent answer counts as right.
    Raises PlayFailed, or ValueError if the proposal was refused.
    """
    plays = await player.play(checkpoint, task_of(proposal, world, label), k, name)
    return measured([play.answer for play in plays], [play.calls for play in plays], label)


class GateLabeller:
    def __init__(
        self, settings: Agent0Settings, client: Instances, world: str, player: Player, checkpoint: str
    ) -> None:
        self._settings = settings
        self._client = client
        self._world = world
        self._player = player
        self._checkpoint = checkpoint

    async def label(self, proposal: ProposedTask, name: str) -> JudgedProposal:
        """Run, measure and judge a proposal; raises PlayFailed or EnvServiceError.

        A proposal without a label by the gate's rule is not measured, which saves `label_k` episodes.
        """
        executed = await execute(self._client, self._world, proposal) if proposal.program else None
        given: str | DroppedProposal | None = None
        if self._settings.gate == "executed":
            given = executed if executed is not None else DroppedProposal("unexecutable", "the proposal has no program")
        if isinstance(given, DroppedProposal):
            return JudgedProposal(given, None, executed)
        k = self._settings.executor.label_k
        measurement = await measure(self._player, self._checkpoint, self._world, proposal, k, name, given)
        verdict = gate(self._settings, proposal, measurement, executed)
        return JudgedProposal(verdict, measurement, executed)
