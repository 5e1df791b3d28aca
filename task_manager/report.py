"""What the commands print: progress, the funnel, tasks with their provenance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from agentevolver.types import Task
from task_manager.configuration import Configuration
from task_manager.funnel import STAGES, Funnel, Record, proposals, tally
from task_manager.journal import Records, read_journal
from task_manager.plan import Plan


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int, int], None]]:
    """Show a bar on the error stream; yields what is to be told (jobs done, jobs in all, tasks kept)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[kept]} tasks"),
    )
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        bar = progress.add_task(what, total=None, kept=0)

        def tell(done: int, total: int, kept: int) -> None:
            progress.update(bar, completed=done, total=total, kept=kept)

        yield tell


def print_funnel(funnel: Funnel) -> None:
    """Print counts, what each stage let through, why the others were dropped, and what a task cost."""
    console = Console()
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
        kinds = ", ".join(f"{kind} {count}" for kind, count in funnel.failures.most_common())
        console.print(f"{funnel.failed} explorations failed ({kinds}); the same command goes on with them")
    if funnel.kept and funnel.tokens:
        console.print(
            f"{funnel.tokens / funnel.kept:,.0f} tokens and {funnel.cost / funnel.kept:.4f} (in your prices' "
            "currency) a task"
        )


def print_stats(configuration: Configuration) -> int:
    """Print the funnel of each plan in the journal, the newest last."""
    records, plans = _recorded(configuration)
    console = Console()
    for plan in plans:
        console.print(f"{plan.env_type}: {len(plan.seeds)} worlds x {plan.n}, run {plan.run}")
        funnel = tally(records, plan)
        funnel.tokens, funnel.cost = _spent(configuration) if plan is plans[-1] and len(plans) == 1 else (0, 0.0)
        print_funnel(funnel)
    return 0


def print_tasks(configuration: Configuration, *, task_id: str | None, dropped: bool, limit: int) -> int:
    """Print tasks of the newest plan, or what was dropped; one task with its whole way."""
    records, plans = _recorded(configuration)
    console = Console()
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


def _print_record(console: Console, record: Record, task: Task | None) -> None:
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


def _fate(record: Record) -> str:
    if record.verdict is not None and record.verdict["dropped_by"] is not None:
        return escape(f"dropped by {record.verdict['dropped_by']}: {record.verdict['reason']}")
    if record.decision is None:
        return "not decided yet"
    if record.decision["task"] is None:
        return escape(f"dropped as a duplicate: {record.decision['reason']}")
    return f"kept, graded by {record.decision['task']['evaluator']}"


def _print_way(console: Console, record: Record, records: Records) -> None:
    exploration: dict[str, Any] = records["exploration"][record.keys["exploration"]]
    for name, key in record.keys.items():
        console.print(f"    {name} {key}")
    for index, step in enumerate(exploration["steps"]):
        console.print(
            f"    {index:3} {step['phase']:7} {escape(step['action'])}\n                {escape(step['observation'])}",
            highlight=False,
        )


def _recorded(configuration: Configuration) -> tuple[Records, list[Plan]]:
    records = read_journal(configuration.task_manager.store_path)
    return records, [Plan.from_dict(data) for data in records.get("plan", {}).values()]


def _spent(configuration: Configuration) -> tuple[int, float]:
    from agentevolver.llm.store import Ledger

    path = configuration.llm.ledger or configuration.task_manager.store_path / "llm_usage.sqlite"
    if not path.exists():
        return 0, 0.0
    ledger = Ledger(path)
    try:
        spent = ledger.spent()
        return spent.tokens, spent.cost
    finally:
        ledger.close()


def print_recheck(findings: list[tuple[Task, str | None]]) -> None:
    """Print the tasks whose reference does not hold, and the share of those that do."""
    console = Console()
    for task, flaw in findings:
        if flaw is not None:
            console.print(f"[bold]{escape(task.task_id)}[/bold]  {escape(str(task.query))}: {escape(flaw)}")
    holding = sum(flaw is None for _, flaw in findings)
    console.print(
        f"{holding} of {len(findings)} reference solutions hold"
        + (f" ({holding / len(findings):.2%})" if findings else "")
    )
