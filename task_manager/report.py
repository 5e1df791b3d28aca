"""Statistics of a pipeline run: counts by stage, cost per kept task, and how commands print them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from agentevolver.llm.store import Usage, read_usage
from agentevolver.types import Task
from agentevolver.utils.rich_console import TerminalConsole, escape
from task_manager.journal import PipelinePlan, Records, read_journal
from task_manager.settings import QuestioningConfiguration

STAGES = ("explored", "proposed", "parsed", "verified", "executed", "passed", "deduplicated", "kept")


@dataclass(slots=True)
class Funnel:
    """Counts by stage; from `proposed` on, none exceeds the one before.

    - explored: trajectories; proposed: entries of the synthesiser's replies; parsed: readable ones
    - verified: new when they were proposed
    - executed: solution carried out, every action confirmed by the environment
    - passed: accepted by verifier and judge; deduplicated: still new when they were kept; kept: tasks

    `unchecked`: verified without confirmation, because the environment gives none or execution is off. Only the judge
    decides about these, so `passed` <= `executed` + `unchecked`. `failed` counts failed explorations of this run.
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
        """Return counts, rates between stages, and tokens and cost per kept task, as `questioning/<name>`."""
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
        count = int(getattr(self, STAGES[STAGES.index(stage) - 1]))
        return count + self.unchecked if stage == "passed" else count

    def synthesised(self, synthesis: Mapping[str, Any]) -> None:
        self.proposed += len(synthesis["proposals"]) + len(synthesis["rejected"])
        self.parsed += len(synthesis["proposals"])
        for reason in synthesis["rejected"]:
            self.dropped[f"parse: {_kind(reason)}"] += 1

    def judged(self, verdict: Mapping[str, Any]) -> None:
        stage = verdict["dropped_by"]
        self.verified += 1
        # Old journals lack `executed`.
        is_checked = verdict.get("executed", "checked") == "checked"
        self.executed += is_checked and stage != "execute"
        self.unchecked += not is_checked and stage != "execute"
        self.passed += stage is None
        if stage is not None:
            self.dropped[f"{stage}: {_kind(verdict['reason'])}"] += 1

    def decided(self, decision: Mapping[str, Any]) -> None:
        is_new = decision["task"] is not None
        self.deduplicated += is_new
        self.kept += is_new
        if not is_new:
            self.dropped[f"duplicate: {_kind(decision['reason'])}"] += 1


@dataclass(frozen=True, slots=True)
class ProposalRecord:
    """Everything recorded about one proposal. A stage that it has not reached is None."""

    seed: str
    number: int
    index: int
    proposal: Mapping[str, Any]
    verdict: Mapping[str, Any] | None
    decision: Mapping[str, Any] | None
    keys: Mapping[str, str]


def proposals(records: Records, plan: PipelinePlan) -> Iterator[ProposalRecord]:
    """Yield the records of a plan's proposals in order."""
    for seed, number in plan.jobs():
        exploration = plan.exploration(seed, number)
        key = plan.synthesis(exploration)
        synthesis = records.get("synthesis", {}).get(key)
        for index, proposal in enumerate(synthesis["proposals"] if synthesis else []):
            verdict_key = plan.verdict(key, index)
            decision_key = plan.decision(verdict_key)
            keys = {"exploration": exploration, "synthesis": key, "verdict": verdict_key, "decision": decision_key}
            verdict = records.get("verdict", {}).get(verdict_key)
            yield ProposalRecord(
                seed, number, index, proposal, verdict, records.get("decision", {}).get(decision_key), keys
            )


def tally(records: Records, plan: PipelinePlan) -> Funnel:
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
    # Reasons that differ only in a number, name or quotation are counted together.
    head = reason.split(":")[0].split("(")[0].split("'")[0]
    kept = " ".join(word for word in head.split() if not any(c.isdigit() for c in word))
    return kept[:60].strip() or reason[:60]


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int, int], None]]:
    """Show a progress bar on stderr; yields its update function (jobs done, all jobs, tasks kept)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[kept]} tasks"),
    )
    console = TerminalConsole(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task(what, total=None, kept=0)

        def tell(done: int, total: int, kept: int) -> None:
            progress.update(bar, completed=done, total=total, kept=kept)

        yield tell


def print_funnel(funnel: Funnel) -> None:
    console = TerminalConsole()
    table = Table("stage", "count", "of the stage before")
    for stage in STAGES:
        count = getattr(funnel, stage)
        before = funnel.before(stage) if stage not in ("explored", "proposed") else 0
        table.add_row(stage, str(count), f"{count / before:.1%}" if before else "")
    console.print(table)
    if funnel.unchecked:
        console.print(
            f"{funnel.unchecked} solutions were not checked by the environment: it does not say what an action did, "
            "or was not asked"
        )
    if funnel.dropped:
        reasons = Table("dropped by", "count")
        for reason, count in funnel.dropped.most_common(15):
            reasons.add_row(escape(reason), str(count))
        console.print(reasons)
    if funnel.failed:
        kinds = ", ".join(f"{escape(kind)} {count}" for kind, count in funnel.failures.most_common())
        console.print(f"{funnel.failed} explorations failed ({kinds}); repeat the command to retry them")
    if funnel.kept and funnel.tokens:
        console.print(
            f"{funnel.tokens / funnel.kept:,.0f} tokens and {funnel.cost / funnel.kept:.4f} (in your prices' "
            "currency) a task"
        )


def print_stats(configuration: QuestioningConfiguration) -> int:
    records, plans = _recorded(configuration)
    console = TerminalConsole()
    for plan in plans:
        console.print(f"{escape(plan.env_type)}: {len(plan.seeds)} worlds x {plan.n}, run {plan.run}")
        funnel = tally(records, plan)
        funnel.tokens, funnel.cost = _spent(configuration) if plan is plans[-1] and len(plans) == 1 else (0, 0.0)
        print_funnel(funnel)
    return 0


def print_tasks(configuration: QuestioningConfiguration, *, task_id: str | None, dropped: bool, limit: int) -> int:
    """Print the newest plan's tasks, or its dropped proposals; with `task_id` one task and its exploration."""
    records, plans = _recorded(configuration)
    console = TerminalConsole()
    shown = 0
    for record in proposals(records, plans[-1]):
        task = Task.from_dict(record.decision["task"]) if record.decision and record.decision["task"] else None
        if task_id is not None and (task is None or task.task_id != task_id):
            continue
        if task_id is None and (task is None) != dropped:
            continue
        _print_record(console, record, task)
        if task_id is not None:
            _print_way(console, record, records)
        shown += 1
        if shown >= limit:
            break
    if not shown:
        console.print("nothing to show" if task_id is None else f"there is no task {escape(task_id)} in the newest run")
    return 0 if shown else 1


def _print_record(console: TerminalConsole, record: ProposalRecord, task: Task | None) -> None:
    console.print(
        f"[bold]{escape(task.task_id if task else record.seed)}[/bold]  {escape(str(record.proposal['query']))}"
    )
    replaced = (record.verdict or {}).get("solution")
    for action in replaced or record.proposal["solution"]:
        console.print(f"    {escape(action)}", highlight=False)
    console.print(
        f"    confidence {record.proposal['confidence']:.2f}, exploration {record.number} of {escape(record.seed)}: "
        f"{_fate(record)}"
    )
    if replaced:
        console.print(f"    solved again in {len(replaced)} actions; {len(record.proposal['solution'])} were proposed")
    if task is not None and record.verdict is not None and record.verdict["changes"]:
        console.print(f"    changes: {escape('; '.join(record.verdict['changes']))}")


def _fate(record: ProposalRecord) -> str:
    if record.verdict is not None and record.verdict["dropped_by"] is not None:
        return escape(f"dropped by {record.verdict['dropped_by']}: {record.verdict['reason']}")
    if record.decision is None:
        return "not decided yet"
    if record.decision["task"] is None:
        return escape(f"dropped as a duplicate: {record.decision['reason']}")
    return f"kept, graded by {record.decision['task']['evaluator']}"


def _print_way(console: TerminalConsole, record: ProposalRecord, records: Records) -> None:
    exploration: dict[str, Any] = records["exploration"][record.keys["exploration"]]
    for name, key in record.keys.items():
        console.print(f"    {name} {key}")
    for index, step in enumerate(exploration["steps"]):
        console.print(
            f"    {index:3} {step['phase']:7} {escape(step['action'])}\n                {escape(step['observation'])}",
            highlight=False,
        )


def _recorded(configuration: QuestioningConfiguration) -> tuple[Records, list[PipelinePlan]]:
    records = read_journal(configuration.task_manager.store_path)
    return records, [PipelinePlan.from_dict(data) for data in records.get("plan", {}).values()]


def _spent(configuration: QuestioningConfiguration) -> tuple[int, float]:
    path = configuration.llm.ledger or configuration.task_manager.store_path / "llm_usage.sqlite"
    spent = sum(read_usage(path).values(), Usage())
    return spent.tokens, spent.cost


def print_recheck(findings: list[tuple[Task, str | None]]) -> None:
    console = TerminalConsole()
    for task, flaw in findings:
        if flaw is not None:
            console.print(f"[bold]{escape(task.task_id)}[/bold]  {escape(str(task.query))}: {escape(flaw)}")
    holding = sum(flaw is None for _, flaw in findings)
    console.print(
        f"{holding} of {len(findings)} reference solutions hold"
        + (f" ({holding / len(findings):.2%})" if findings else "")
    )
