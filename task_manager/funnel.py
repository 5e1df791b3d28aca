"""How many of the explored, proposed and verified become tasks, where the others are lost, and what a kept task
costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from task_manager.journal import Records
from task_manager.plan import Plan

STAGES = ("explored", "proposed", "parsed", "verified", "executed", "passed", "deduplicated", "kept")


@dataclass(slots=True)
class Funnel:
    """Counts by stage, each at most the one before it from `proposed` on.

    - explored: trajectories; proposed: entries of the synthesiser's replies; parsed: those that could be read
    - verified: those that were worth it, since no kept or evaluation task resembled them when they were proposed
    - executed: whose solution was carried out, and the environment said of each action that it was
    - passed: that verifier and judge accept
    - deduplicated: that no other task resembles that was kept meanwhile; kept: tasks

    `unchecked` counts what was verified without that: the environment does not say what an action did, or execution is
    off. It may pass, on the judge's word alone, so `passed` is at most `executed` and `unchecked` together.
    `failed` counts explorations of this run of which something failed, `failures` them by kind (`failures.kind_of`).
    """

    explored: int = 0
    proposed: int = 0
    parsed: int = 0
    verified: int = 0
    executed: int = 0
    passed: int = 0
    deduplicated: int = 0
    kept: int = 0
    unchecked: int = 0
    failed: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    cost: float = 0.0

    def metrics(self) -> dict[str, float]:
        """Return the counts as `questioning/<name>`, rates between stages, tokens and cost per kept task."""
        out = {f"questioning/{stage}": float(getattr(self, stage)) for stage in STAGES}
        out["questioning/failed"] = float(self.failed)
        out |= {f"questioning/failed/{kind}": float(count) for kind, count in self.failures.items()}
        out["questioning/unchecked"] = float(self.unchecked)
        for after in STAGES[2:]:
            if before := self.before(after):
                out[f"questioning/rate/{after}"] = getattr(self, after) / before
        if self.kept:
            out["questioning/tokens_per_task"] = self.tokens / self.kept
            out["questioning/cost_per_task"] = self.cost / self.kept
        return out

    def before(self, stage: str) -> int:
        """Return how many could have come to a stage after `proposed`."""
        count = int(getattr(self, STAGES[STAGES.index(stage) - 1]))
        return count + self.unchecked if stage == "passed" else count

    def synthesised(self, synthesis: Mapping[str, Any]) -> None:
        """Count what came of a trajectory."""
        self.proposed += len(synthesis["proposals"]) + len(synthesis["rejected"])
        self.parsed += len(synthesis["proposals"])
        for reason in synthesis["rejected"]:
            self.dropped[f"parse: {_kind(reason)}"] += 1

    def judged(self, verdict: Mapping[str, Any]) -> None:
        """Count a verdict."""
        stage = verdict["dropped_by"]
        self.verified += 1
        # What was recorded before verdicts told it was counted as carried out.
        is_checked = verdict.get("executed", "checked") == "checked"
        self.executed += is_checked and stage != "execute"
        self.unchecked += not is_checked and stage != "execute"
        self.passed += stage is None
        if stage is not None:
            self.dropped[f"{stage}: {_kind(verdict['reason'])}"] += 1

    def decided(self, decision: Mapping[str, Any]) -> None:
        """Count a decision."""
        is_new = decision["task"] is not None
        self.deduplicated += is_new
        self.kept += is_new
        if not is_new:
            self.dropped[f"duplicate: {_kind(decision['reason'])}"] += 1


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that is recorded of one proposal; what did not happen (yet) is None."""

    seed: str
    number: int
    index: int
    proposal: Mapping[str, Any]
    verdict: Mapping[str, Any] | None
    decision: Mapping[str, Any] | None
    keys: Mapping[str, str]


def proposals(records: Records, plan: Plan) -> Iterator[Record]:
    """Return what is recorded of a plan's proposals, in the order of its jobs."""
    for seed, number in plan.jobs():
        exploration = plan.exploration(seed, number)
        key = plan.synthesis(exploration)
        synthesis = records.get("synthesis", {}).get(key)
        for index, proposal in enumerate(synthesis["proposals"] if synthesis else []):
            verdict_key = plan.verdict(key, index)
            decision_key = plan.decision(verdict_key)
            keys = {"exploration": exploration, "synthesis": key, "verdict": verdict_key, "decision": decision_key}
            verdict = records.get("verdict", {}).get(verdict_key)
            yield Record(seed, number, index, proposal, verdict, records.get("decision", {}).get(decision_key), keys)


def tally(records: Records, plan: Plan) -> Funnel:
    """Return the funnel of what is recorded of a plan."""
    funnel = Funnel()
    for seed, number in plan.jobs():
        key = plan.exploration(seed, number)
        funnel.explored += key in records.get("exploration", {})
        synthesis = records.get("synthesis", {}).get(plan.synthesis(key))
        if synthesis is not None:
            funnel.synthesised(synthesis)
    for record in proposals(records, plan):
        if record.verdict is not None:
            funnel.judged(record.verdict)
        if record.decision is not None:
            funnel.decided(record.decision)
    return funnel


def _kind(reason: str) -> str:
    """Return the part of a reason that others share: up to the first number, name or quotation."""
    head = reason.split(":")[0].split("(")[0].split("'")[0]
    kept = " ".join(word for word in head.split() if not any(c.isdigit() for c in word))
    return kept[:60].strip() or reason[:60]
