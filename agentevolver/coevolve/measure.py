"""Measuring a proposed task: k episodes of the frozen executor, and what their answers say."""

from __future__ import annotations

from agentevolver.coevolve.play import Player
from agentevolver.coevolve.types import Measurement, Proposal
from agentevolver.coevolve.votes import Equality, measured
from agentevolver.types import Task


def task_of(proposal: Proposal, world: str, answer: str | None = None) -> Task:
    """Return a proposal as a task of the world that it is for, graded by `answer`;
    without one all its episodes are graded 0.

    Raises ValueError for a proposal that was refused.
    """
    if proposal.refused or not proposal.question:
        raise ValueError(f"proposal {proposal.proposal_id} is no task: {proposal.refused or 'it has no question'}")
    problem = {"question": proposal.question} | ({"answer": answer} if answer else {})
    return Task(proposal.proposal_id, world, metadata={"env_params": {"problem": problem}, "split": "proposed"})


class Measurer:
    """Measurer of proposals; safe for many at once on one event loop.

    Args:
        player: plays the executor.
        world: the environment that the proposals are for.
        equal: the world's equality of answers, beyond equal numbers and texts.
    """

    def __init__(self, player: Player, world: str, equal: Equality | None = None) -> None:
        self._player = player
        self._world = world
        self._equal = equal

    async def measure(
        self, proposal: Proposal, checkpoint: str, k: int, name: str, label: str | None = None
    ) -> Measurement:
        """Return what k episodes of the policy at `checkpoint` make of a proposal.

        Args:
            name: of the draws; equal names with equal weights give equal measurements.
            label: the answer that counts as right; None takes the most frequent one.

        Raises:
            PlayFailed: they were not played.
            ValueError: the proposal was refused.
        """
        plays = await self._player.play(checkpoint, task_of(proposal, self._world, label), k, name)
        answers, calls = [play.answer for play in plays], [play.calls for play in plays]
        return measured(answers, calls, label, self._equal)
