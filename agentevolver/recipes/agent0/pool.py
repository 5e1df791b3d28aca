"""The pool of a round: proposals that are drawn, those that are new, what becomes of each, and the tasks that are kept.

Two files hold it, one record a proposal: `drawn.jsonl` what was proposed, `pool.jsonl` what became of it. Draws are
named by round and number, and whether one is a duplicate follows from the numbers before it, so that a round that was
killed ends with the same records as one that was not.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from agentevolver.recipes.agent0.journal import RoundJournal
from agentevolver.recipes.agent0.types import Dropped, Kept, Measurement, ProposedTask
from agentevolver.types import Task

DRAWN, POOL = "drawn.jsonl", "pool.jsonl"
DUPLICATE, ENOUGH = "duplicate", "enough"
T = TypeVar("T")

# Of a task's metadata: the share of the frozen executor's episodes that gave its label (read by the recipe `adpo`).
P_HAT = "adpo_p_hat"


@dataclass(frozen=True, slots=True)
class Draw:
    """A proposal that is asked for: its number in the round (from 0), its id, and the seed."""

    number: int
    proposal_id: str
    seed: str


@dataclass(frozen=True, slots=True)
class Judged:
    """Fate of a proposal: kept or dropped, what it was measured to be, and what its program gave (None where it
    was not measured or run)."""

    verdict: Kept | Dropped
    measurement: Measurement | None = None
    executed: str | Dropped | None = None


class Labeller(Protocol):
    async def label(self, proposal: ProposedTask, name: str) -> Judged:
        """Run the program of a proposal that is new and was not refused, measure it and put it through the gate."""
        ...


def draws_of(number: int, seeds: Sequence[str]) -> list[Draw]:
    return [Draw(i, f"r{number}.{i:04d}", seed) for i, seed in enumerate(seeds)]


def canonical(question: str) -> str:
    """Return a question as it is compared: without differences in spaces and capitals."""
    return " ".join(question.split()).casefold()


class TaskPool:
    """The pool of one round, which wants `size` tasks.

    `known` are canonical questions of the evaluation and of earlier rounds' tasks, with what they are of.
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
        """Return all that were drawn, by their numbers."""
        return [proposal_of(record) for record in sorted(self.drawn, key=lambda record: record["number"])]

    def repeats(self) -> dict[str, str]:
        """Map the id of each duplicate proposal to the id of the task that it repeats."""
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

    def put_labelled(self, proposal: ProposedTask, judged: Judged, k: int, executor: str) -> None:
        drawn = self.drawn[proposal.proposal_id]
        self.labelled.add(record_of(drawn, judged, self.number, k, executor))

    def kept(self) -> list[dict[str, Any]]:
        """Return the records of the tasks, by their numbers."""
        return [record for record in self._in_order() if record["kept"]]

    def is_full(self) -> bool:
        return len(self.kept()) >= self._size

    def close(self) -> None:
        """Put the records in order; tasks beyond those that are wanted are dropped."""
        records, kept = [], 0
        for record in self._in_order():
            kept += record["kept"]
            beyond = {"kept": False, "drop_reason": ENOUGH} if record["kept"] and kept > self._size else {}
            records.append({**record, **beyond})
        self.labelled.replace(records)

    def dropped(self) -> dict[str, int]:
        """Return how many proposals were not kept, by reason, the most frequent first."""
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


def record_of(drawn: Mapping[str, Any], judged: Judged, number: int, k: int, executor: str) -> dict[str, Any]:
    """Return the record of a proposal in `pool.jsonl`.

    `right` says whether the label is what the program gave, `vote_right` the same of the vote; null where one of the
    two is not known.
    """
    verdict, measured = judged.verdict, judged.measurement
    executed = judged.executed if isinstance(judged.executed, str) else None
    kept = isinstance(verdict, Kept)
    return {
        "task_id": drawn["task_id"],
        "number": drawn["number"],
        "round": number,
        "seed": drawn["seed"],
        "question": drawn["question"],
        "program": drawn["program"],
        "proposer_answer": drawn["answer"],
        "executed": executed,
        "label": verdict.label if isinstance(verdict, Kept) else None,
        "p_hat": verdict.p if isinstance(verdict, Kept) else (None if measured is None else measured.p),
        "vote": None if measured is None else measured.vote,
        "p_vote": None if measured is None else measured.p_vote,
        "k": k if measured is not None else 0,
        "n_answered": 0 if measured is None else measured.answered,
        "votes": [] if measured is None else [list(pair) for pair in measured.votes],
        "mean_tool_calls": None if measured is None else measured.mean_calls,
        "right": _is(verdict.label if isinstance(verdict, Kept) else None, executed),
        "vote_right": _is(None if measured is None else measured.vote, executed),
        "proposer_ckpt": drawn["proposer_ckpt"],
        "executor_ckpt": executor,
        "kept": kept,
        "drop_reason": "" if isinstance(verdict, Kept) else verdict.reason,
        "drop_detail": "" if isinstance(verdict, Kept) else verdict.detail,
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
    """Return the fresh tasks and behind them so many of earlier rounds that these are `share` (0 to below 1) of all, or
    all there are, so that an executor does not forget what it could do. Equal arguments draw equal ones."""
    if not 0 <= share < 1:
        raise ValueError(f"replay = {share!r}, expected a share from 0 on and below 1")
    wanted = min(round(share / (1 - share) * len(fresh)), len(earlier))
    return [*fresh, *random.Random(seed).sample(list(earlier), wanted)]


def _is(answer: str | None, executed: str | None) -> bool | None:
    from agentevolver.recipes.agent0.votes import same

    return None if answer is None or executed is None else same(answer, executed)
