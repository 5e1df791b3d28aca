"""Measuring a proposed task: k episodes of the frozen executor, and what their answers say."""

from __future__ import annotations

from agentevolver.recipes.agent0.play import Player
from agentevolver.recipes.agent0.types import Measurement, Proposal
from agentevolver.recipes.agent0.votes import measured
from agentevolver.types import Task


def task_of(proposal: Proposal, world: str, answer: str | None = None) -> Task:
    """Return a proposal as a task of its world, graded by `answer`; without one every episode gets 0. Raises
    ValueError for a proposal that was refused."""
    if proposal.refused or not proposal.question:
        raise ValueError(f"proposal {proposal.proposal_id} is no task: {proposal.refused or 'it has no question'}")
    problem = {"question": proposal.question} | ({"answer": answer} if answer else {})
    return Task(proposal.proposal_id, world, metadata={"env_params": {"problem": problem}, "split": "proposed"})


async def measure(
    player: Player, checkpoint: str, world: str, proposal: Proposal, k: int, name: str, label: str | None = None
) -> Measurement:
    """Return what k episodes of the policy at `checkpoint` make of a proposal.

    Equal names with equal weights give equal measurements. Without `label` the most frequent answer counts as right.
    Raises PlayFailed, or ValueError for a proposal that was refused.
    """
    plays = await player.play(checkpoint, task_of(proposal, world, label), k, name)
    return measured([play.answer for play in plays], [play.calls for play in plays], label)
