"""Reports of a round, computed from the manifest: metrics, the line for the user, success, and the best round."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentevolver.recipes.agent0.manifest import EVALUATE, LABEL, POOL, PROPOSE, SKIPPED, SOLVE

Round = Mapping[str, Any]
# Most frequent drop reasons that the line names.
NAMED = 4


def success_of(part: Round, split: str) -> float | None:
    stage = part["stages"].get(EVALUATE, {})
    found = stage.get("metrics", {}).get(split)
    return None if found is None else float(found["success"]["mean"])


def best_of(rounds: Sequence[Round], split: str) -> int | None:
    """Return the round with the highest success on a split, the earliest of equal ones; None if none was evaluated."""
    found = [(success, -int(part["round"])) for part in rounds if (success := success_of(part, split)) is not None]
    return -max(found)[1] if found else None


def metrics_of(rounds: Sequence[Round], number: int) -> dict[str, Any]:
    part = rounds[number]
    return {"step": number, "time": round(time.time(), 3), **dict(sorted(_metrics(part["stages"])))}


def _metrics(stages: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, stage in stages.items():
        if "seconds" in stage:
            yield f"coevolve/seconds/{name}", float(stage["seconds"])
    pool = stages.get(LABEL, {})
    for name, value in pool.get("metrics", {}).items():
        yield f"coevolve/pool/{name}", float(value)
    for name, value in pool.get("counts", {}).items():
        if name == "dropped":
            yield from ((f"coevolve/dropped/{reason}", float(count)) for reason, count in value.items())
        else:
            yield f"coevolve/pool/{name}", float(value)
    for stage, of in ((PROPOSE, "proposer"), (SOLVE, "solver")):
        for name, value in stages.get(stage, {}).get("metrics", {}).items():
            yield f"coevolve/{of}/{name}", float(value)
    for split, found in stages.get(EVALUATE, {}).get("metrics", {}).items():
        yield f"coevolve/val/{split}/success", float(found["success"]["mean"])
        yield f"coevolve/val/{split}/se", float(found["success"]["se"])
        yield f"coevolve/val/{split}/calls", float(found["calls"])
        for level, share in found["levels"].items():
            yield f"coevolve/val/{split}/level_{level}", float(share["mean"])


def line_of(rounds: Sequence[Round], number: int, split: str) -> str:
    stages = rounds[number]["stages"]
    parts = [f"round {number}" if number else "base   "]
    if label := stages.get(LABEL):
        parts += _pool(label)
    if stages.get(SOLVE, {}).get("state") == SKIPPED:
        parts.append(f"not trained: {stages[SOLVE]['reason']}")
    success = success_of(rounds[number], split)
    if success is not None:
        before = success_of(rounds[number - 1], split) if number else None
        change = "" if before is None else f" ({'+' if success >= before else '-'}{short(abs(success - before))})"
        parts.append(f"executor {split} {short(success)}{change}")
    spent = [(name, stages[name]["seconds"]) for name in (PROPOSE, POOL, LABEL, SOLVE, EVALUATE) if _took(stages, name)]
    if spent:
        each = ", ".join(f"{name} {seconds:.0f}" for name, seconds in spent)
        parts.append(f"{sum(seconds for _, seconds in spent):.0f} s ({each})")
    return "  ".join(parts)


def _pool(label: Mapping[str, Any]) -> list[str]:
    counts, metrics = label.get("counts", {}), label.get("metrics", {})
    dropped = list(counts.get("dropped", {}).items())
    reasons = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in dropped[:NAMED])
    more = f", {sum(count for _, count in dropped[NAMED:])} others" if len(dropped) > NAMED else ""
    parts = [
        f"pool {counts.get('kept', 0)} of {counts.get('drawn', 0)} kept" + (f" ({reasons}{more})" if reasons else "")
    ]
    if "label_right" in metrics:
        parts.append(f"labels {short(metrics['label_right'])} right")
    if "p" in metrics:
        parts.append(f"p {short(metrics['p'])}")
    return parts


def _took(stages: Mapping[str, Any], name: str) -> bool:
    return bool(stages.get(name, {}).get("seconds"))


def short(value: float) -> str:
    text = f"{value:.2f}"
    return text[1:] if text.startswith("0.") else text
