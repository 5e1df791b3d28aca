"""Trajectories of a run: a summary of each rollout by step, and a single trajectory in full.

A step's file is read once and kept as summaries with byte offsets. Step credit is written into it later; then the file
is read again. A search over all steps stops after `SEARCH_BYTES` and returns where to continue.
"""

from __future__ import annotations

import re
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from advantage_processor.explain import explain_credit
from agentevolver.trainer.monitor.measured import has_acted
from agentevolver.types import StepCredit
from agentevolver.utils.files import COMPRESSED, open_lines, parse, read_at, signature, written
from agentevolver.view.experiment import BadPageRequest, NotThere
from task_manager.tasks import family_of

_FILE = re.compile(rf"step_(\d{{1,12}})\.jsonl(?:{re.escape(COMPRESSED)})?")
# After a change, AHEAD steps after the newest one are probed; the whole folder is listed every LIST_EVERY_S.
AHEAD = 64
LIST_EVERY_S = 60.0


class StepFiles:
    """Files `step_<n>.jsonl` of a folder, compressed or not.

    A new step is found at once. A step far after the newest one, or a removed one, is noticed within a minute.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._steps: list[int] = []
        self._mark = -1
        self._listed_at = float("-inf")
        self._is_complete = False

    def steps(self) -> Sequence[int]:
        with self._lock:
            try:
                mark = self.folder.stat().st_mtime_ns
            except (FileNotFoundError, NotADirectoryError):
                return []
            due = time.monotonic() - self._listed_at > LIST_EVERY_S
            if mark != self._mark or (due and not self._is_complete):
                if due or not self._steps:
                    self._list()
                else:
                    self._look_ahead()
                self._mark = mark
            return self._steps

    def path(self, step: int) -> Path | None:
        return written(self.folder / f"step_{step}.jsonl")

    def _list(self) -> None:
        found = (_FILE.fullmatch(path.name) for path in self.folder.iterdir())
        self._steps = sorted({int(match[1]) for match in found if match})
        self._listed_at, self._is_complete = time.monotonic(), True

    def _look_ahead(self) -> None:
        # A new list, because another thread may still iterate over the old one.
        new: list[int] = []
        step, self._is_complete = self._steps[-1], False
        while step < (new or self._steps)[-1] + AHEAD:
            step += 1
            if self.path(step) is not None:
                new.append(step)
        self._steps = [*self._steps, *new]


FOLDERS = {"training": "trajectories", "validation": "validation"}
QUERY_CHARS = 240
LABELS_SHOWN = 200
PAGE = 100
# Bytes read at most for one answer; steps read before do not count.
SEARCH_BYTES = 48 * 1024 * 1024
# Estimated compression ratio.
UNPACKED = 12
# Summaries kept in memory, about 1 KB each.
KEPT_SUMMARIES = 60_000

Summary = dict[str, Any]
Mark = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter of rollouts. None or "" matches all.

    - `outcome`: success, failure, or failed (the rollout crashed and has no grade).
    - `origin`: original or synthetic; `guidance`: guided or unguided; `task`: the full id.
    - `text`: part of the task's id or query, ignoring case.
    """

    step: int | None = None
    outcome: str = ""
    origin: str = ""
    guidance: str = ""
    text: str = ""
    environment: str = ""
    task: str = ""

    def takes(self, summary: Summary) -> bool:
        if self.outcome and _outcome(summary) != self.outcome:
            return False
        if self.origin and summary["synthetic"] != (self.origin == "synthetic"):
            return False
        if self.guidance and summary["guided"] != (self.guidance == "guided"):
            return False
        if self.environment and summary["environment"] != self.environment:
            return False
        if self.task and summary["task_id"] != self.task:
            return False
        return not self.text or self.text.casefold() in f"{summary['task_id']}\n{summary['query']}".casefold()


@dataclass(frozen=True, slots=True)
class _Index:
    mark: Mark
    offsets: list[int]
    summaries: list[Summary]
    broken: int


class Trajectories:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._indexes: OrderedDict[int, _Index] = OrderedDict()
        self._files = StepFiles(folder)

    def steps(self) -> Sequence[int]:
        """Return the steps with rollouts, ascending."""
        return self._files.steps()

    def step(self, step: int) -> list[Summary]:
        """Return the summaries of a step. Raises NotThere."""
        return self._index(step).summaries

    def find(self, wanted: Filter, *, before: tuple[int, int] | None = None, limit: int = PAGE) -> dict[str, Any]:
        """Return `{rows, next, searched}`, newest step first. `searched` is the last step read.

        Args:
            before: `next` of the last answer, (step, index); `next` is None at the end.
        """
        rows: list[Summary] = []
        budget = SEARCH_BYTES
        searched: int | None = None
        known = self.steps() if wanted.step is None else (wanted.step,)
        for i in range(len(known) if before is None else bisect_right(known, before[0]), 0, -1):
            step = known[i - 1]
            unread = self._unread(step)
            if searched is not None and unread > budget:
                return {"rows": rows, "next": [step, 0], "searched": searched}
            budget -= unread
            searched = step
            first = before[1] if before is not None and before[0] == step else 0
            try:
                summaries = self._index(step).summaries
            except NotThere:
                continue
            for summary in summaries[first:]:
                if wanted.takes(summary):
                    if len(rows) == limit:
                        return {"rows": rows, "next": [step, summary["index"]], "searched": step}
                    rows.append(summary)
        return {"rows": rows, "next": None, "searched": searched}

    def one(self, step: int, index: int) -> dict[str, Any]:
        """Return `{record, summary, siblings, count}` of a rollout; siblings are its group. Raises NotThere."""
        found = self._index(step)
        if not 0 <= index < len(found.summaries):
            raise NotThere(f"step {step} has {len(found.summaries)} rollouts, but no rollout number {index}")
        path, summary = self._files.path(step), found.summaries[index]
        try:
            record = None if path is None else read_at(path, found.offsets[index])
        except FileNotFoundError:
            record = None
        # The file may have been rewritten since it was indexed, with other offsets.
        if record is None or record.get("trajectory_id") != summary["id"]:
            raise NotThere(f"the rollouts of step {step} were rewritten just now: try again")
        siblings = [other for other in found.summaries if other["group"] == summary["group"]]
        return {"record": record, "summary": summary, "siblings": siblings, "count": len(found.summaries)}

    def _unread(self, step: int) -> int:
        """Return the bytes left to read of a step's file, estimated if it is compressed."""
        path, known = self._files.path(step), self._indexes.get(step)
        mark = None if path is None else signature(path)
        if path is None or mark is None or (known is not None and known.mark == mark):
            return 0
        return mark[1] * (UNPACKED if path.suffix == COMPRESSED else 1)

    def _index(self, step: int) -> _Index:
        """Return a step's index. Raises NotThere."""
        with self._lock:
            # Twice, because the compressor may replace the file between the lookup of its name and its opening.
            for _ in range(2):
                path = self._files.path(step)
                mark = None if path is None else signature(path)
                if path is None or mark is None:
                    continue
                known = self._indexes.get(step)
                if known is None or known.mark != mark:
                    try:
                        known = self._indexes[step] = _read(path, step, mark)
                    except FileNotFoundError:
                        continue
                self._indexes.move_to_end(step)
                while (
                    len(self._indexes) > 1
                    and sum(len(index.summaries) for index in self._indexes.values()) > KEPT_SUMMARIES
                ):
                    self._indexes.popitem(last=False)
                return known
            raise NotThere(f"there are no rollouts of step {step}")


def explained_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of each step's advantage (`explain_credit`), or an empty list without readable credit."""
    try:
        return [asdict(one) for one in explain_credit(StepCredit.from_dict(record["credit"]))]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def cursor(text: str) -> tuple[int, int] | None:
    """Parse "STEP:INDEX". Raises BadPageRequest."""
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,12}):(\d{1,12})", text)
    if match is None:
        raise BadPageRequest(f"{text!r} is no cursor: write STEP:INDEX")
    return int(match[1]), int(match[2])


def summary_of(record: Mapping[str, Any], step: int, index: int) -> Summary:
    """Return a rollout's entry in the list. Raises KeyError, TypeError or ValueError if the record is malformed."""
    task, outcome = record["task"], record["outcome"]
    metadata = task.get("metadata") or {}
    attribution = record.get("attribution") or {}
    credit = record.get("credit") or {}
    guidance = record.get("guidance") or {}
    return {
        "step": step,
        "index": index,
        "id": str(record["trajectory_id"]),
        "group": str(record["group_id"]),
        "rollout": record["rollout_id"],
        "task_id": str(task["task_id"]),
        "environment": str(task.get("env_type") or ""),
        "family": family_of(str(task["task_id"]), metadata),
        "level": _level(metadata),
        "query": _query(record)[:QUERY_CHARS],
        "synthetic": bool(metadata.get("synthetic")),
        "evaluator": str(task.get("evaluator", "")),
        "score": None if outcome is None else float(outcome["score"]),
        "success": None if outcome is None else bool(outcome["success"]),
        "stop_reason": str(record["stop_reason"]),
        "error": str(record.get("error") or "")[:QUERY_CHARS],
        "acted": has_acted((turn.get("kind", "action"), bool(turn.get("refused"))) for turn in record["steps"]),
        "turns": len(record["steps"]),
        "tokens": sum(int(turn["action_tokens"]) for turn in record["steps"]),
        "seconds": float(record.get("seconds") or 0.0),
        "labels": [bool(good) for good in attribution.get("good") or ()][:LABELS_SHOWN],
        "label_status": str(attribution.get("status") or ""),
        "advantages": [float(value) for value in credit.get("advantages") or ()][:LABELS_SHOWN],
        "guided": bool(guidance.get("injected")),
        "kept": bool(guidance.get("keep")),
    }


def _query(record: Mapping[str, Any]) -> str:
    """Return the task's query, or else the last message before the first action, without guidance."""
    if record["task"].get("query"):
        return str(record["task"]["query"])
    last = ""
    for message in record["messages"]:
        if message["role"] == "assistant":
            break
        last = str(message["content"] or "")
    injected = (record.get("guidance") or {}).get("injected") or ""
    return last.removeprefix(str(injected))


def _level(metadata: Mapping[str, Any]) -> str:
    level = metadata.get("level", metadata.get("difficulty"))
    return "" if level is None else str(level)[:40]


def _outcome(summary: Summary) -> str:
    if summary["success"] is None:
        return "failed"
    return "success" if summary["success"] else "failure"


def _read(path: Path, step: int, mark: Mark) -> _Index:
    offsets: list[int] = []
    summaries: list[Summary] = []
    offset = broken = 0
    with open_lines(path) as file:
        for raw in file:
            record = parse(raw) if raw.endswith(b"\n") else None
            try:
                summary = summary_of(record, step, len(summaries)) if record is not None else None
            except (KeyError, TypeError, ValueError, AttributeError):
                summary = None
            if summary is None:
                broken += 1
            else:
                offsets.append(offset)
                summaries.append(summary)
            offset += len(raw)
    return _Index(mark, offsets, summaries, broken)
