"""Values that pass between the stages of a round:
a proposal, what a frozen executor made of it, and whether it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ProposedTask:
    """A proposed task.

    `answer` is the proposer's own, `program` what makes the answer when it is run in the world that the task is for;
    `seed` is the id of what it was asked for. `refused` says why it is no task (malformed, an attack), "" for one that
    is: then it has a question.
    """

    proposal_id: str
    seed: str
    question: str = ""
    program: str | None = None
    answer: str | None = None
    refused: str = ""

    @classmethod
    def from_facts(cls, proposal_id: str, seed: str, facts: Mapping[str, Any]) -> ProposedTask:
        return cls(
            proposal_id,
            seed,
            str(facts.get("question") or ""),
            facts.get("program"),
            facts.get("answer"),
            str(facts.get("refused") or ""),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Play:
    """One episode of a frozen policy: the final answer (None if it gave none), the tool calls that were carried out,
    the state's facts at the end, and the environment's grade.

    An episode that did not really happen is no play: whoever asked gets an error instead.
    """

    answer: str | None
    calls: int
    score: float
    success: bool
    facts: dict[str, Any] = field(default_factory=dict)
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measurement of a task: what k episodes of the frozen executor made of it.

    `answers` has k entries, None where an episode ended without an answer; `calls` the tool calls carried out in each.
    `label` is the answer that counts as right ("" if there is none), `p` the share of all k episodes that gave it,
    `vote` the most frequent answer and `p_vote` its share; `votes` is the table of answers by class, in order of their
    first appearance.
    """

    answers: tuple[str | None, ...]
    calls: tuple[int, ...]
    label: str
    p: float
    vote: str
    p_vote: float
    votes: tuple[tuple[str, int], ...] = ()

    @property
    def answered(self) -> int:
        return sum(answer is not None for answer in self.answers)

    @property
    def mean_calls(self) -> float:
        return sum(self.calls) / len(self.calls) if self.calls else 0.0


@dataclass(frozen=True, slots=True)
class Kept:
    """A proposal that becomes a task: its label, and p."""

    label: str
    p: float


@dataclass(frozen=True, slots=True)
class Dropped:
    """A proposal that becomes none; `reason` is one word for the counts, `detail` a sentence."""

    reason: str
    detail: str = ""
