"""Gates: which proposals become tasks, and where the label comes from.

`executed`: the answer of the proposal's program. `vote`: the executor's most frequent answer, right or not. Either way
a task is kept only if p, the share of episodes with that answer, lies within `keep`, both ends included.
"""

from __future__ import annotations

from agentevolver.recipes.agent0.settings import Agent0Settings
from agentevolver.recipes.agent0.types import DroppedProposal, KeptProposal, Measurement, ProposedTask
from agentevolver.recipes.agent0.votes import canonical, share


def gate(
    settings: Agent0Settings,
    proposal: ProposedTask,
    measurement: Measurement | None,
    executed: str | DroppedProposal | None = None,
) -> KeptProposal | DroppedProposal:
    """Return the task's label and p, or why the proposal becomes no task.

    `measurement` is None only for a proposal that is dropped without one; `executed` is None if the program was not
    run. Raises ValueError if the gate lacks what it needs.
    """
    if proposal.refused:
        word, _, sentence = proposal.refused.partition(":")
        return DroppedProposal(word.strip(), sentence.strip())
    if settings.gate == "executed":
        if executed is None:
            raise ValueError(f"proposal {proposal.proposal_id}: the gate 'executed' needs a label, none was made")
        if isinstance(executed, DroppedProposal):
            return executed
        label = executed
    else:
        label = _needed(proposal, measurement).vote
    if canonical(label) is None:
        return DroppedProposal("no_label", "the label is empty, or longer than any answer that is graded")
    measurement = _needed(proposal, measurement)
    if measurement.answered < settings.min_answered:
        return DroppedProposal(
            "unanswered",
            f"{measurement.answered} of {len(measurement.answers)} episodes gave an answer, "
            f"min_answered is {settings.min_answered}",
        )
    p = measurement.p_vote if settings.gate == "vote" else share(measurement.answers, label)
    low, high = settings.keep
    if p < low:
        return DroppedProposal("too_hard", f"p is {p:.3f}, kept is {low} to {high}")
    if p > high:
        return DroppedProposal("too_easy", f"p is {p:.3f}, kept is {low} to {high}")
    return KeptProposal(label, p)


def _needed(proposal: ProposedTask, measurement: Measurement | None) -> Measurement:
    if measurement is None or not measurement.answers:
        raise ValueError(f"proposal {proposal.proposal_id} was not measured: there is no p to judge it by")
    return measurement
