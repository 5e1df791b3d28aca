"""Gates: which proposals become tasks, and by whose label.

`executed`: the value that the proposal's program gave; votes have no say in it. `agree`: a value that two of the vote,
the proposer's own answer and the program give. `judge`: the answer of a judge. `vote`: the most frequent answer of the
executor, right or not. Whatever the label, the task is kept only where the executor sometimes reaches it: p within
`keep`, both ends included.
"""

from __future__ import annotations

from agentevolver.recipes.agent0.settings import Agent0Settings
from agentevolver.recipes.agent0.types import Dropped, Kept, Measurement, Proposal
from agentevolver.recipes.agent0.votes import canonical, same, share


def gate(
    settings: Agent0Settings,
    proposal: Proposal,
    measurement: Measurement | None,
    executed: str | Dropped | None = None,
    judged: str | Dropped | None = None,
) -> Kept | Dropped:
    """Return the task's label and the share p of all episodes that gave it, or why the proposal becomes no task.

    Args:
        settings: `gate`, `keep` and `min_answered`.
        proposal: what was proposed.
        measurement: what the frozen executor made of it; None only for what is dropped without.
        executed: what its program gave, or why it gave nothing; None where it was not run.
        judged: the judge's answer, or why there is none; None where nobody was asked.

    Raises:
        ValueError: what the gate needs is missing: it was not measured, not executed, not judged.
    """
    if proposal.refused:
        word, _, sentence = proposal.refused.partition(":")
        return Dropped(word.strip(), sentence.strip())
    if settings.gate in ("executed", "judge"):
        given = executed if settings.gate == "executed" else judged
        if given is None:
            raise ValueError(
                f"proposal {proposal.proposal_id}: the gate {settings.gate!r} needs a label, none was made"
            )
        if isinstance(given, Dropped):
            return given
        label = given
    else:
        label = _voted(settings, proposal, _needed(proposal, measurement), executed)
        if settings.gate == "agree" and not label:
            return Dropped("disagree", "no two of vote, proposer's answer and program are equal")
    if canonical(label) is None:
        return Dropped("no_label", "the label is empty, or longer than any answer that is graded")
    measurement = _needed(proposal, measurement)
    if measurement.answered < settings.min_answered:
        return Dropped(
            "unanswered",
            f"{measurement.answered} of {len(measurement.answers)} episodes gave an answer, "
            f"min_answered is {settings.min_answered}",
        )
    p = measurement.p_vote if settings.gate == "vote" else share(measurement.answers, label)
    low, high = settings.keep
    if p < low:
        return Dropped("too_hard", f"p is {p:.3f}, kept is {low} to {high}")
    if p > high:
        return Dropped("too_easy", f"p is {p:.3f}, kept is {low} to {high}")
    return Kept(label, p)


def _needed(proposal: Proposal, measurement: Measurement | None) -> Measurement:
    if measurement is None or not measurement.answers:
        raise ValueError(f"proposal {proposal.proposal_id} was not measured: there is no p to judge it by")
    return measurement


def _voted(
    settings: Agent0Settings,
    proposal: Proposal,
    measurement: Measurement,
    executed: str | Dropped | None,
) -> str:
    """Return the label of `vote` or `agree`, "" if there is none; the program's wording before the proposer's."""
    if settings.gate == "vote":
        return measurement.vote
    program = executed if isinstance(executed, str) else None
    if same(program, proposal.answer) or same(program, measurement.vote):
        return program or ""
    return measurement.vote if same(proposal.answer, measurement.vote) else ""
