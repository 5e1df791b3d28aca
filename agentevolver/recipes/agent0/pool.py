"""The pool of a round: drawn proposals, their fates, and the tasks that are kept.

Two files hold one record a proposal: `drawn.jsonl` the proposal, `pool.jsonl` its fate. A draw's id is its round and
number, and a duplicate is one of a lower number, so a round that was killed and resumed ends with the same records.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from agentevolver.recipes.agent0.journal import RoundJournal
from agentevolver.recipes.agent0.types import DroppedProposal, KeptProposal, Measurement, ProposedTask
from agentevolver.types import Task

DRAWN, POOL = "drawn.jsonl", "pool.jsonl"
DUPLICATE, ENOUGH = "duplicate", "enough"
T = TypeVar("T")

# Metadata key: the share of the frozen executor's episodes that gave the label; the recipe `adpo` reads it.
P_HAT = "adpo_p_hat"


@dataclass(frozen=True, slots=True)
class Draw:
    number: int
    proposal_id: str
    seed: str


@dataclass(frozen=True, slots=True)
class JudgedProposal:
    """Fate of a proposal: the verdict, its measurement (None if not measured), and its program's answer (None if not
    run)."""

    verdict: KeptProposal | DroppedProposal
    measurement: Measurement | None = None
    executed: str | DroppedProposal | None = None


class Labeller(Protocol):
    async def label(self, proposal: ProposedTask, name: str) -> JudgedProposal: ...


def draws_of(number: int, seeds: Sequence[str]) -> list[Draw]:
    return [Draw(i, f"r{number}.{i:04d}", seed) for i, seed in enumerate(seeds)]


def canonical(question: str) -> str:
    """Return a question with whitespace and case normalised, for comparison."""
    return " ".join(question.split()).casefold()


class TaskPool:
    """The pool of one round, which collects `size` tasks.

    `known` maps canonical questions of the evaluation and of earlier rounds' tasks to where they come from.
    """

    def __init__(self, folder: Path, number: int, size: int, known: Mapping[str, str]) -> None:
        self.number = number
        self.drawn = RoundJournal(folder / DRAWN, "task_id")
        self.labelled = RoundJournal(folder / POOL, "task_id")
        self._size = size
        self._known = known

    def undrawn(self, draws: Sequence[Draw]) -> list[Draw]:
        return [draw for draw in draws if draw.proposal_id not in self.drawn]

    def put_drawn(self, draw: Draw, proposal: ProposedTask, checkpoint: str) -> None:
        record = proposal.to_dict()
        del record["proposal_id"]
        self.drawn.add({"task_id": draw.proposal_id, "number": draw.number, **record, "proposer_ckpt": checkpoint})

    def proposals(self) -> list[ProposedTask]:
        return [proposal_of(record) for record in sorted(self.drawn, key=lambda record: record["number"])]

    def repeats(self) -> dict[str, str]:
        """Map the id of each duplicate proposal to the id of the original."""
        seen: dict[str, str] = dict(self._known)
        found: dict[str, str] = {}
        for proposal in self.proposals():
            if proposal.refused:
                continue
            text = canonical(proposal.question)
            if text in seen:
                found[proposal.proposal_id] = seen[text]
            else:
                seen[text] = proposal.proposal_id
        return found

    def unlabelled(self) -> list[ProposedTask]:
        return [proposal for proposal in self.proposals() if proposal.proposal_id not in self.labelled]

    def put_labelled(self, proposal: ProposedTask, judged: JudgedProposal, k: int, executor: str) -> None:
        drawn = self.drawn[proposal.proposal_id]
        self.labelled.add(record_of(drawn, judged, self.number, k, executor))

    def kept(self) -> list[dict[str, Any]]:
        return [record for record in self._in_order() if record["kept"]]

    def is_full(self) -> bool:
        return len(self.kept()) >= self._size

    def close(self) -> None:
        """Sort the records, and drop tasks beyond `size`."""
        records, kept = [], 0
        for record in self._in_order():
            kept += record["kept"]
            beyond = {"kept": False, "drop_reason": ENOUGH} if record["kept"] and kept > self._size else {}
            records.append({**record, **beyond})
        self.labelled.replace(records)

    def dropped(self) -> dict[str, int]:
        reasons = Counter(record["drop_reason"] for record in self._in_order() if not record["kept"])
        return dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))

    def _in_order(self) -> list[dict[str, Any]]:
        return sorted(self.labelled, key=lambda record: record["number"])


def proposal_of(record: Mapping[str, Any]) -> ProposedTask:
    return ProposedTask(
        proposal_id=record["task_id"],
        seed=record["seed"],
        question=record["question"],
        program=record["program"],
        answer=record["answer"],
        refused=record["refused"],
    )


def record_of(drawn: Mapping[str, Any], judged: JudgedProposal, number: int, k: int, executor: str) -> dict[str, Any]:
    """Return the record of a proposal in `pool.jsonl`.

    `right` says whether the label equals the program's answer, `vote_right` the same of the vote; null if one of the
    two is missing.
    """
    verdict, measured = judged.verdict, judged.measurement
    executed = judged.executed if isinstance(judged.executed, str) else None
    kept = isinstance(verdict, KeptProposal)
    return {
        "task_id": drawn["task_id"],
        "number": drawn["number"],
        "round": number,
        "seed": drawn["seed"],
        "question": drawn["question"],
        "program": drawn["program"],
        "proposer_answer": drawn["answer"],
        "executed": executed,
        "label": verdict.label if isinstance(verdict, KeptProposal) else None,
        "p_hat": verdict.p if isinstance(verdict, KeptProposal) else (None if measured is None else measured.p),
        "vote": None if measured is None else measured.vote,
        "p_vote": None if measured is None else measured.p_vote,
        "k": k if measured is not None else 0,
        "n_answered": 0 if measured is None else measured.answered,
        "votes": [] if measured is None else [list(pair) for pair in measured.votes],
        "mean_tool_calls": None if measured is None else measured.mean_calls,
        "right": _is(verdict.label if isinstance(verdict, KeptProposal) else None, executed),
        "vote_right": _is(None if measured is None else measured.vote, executed),
        "proposer_ckpt": drawn["proposer_ckpt"],
        "executor_ckpt": executor,
        "kept": kept,
        "drop_reason": "" if isinstance(verdict, KeptProposal) else verdict.reason,
        "drop_detail": "" if isinstance(verdict, KeptProposal) else verdict.detail,
    }


def tasks_of(records: Iterable[Mapping[str, Any]], world: str) -> list[Task]:
    return [
        Task(
            task_id=record["task_id"],
            env_type=world,
            metadata={
                "split": "proposed",
                "env_params": {"problem": {"question": record["question"], "answer": record["label"]}},
                P_HAT: record["p_hat"],
            },
        )
        for record in records
    ]


def replayed(fresh: Sequence[T], earlier: Sequence[T], share: float, seed: int) -> list[T]:
    """Return the fresh tasks followed by a sample of earlier ones, which make up `share` (0 to below 1) of the result,
    or all earlier ones if there are fewer. Replay keeps the executor from forgetting."""
    if not 0 <= share < 1:
        raise ValueError(f"replay = {share!r}, expected a share from 0 on and below 1")
    wanted = min(round(share / (1 - share) * len(fresh)), len(earlier))
    return [*fresh, *random.Random(seed).sample(list(earlier), wanted)]


def _is(answer: str | None, executed: str | None) -> bool | None:
    from agentevolver.recipes.agent0.votes import same

    return None if answer is None or executed is None else same(answer, executed)
