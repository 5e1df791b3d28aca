"""Synthetic tasks of a run: the funnel of self-questioning, the proposals and the exploration behind each.

Explorations are most of a journal's bytes. They stay in the file until one is requested.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentevolver.utils.files import GrowingFile, parse, read_at, signature
from agentevolver.view.experiment import NotThere, UnreadableFile
from task_manager.background import round_files
from task_manager.journal import PipelinePlan, Records
from task_manager.report import STAGES, ProposalRecord, proposals, tally
from task_manager.settings import file_of

PAGE = 50
SYNTHETIC = "tasks_explored.train.jsonl"
FATES = ("kept", "dropped", "open")
# Deep enough for the journal of the first round and those of later rounds.
_JOURNALS = ("*/journal.jsonl", "*/*/journal.jsonl", "*/*/*/journal.jsonl")

Row = dict[str, Any]


class TaskJournal:
    def __init__(self, path: Path) -> None:
        self._file = GrowingFile(path)
        self._lock = threading.Lock()
        self._records: dict[str, dict[str, Any]] = {}
        self._generation = 0
        self._count = 0
        self._rows: dict[str, tuple[int, list[Row]]] = {}

    def plans(self) -> list[dict[str, Any]]:
        """Return facts and funnel of each plan, newest last."""
        with self._lock:
            self._refresh()
            return [_funnel(plan, self._records) for plan in self._plans()]

    def rows(self, run: str) -> list[Row]:
        """Return the proposals of a plan. Raises NotThere."""
        with self._lock:
            self._refresh()
            known = self._rows.get(run)
            if known is None or known[0] != self._count:
                plan = self._plan(run)
                known = self._rows[run] = (
                    self._count,
                    [_row(record, i) for i, record in enumerate(proposals(self._records, plan))],
                )
            return known[1]

    def exploration(self, run: str, index: int) -> list[dict[str, Any]]:
        """Return the steps of the exploration behind proposal `index` of a plan. Raises NotThere."""
        rows = self.rows(run)
        if not 0 <= index < len(rows):
            raise NotThere(f"there is no proposal number {index}")
        with self._lock:
            offset = self._records.get("exploration", {}).get(rows[index]["exploration"])
        line = None if offset is None else read_at(self._file.path, offset)
        steps: list[dict[str, Any]] = (line or {}).get("value", {}).get("steps", [])
        return steps

    def _plan(self, run: str) -> PipelinePlan:
        for plan in self._plans():
            if plan.run == run:
                return plan
        raise NotThere(f"there is no questioning run {run!r}")

    def _plans(self) -> list[PipelinePlan]:
        try:
            return [PipelinePlan.from_dict(data) for data in self._records.get("plan", {}).values()]
        except (TypeError, KeyError) as error:
            raise UnreadableFile(f"{self._file.path.name} was written by another version ({error})") from error

    def _refresh(self) -> None:
        for line in self._file.read():
            if self._file.generation != self._generation:
                self._generation, self._records = self._file.generation, {}
            kind, key = line.value.get("kind"), line.value.get("key")
            if not isinstance(kind, str) or not isinstance(key, str) or "value" not in line.value:
                continue
            self._records.setdefault(kind, {})[key] = line.offset if kind == "exploration" else line.value["value"]
            self._count += 1


class Tasks:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._journals: dict[str, TaskJournal] = {}
        self._counts: dict[Path, tuple[Any, Counter[str]]] = {}

    def overview(self) -> dict[str, Any]:
        """Return counts of the task files, the outcome of `questioning.json`, and each journal's plans."""
        synthetic = self.folder / SYNTHETIC
        files = {"train": self.folder / "train.jsonl", "validation": self.folder / "val.jsonl"}
        counts = {name: self._counted(path) for name, path in files.items()}
        several = sorted({env_type for found in counts.values() for env_type in found or ()})
        made_of = [synthetic] if len(several) < 2 else [file_of(synthetic, env_type) for env_type in several]
        made = self._made(several)
        synthetics = [found.total() for path in made_of if (found := self._counted(path)) is not None]
        totals = {name: found.total() for name, found in counts.items() if found is not None}
        return {
            "counts": totals | ({"synthetic": sum(synthetics)} if synthetics else {}),
            "environments": {
                env_type: {name: found[env_type] for name, found in counts.items() if found is not None}
                for env_type in (several if len(several) > 1 else ())
            },
            "rounds": [(self._counted(path) or Counter()).total() for first in made_of for path in round_files(first)],
            "complete": made.get("complete"),
            "metrics": made.get("metrics") or {},
            "stages": list(STAGES),
            "journals": [{"name": name, "plans": journal.plans()} for name, journal in self._found().items()],
        }

    def proposals(
        self, journal: str, run: str, *, fate: str = "", text: str = "", offset: int = 0, limit: int = PAGE
    ) -> dict[str, Any]:
        """Return `{rows, total}` of a plan's proposals with this fate and text. Raises NotThere."""
        rows = self._journal(journal).rows(run)
        wanted = [row for row in rows if (not fate or row["fate"] == fate) and (not text or _mentions(row, text))]
        return {"rows": wanted[offset : offset + limit], "total": len(wanted)}

    def exploration(self, journal: str, run: str, index: int) -> list[dict[str, Any]]:
        return self._journal(journal).exploration(run, index)

    def _journal(self, name: str) -> TaskJournal:
        found = self._found()
        if name not in found:
            raise NotThere(f"there is no journal {name!r}")
        return found[name]

    def _found(self) -> dict[str, TaskJournal]:
        paths = sorted(path for pattern in _JOURNALS for path in self.folder.glob(pattern))
        names = {str(path.parent.relative_to(self.folder)): path for path in paths}
        return {name: self._journals.setdefault(name, TaskJournal(path)) for name, path in names.items()}

    def _made(self, env_types: Sequence[str]) -> dict[str, Any]:
        path = self.folder / "questioning.json"
        if len(env_types) < 2:
            return self._record(path)
        found = {name: made for name in env_types if (made := self._record(file_of(path, name)))}
        metrics = {f"{key}/{name}": value for name, made in found.items() for key, value in made["metrics"].items()}
        return {"complete": all(made["complete"] for made in found.values()), "metrics": metrics} if found else {}

    def _record(self, path: Path) -> dict[str, Any]:
        try:
            made = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise UnreadableFile(f"tasks/{path.name} cannot be read: {error}") from error
        return made if isinstance(made, dict) else {}

    def _counted(self, path: Path) -> Counter[str] | None:
        """Return the number of tasks of each environment in a file, or None if the file is missing."""
        mark = signature(path)
        if mark is None:
            return None
        known = self._counts.get(path)
        if known is None or known[0] != mark:
            with path.open("rb") as file:
                tasks = [parse(line) or {} for line in file]
            known = self._counts[path] = (mark, Counter(str(task.get("env_type") or "") for task in tasks))
        return known[1]


def _funnel(plan: PipelinePlan, records: Records) -> dict[str, Any]:
    funnel = tally(records, plan)
    return {
        "run": plan.run,
        "environment": plan.env_type,
        "worlds": len(plan.seeds),
        "explorations": len(plan.seeds) * plan.n,
        "stages": {stage: getattr(funnel, stage) for stage in STAGES},
        "failed": funnel.failed,
        "dropped": [[reason, count] for reason, count in funnel.dropped.most_common()],
    }


def _row(record: ProposalRecord, index: int) -> Row:
    task = record.decision["task"] if record.decision else None
    fate, stage, reason = "open", "", ""
    if record.verdict is not None and record.verdict["dropped_by"] is not None:
        fate, stage, reason = "dropped", str(record.verdict["dropped_by"]), str(record.verdict["reason"])
    elif record.decision is not None:
        fate, stage, reason = ("kept", "", "") if task else ("dropped", "duplicate", str(record.decision["reason"]))
    return {
        "index": index,
        "task_id": task["task_id"] if task else None,
        "seed": record.seed,
        "number": record.number,
        "query": str(record.proposal["query"]),
        "solution": [str(action) for action in record.proposal["solution"]],
        "confidence": record.proposal["confidence"],
        "fate": fate,
        "stage": stage,
        "reason": reason,
        "grader": task["evaluator"] if task else None,
        "changes": [str(change) for change in (record.verdict or {}).get("changes") or ()],
        "exploration": record.keys["exploration"],
    }


def _mentions(row: Row, text: str) -> bool:
    return text.casefold() in f"{row['task_id'] or row['seed']}\n{row['query']}\n{row['reason']}".casefold()
