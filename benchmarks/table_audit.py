"""What the runs of a table trained on, what their language model cost, and how good its labels were: for `pocket_app`.

    python -m benchmarks.table_audit experiments/paper [--price-in 0.8] [--price-out 2.0]

Reads the folders CONDITION-SEED that `agentevolver table` left, and prints markdown; figures are over all seeds of a
condition. Synthetic tasks: the calls of their references beside those of the environment's own tasks; of the tasks that
were trained on the share that is trivial (every rollout succeeded) and impossible (none did); how near the nearest
task of dev is (Jaccard of their words). Tokens are the ledger's; prices are a million tokens', in any currency. Labels
are compared with the world's own, which the language model does not see (`pocket.oracle.label_steps_of`), and where a
judge graded rollouts, its verdicts with what their actions leave of a fresh world.

Raises SystemExit where a kept task has the words of one of dev's (Jaccard 1): that would be contamination.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

from agentevolver.llm.store import Usage
from agentevolver.utils.files import read_jsonl
from agentevolver.view.experiment import Experiment
from agentevolver.view.metrics import usage
from agentevolver.view.trajectories import StepFiles
from env_service.environments.pocket.app_tasks import app_task_ids, app_world, make_app_task
from env_service.environments.pocket.calls import parse as parse_call
from env_service.environments.pocket.grading import score
from env_service.environments.pocket.oracle import Label, label_steps_of
from env_service.environments.pocket.tasks import WorldTask
from task_manager.dedup import words

TASKS = Path("tasks") / "tasks_explored.train.jsonl"
MAKING, DISTILLING, LABELLING = ("explorer", "synthesiser", "verifier", "judge"), ("summariser",), ("attributor",)
NEAR = 0.8


@dataclass
class Audit:
    """A condition over its seeds. `met` is whether each rollout of a task that was trained on succeeded, by run and
    task; `labels` are pairs of a label and the world's, by the episode's success; `verdicts` are a judge's scores by
    whether the world says success too."""

    runs: int = 0
    calls: list[int] = field(default_factory=list)
    nearest: list[float] = field(default_factory=list)
    met: dict[tuple[str, str], list[bool]] = field(default_factory=dict)
    spent: dict[str, Usage] = field(default_factory=dict)
    experiences: int = 0
    labels: dict[bool, list[tuple[bool, bool]]] = field(default_factory=lambda: {True: [], False: []})
    verdicts: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    agreed: int = 0


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the table's project")
    parser.add_argument("--price-in", type=float, default=0.8, help="a million tokens of prompts")
    parser.add_argument("--price-out", type=float, default=2.0, help="a million tokens of completions")
    options = parser.parse_args(argv)
    audits = read(options.folder)
    if not audits:
        sys.exit(f"{options.folder} has no training with metrics.jsonl")
    costs = costs_table(audits, options.price_in, options.price_out)
    sections = (tasks_table(audits), costs, labels_table(audits), verdicts_table(audits))
    print("\n".join("\n".join(section) + "\n" for section in sections if len(section) > 2))


def read(folder: Path) -> dict[str, Audit]:
    """Return the audits of a project's trainings by condition; raises SystemExit for a task that is one of dev's."""
    audits: dict[str, Audit] = {}
    for metrics in sorted(folder.glob("*-*/metrics.jsonl")):
        run = metrics.parent
        condition, _, seed = run.name.rpartition("-")
        if seed.isdigit():
            _add(audits.setdefault(condition, Audit()), run)
    return audits


def _add(audit: Audit, run: Path) -> None:
    audit.runs += 1
    made = [record["task"] for record in read_jsonl(run / TASKS)] if (run / TASKS).exists() else []
    for task in made:
        audit.calls.append(len(task["metadata"]["solution"]))
        audit.nearest.append(nearness(task["query"]))
        if audit.nearest[-1] == 1:
            sys.exit(f"{run / TASKS}: {task['query']!r} has the words of a task of dev: contamination")
    for record in _trajectories(run / "trajectories"):
        if outcome := record.get("outcome"):
            audit.met.setdefault((run.name, record["task"]["task_id"]), []).append(outcome["success"])
            audit.labels[outcome["success"]] += _labels(record)
            if "llm" in record["task"].get("evaluator", ""):
                _, succeeded = carried_out(record)
                audit.verdicts[succeeded].append(outcome["score"])
                audit.agreed += outcome["success"] is succeeded
    for spent in usage(Experiment(run))["roles"]:
        role, *numbers = spent.values()
        audit.spent[role] = audit.spent.get(role, Usage()) + Usage(*numbers)
    stored = [record["exp_manager/distil/stored"] for record in read_jsonl(run / "metrics.jsonl")
              if "exp_manager/distil/stored" in record]  # fmt: skip
    audit.experiences += int(stored[-1]) if stored else 0


def _trajectories(folder: Path) -> Iterator[dict[str, Any]]:
    files = StepFiles(folder)
    for path in map(files.path, files.steps()):
        if path is not None:
            yield from read_jsonl(path)


def _labels(record: Mapping[str, Any]) -> list[tuple[bool, bool]]:
    told = (record.get("attribution") or {}).get("good") or []
    if len(told) != len(record["steps"]):
        return []
    truth, _ = carried_out(record)
    return [(bool(one), other == "GOOD") for one, other in zip(told, truth, strict=True)]


def carried_out(record: Mapping[str, Any]) -> tuple[list[Label], bool]:
    """Carry out a rollout's actions in a fresh world; returns the world's own labels, and whether it is left as the
    task wants it."""
    task = task_of(record["task"])
    world = app_world(task.site, task.world_seed)
    labels = label_steps_of(task, world, [step["action"] for step in record["steps"]])
    return labels, score(task, world) == 1


def task_of(record: Mapping[str, Any]) -> WorldTask:
    """Return a recorded task as the world's own code has it; a synthetic one's goal is what its reference leaves."""
    metadata = record["metadata"]
    if not metadata.get("synthetic"):
        return make_app_task(record["task_id"])
    task = make_app_task(metadata["seed_task_id"])
    world = app_world(task.site, task.world_seed)
    solution = tuple(parse_call({"role": "assistant", "content": text}, "compact") for text in metadata["solution"])
    for call in solution:
        world.carry_out(call)
    return replace(
        task, query=record["query"], plan=solution, solution=solution, answer=world.answer or None,
        goal=world.tables.facts(),
    )  # fmt: skip


@lru_cache(maxsize=1)
def _dev() -> list[frozenset[str]]:
    return [words(make_app_task(task_id).query) for task_id in app_task_ids("dev")]


def nearness(query: str) -> float:
    """Return the Jaccard of a query's words with those of the nearest task of dev, 0 to 1."""
    own = words(query)
    return max(len(own & other) / len(own | other) for other in _dev())


def tasks_table(audits: Mapping[str, Audit]) -> list[str]:
    """Return the lines on tasks; the environment's own are the table's second line."""
    own = [len(make_app_task(task_id).solution) for task_id in app_task_ids("train")]
    lines = [
        "| tasks (runs) | kept a run | calls: quarter, half, three quarters | trained on | trivial | impossible | "
        "nearest of dev: mean, most | as near as .8 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, audit in audits.items():
        met = audit.met.values()
        if not met:
            continue
        calls = " ".join(f"{cut:.0f}" for cut in quantiles(audit.calls or own, n=4))
        trivial, impossible = mean(all(one) for one in met), mean(not any(one) for one in met)
        near = (
            f"{mean(audit.nearest):.2f}, {max(audit.nearest):.2f} | {sum(one >= NEAR for one in audit.nearest)}"
            if audit.nearest
            else " | "
        )
        kept = f"{len(audit.calls) / audit.runs:.0f}" if audit.calls else "the environment's"
        lines.append(
            f"| {name} ({audit.runs}) | {kept} | {calls} | {len(met) / audit.runs:.0f} | {trivial:.0%} | "
            f"{impossible:.0%} | {near} |"
        )
    return lines


def costs_table(audits: Mapping[str, Audit], price_in: float, price_out: float) -> list[str]:
    """Return the lines on tokens: of a kept task, a stored experience and a label."""
    lines = [
        f"| tokens of the language model: prompts, replies (price at {price_in:g} and {price_out:g} a million) | "
        "a kept task | a stored experience | a label | all of a run |",
        "|---|---|---|---|---|",
    ]
    for name, audit in audits.items():
        if not audit.spent:
            continue
        labels = sum(map(len, audit.labels.values()))
        parts = ((MAKING, len(audit.calls)), (DISTILLING, audit.experiences), (LABELLING, labels),
                 (tuple(audit.spent), audit.runs))  # fmt: skip
        cells = []
        for roles, count in parts:
            used = sum((audit.spent.get(role, Usage()) for role in roles), Usage())
            asked, told = used.prompt_tokens, used.completion_tokens
            price = (asked * price_in + told * price_out) / 1e6
            cells.append(f"{asked / count:,.0f}, {told / count:,.0f} ({price / count:.2g})" if count and asked else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def labels_table(audits: Mapping[str, Audit]) -> list[str]:
    """Return the lines on labels beside the world's own."""
    lines = [
        "| labels | of | agree with the world | called good, of the world's good | called bad, of the world's bad |",
        "|---|---|---|---|---|",
    ]
    for name, audit in audits.items():
        for success, pairs in audit.labels.items():
            if not pairs:
                continue
            good, bad = ([told for told, truth in pairs if truth is kind] for kind in (True, False))
            lines.append(
                f"| {name} | {len(pairs):,} steps of {'successes' if success else 'failures'} | "
                f"{mean(told is truth for told, truth in pairs):.3f} | {mean(good) if good else float('nan'):.3f} | "
                f"{1 - mean(bad) if bad else float('nan'):.3f} |"
            )
    return lines


def verdicts_table(audits: Mapping[str, Audit]) -> list[str]:
    """Return the lines on a judge's verdicts on rollouts beside the world's."""
    lines = [
        "| verdicts | of | agree with the world | mean score of the world's successes | of its failures |",
        "|---|---|---|---|---|",
    ]
    for name, audit in audits.items():
        right, wrong = audit.verdicts[True], audit.verdicts[False]
        if count := len(right) + len(wrong):
            scores = " | ".join(f"{mean(one):.3f}" if one else "" for one in (right, wrong))
            lines.append(f"| {name} | {count:,} rollouts | {audit.agreed / count:.3f} | {scores} |")
    return lines


if __name__ == "__main__":
    main()
