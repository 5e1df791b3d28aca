"""Values passed between the stages of a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ProposedTask:
    """A proposed task.

    `answer` is the proposer's own; `program` computes the answer in the task's world; `seed` is the id of the prompt.
    `refused` says why the proposal is no task (malformed, an attack), "" if it is one.
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
    """One episode of a frozen policy: the final answer (None if it gave none), the number of executed tool calls, the
    environment's grade, and the facts of its final state."""

    answer: str | None
    calls: int
    score: float
    success: bool
    facts: dict[str, Any] = field(default_factory=dict)
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of k episodes of the frozen executor on one task.

    - `answers`: final answer of each episode, None if it gave none; `calls`: executed tool calls of each episode.
    - `label`: the answer that counts as right, "" if there is none; `p`: share of the k episodes that gave it.
    - `vote`: the most frequent answer; `p_vote`: share of the k episodes that gave it.
    - `votes`: each distinct answer with its number of episodes, in order of first appearance.
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
class KeptProposal:
    label: str
    p: float


@dataclass(frozen=True, slots=True)
class DroppedProposal:
    """A proposal that becomes no task; `reason` is one word, `detail` a sentence."""

    reason: str
    detail: str = ""
