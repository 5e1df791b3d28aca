"""Data of the rounds' page: `coevolve.json`, the pool of each round, and the proposer's rewards.

A pool file is read once, by offset. Only numbers are kept in memory; texts stay in the file until a page asks for them,
and are shortened. Torn, missing or malformed records are left out: a policy wrote them, and the files may be read while
they are written.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentevolver.utils.files import GrowingFile, read_at
from agentevolver.view.experiment import NotThere
from agentevolver.view.metrics import RunMetrics

MANIFEST = "coevolve.json"
STAGES = ("propose", "pool", "label", "solve", "evaluate")
PAGE = 50
# Greatest lengths of texts, of words and answers, and of lists of reasons and votes.
TEXT, WORD, LISTED = 2000, 200, 16
# The proposer's reward; the rollout's reward, without repetition, if that is missing.
REWARDS = ("reward/score/mean", "rollout/reward/mean")
_FOLDER = re.compile(r"round_(\d{1,6})")


@dataclass(frozen=True, slots=True)
class RoundFacts:
    offset: int
    kept: bool
    reason: str
    measured: bool
    p: float | None
    right: bool | None
    vote_right: bool | None
    calls: float | None

    @classmethod
    def of(cls, offset: int, record: dict[str, Any]) -> RoundFacts:
        return cls(
            offset,
            record.get("kept") is True,
            _cut(record.get("drop_reason"), WORD),
            bool(_number(record.get("k"))),
            _number(record.get("p_hat")),
            _truth(record.get("right")),
            _truth(record.get("vote_right")),
            _number(record.get("mean_tool_calls")),
        )


class PoolFile:
    def __init__(self, path: Path) -> None:
        self._file = GrowingFile(path)
        self._facts: dict[int, RoundFacts] = {}
        self._generation = 0
        self._summary: dict[str, Any] | None = None

    def summary(self) -> dict[str, Any]:
        """Return counts, shares and means over the pool; {} if it has no record."""
        self._refresh()
        if self._summary is None:
            self._summary = _summary(list(self._facts.values()))
        return self._summary

    def records(self, fate: str, reason: str, offset: int, limit: int) -> dict[str, Any]:
        """Return `{rows, total}`: a page of the records with a fate and a reason, by number, with shortened texts."""
        self._refresh()
        wanted = [
            number
            for number, facts in sorted(self._facts.items())
            if (not fate or facts.kept == (fate == "kept")) and (not reason or facts.reason == reason)
        ]
        rows = []
        for number in wanted[offset : offset + limit]:
            record = self._record(self._facts[number].offset)
            # The file may have been rewritten since; the next refresh shows the new record.
            if record is not None and record.get("number") == number:
                rows.append(_row(record))
        return {"rows": rows, "total": len(wanted)}

    def _record(self, offset: int) -> dict[str, Any] | None:
        try:
            return read_at(self._file.path, offset)
        except OSError:
            return None

    def _refresh(self) -> None:
        try:
            for line in self._file.read():
                self._forget_if_replaced()
                number = line.value.get("number")
                if isinstance(number, int) and not isinstance(number, bool):
                    self._facts[number] = RoundFacts.of(line.offset, line.value)
                    self._summary = None
        except OSError:
            return
        self._forget_if_replaced()

    def _forget_if_replaced(self) -> None:
        if self._file.generation != self._generation:
            self._generation, self._facts, self._summary = self._file.generation, {}, None


class Rounds:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._pools: dict[int, PoolFile] = {}
        self._rewards: dict[int, RunMetrics] = {}

    def overview(self) -> dict[str, Any]:
        """Return `{exists, problem, state, best, rounds}`; `problem` says why the manifest could not be read."""
        path = self.folder / MANIFEST
        if not path.is_file():
            return {"exists": False}
        problem, manifest = "", {}
        try:
            manifest = _object(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError) as error:
            problem = f"{MANIFEST} cannot be read ({error}); what the folders of the rounds hold is shown"
        listed = manifest.get("rounds")
        parts = {}
        for part in map(_object, listed if isinstance(listed, list) else []):
            if isinstance(number := part.get("round"), int) and 0 <= number < 10**6:
                parts[number] = part
        best = _object(manifest.get("best"))
        with self._lock:
            rounds = [self._round(number, parts.get(number, {})) for number in sorted({*parts, *self._folders()})]
        return {
            "exists": True,
            "problem": problem,
            "state": _cut(manifest.get("state"), WORD),
            "best": {
                "round": _number(best.get("round")),
                "success": _number(best.get("success")),
                "checkpoint": _cut(best.get("checkpoint"), TEXT),
            }
            if best
            else None,
            "rounds": rounds,
        }

    def records(
        self, number: int, *, fate: str = "", reason: str = "", offset: int = 0, limit: int = PAGE
    ) -> dict[str, Any]:
        with self._lock:
            if number not in self._folders():
                raise NotThere(f"there is no round {number}")
            return self._pool(number).records(fate, reason, offset, limit)

    def _folders(self) -> list[int]:
        return sorted(
            int(match[1]) for path in self.folder.glob("round_*") if (match := _FOLDER.fullmatch(path.name)) is not None
        )

    def _pool(self, number: int) -> PoolFile:
        return self._pools.setdefault(number, PoolFile(self.folder / f"round_{number}" / "pool.jsonl"))

    def _round(self, number: int, part: dict[str, Any]) -> dict[str, Any]:
        stages = _object(part.get("stages"))
        return {
            "round": number,
            "proposer": _cut(part.get("proposer"), TEXT),
            "executor": _cut(part.get("executor"), TEXT),
            "stages": [_stage(name, _object(stages[name])) for name in STAGES if name in stages],
            "success": _success(_object(_object(stages.get("evaluate")).get("metrics"))),
            "pool": self._pool(number).summary(),
            "rewards": self._reward(number),
        }

    def _reward(self, number: int) -> list[list[float]]:
        path = self.folder / f"round_{number}" / "proposer" / "metrics.jsonl"
        metrics = self._rewards.setdefault(number, RunMetrics(path))
        try:
            found = metrics.read(REWARDS)
        except OSError:
            return []
        values: list[float | None] = next((found["series"][name] for name in REWARDS if name in found["series"]), [])
        return [
            [step, value] for step, value in zip(found["steps"], values, strict=False) if value is not None and step > 0
        ]


def _summary(facts: Sequence[RoundFacts]) -> dict[str, Any]:
    if not facts:
        return {}
    kept, measured = [one for one in facts if one.kept], [one for one in facts if one.measured]
    return {
        "labelled": len(facts),
        "kept": len(kept),
        "measured": len(measured),
        "dropped": Counter(one.reason for one in facts if not one.kept).most_common(LISTED),
        "right": _mean(one.right for one in kept),
        "right_known": sum(one.right is not None for one in kept),
        "vote_right": _mean(one.vote_right for one in measured),
        "vote_known": sum(one.vote_right is not None for one in measured),
        "p": _mean(one.p for one in kept),
        "p_measured": _mean(one.p for one in measured),
        "calls": _mean(one.calls for one in kept),
        "calls_measured": _mean(one.calls for one in measured),
    }


def _stage(name: str, stage: dict[str, Any]) -> dict[str, Any]:
    counts = _object(stage.get("counts"))
    return {
        "name": name,
        "state": _cut(stage.get("state"), WORD),
        "seconds": _number(stage.get("seconds")),
        "reason": _cut(stage.get("reason"), TEXT),
        "checkpoint": _cut(stage.get("checkpoint"), TEXT),
        "counts": {_cut(key, WORD): n for key, value in counts.items() if (n := _number(value)) is not None},
    }


def _success(metrics: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    found = {}
    for split, values in sorted(metrics.items()):
        success = _object(_object(values).get("success"))
        if (mean := _number(success.get("mean"))) is not None:
            calls = _number(_object(values).get("calls"))
            found[_cut(split, WORD)] = {"mean": mean, "se": _number(success.get("se")) or 0.0, "calls": calls}
    return found


def _row(record: dict[str, Any]) -> dict[str, Any]:
    texts = {"question": TEXT, "program": TEXT, "drop_detail": TEXT}
    words = ("task_id", "seed", "proposer_answer", "executed", "label", "vote", "drop_reason")
    numbers = ("number", "p_hat", "p_vote", "k", "n_answered", "mean_tool_calls")
    votes = record.get("votes")
    pairs = [pair for pair in (votes if isinstance(votes, list) else []) if isinstance(pair, list) and len(pair) == 2]
    return {
        **{name: _cut(record.get(name), size) for name, size in texts.items()},
        **{name: None if record.get(name) is None else _cut(record[name], WORD) for name in words},
        **{name: _number(record.get(name)) for name in numbers},
        "cut": any(len(str(record.get(name) or "")) > size for name, size in texts.items()),
        "votes": [[_cut(answer, WORD), _number(count)] for answer, count in pairs[:LISTED]],
        "votes_left_out": max(0, len(pairs) - LISTED),
        "kept": record.get("kept") is True,
        "right": _truth(record.get("right")),
        "vote_right": _truth(record.get("vote_right")),
    }


def _mean(values: Iterable[float | bool | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) >= 2**53:
        return None
    return value if math.isfinite(value) else None


def _truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _cut(value: Any, size: int) -> str:
    text = "" if value is None else str(value)[:size] + ("…" if len(str(value)) > size else "")
    return text.encode("utf-8", "replace").decode("utf-8")
