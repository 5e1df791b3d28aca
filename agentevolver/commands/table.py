"""`agentevolver table`: conditions x seeds, run by run, and their table."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentevolver.commands.verbs import Parser, carried_out, listed
from agentevolver.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from agentevolver.evaluation.tables import Launch, Plan

Start = Callable[[list[str]], int]


def parser() -> Parser:
    """Return the arguments of the verb."""
    made = Parser(
        "table",
        "Trains each condition of a yaml with each seed, evaluates it, and writes csv and markdown: means, 95 % "
        "intervals over seeds, differences seed by seed. What is finished is not done again; what was stopped goes on.",
    )
    add = made.add_argument
    add("table", type=Path, metavar="FILE", help="the table's yaml, examples/tables/ablation.yaml for example")
    add("overrides", nargs="*", metavar="key=value", help="keys of every launch")
    add("--seeds", type=listed, metavar="N,N", help="in the place of the yaml's")
    add("--conditions", type=listed, metavar="NAME,NAME", help="these alone")
    add("--baseline", metavar="NAME", help="compare with this condition, in the place of the yaml's")
    add("--train", action="append", default=[], metavar="key=value", help="a key of every training; may be repeated")
    add("--out", type=Path, metavar="PATH", help="of csv and markdown, without suffix (default: the yaml's)")
    add("--dry-run", action="store_true", help="print what would be launched, and start nothing")
    add("--only-table", action="store_true", help="launch nothing, and write the table of what is finished")
    return made


def main(arguments: Sequence[str], root: Path) -> int:
    """Run the table; returns the exit code."""
    return carried_out("table", lambda: _table(parser().read(arguments), root))


def _table(options: argparse.Namespace, root: Path) -> int:
    from agentevolver.evaluation.tables import Plan, read_table

    wrong = next((item for item in (*options.overrides, *options.train) if "=" not in item), None)
    if wrong is not None:
        raise UsageError(f"{wrong!r} is no override: write key=value")
    try:
        seeds = None if options.seeds is None else [int(seed) for seed in options.seeds]
    except ValueError as error:
        raise UsageError(f"--seeds {','.join(options.seeds)} must be whole numbers, 1,2,3 for example") from error
    table = read_table(options.table)
    plan = Plan(
        table if options.baseline is None else table.against(options.baseline),
        options.table.parent,
        seeds=seeds,
        conditions=options.conditions,
        train=options.train,
        every=options.overrides,
    )
    if options.dry_run:
        _say(plan)
        return 0
    if not options.only_table:
        carry_out(plan, lambda arguments: subprocess.call([sys.executable, str(root / "launcher.py"), *arguments]))
    _write(plan, options.out or plan.table.out or plan.folder / "table")
    return 0


def carry_out(plan: Plan, start: Start) -> None:
    """Launch what is not finished, one after the other.

    Raises:
        LaunchError: a launch failed; the same command goes on with it.
    """
    cells = plan.cells()
    for number, cell in enumerate(cells, 1):
        for launch in filter(None, (plan.training(cell), None)):
            _launch(plan, launch, start, f"{number} of {len(cells)}")
        evaluation = plan.evaluation(cell)
        if evaluation is not None:
            _launch(plan, evaluation, start, f"{number} of {len(cells)}")


def _launch(plan: Plan, launch: Launch, start: Start, where: str) -> None:
    finished = plan.finished(launch)
    if finished.exists():
        print(f"[table] {launch.name}: finished before ({where})", flush=True)
        return
    print(f"[table] {launch.name}: starting ({where})", flush=True)
    if launch.copy is not None and not (target := finished.parent / launch.copy.name).exists():
        # What is found during the evaluation is added to a copy: the run's own stays as training left it.
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(launch.copy, target)
    code = start(launch.arguments())
    if code:
        raise LaunchError(f"{launch.name} ended with exit code {code}; the same command goes on with it")
    finished.parent.mkdir(parents=True, exist_ok=True)
    finished.touch()


def _say(plan: Plan) -> None:
    for cell in plan.cells():
        training = plan.training(cell)
        if training is not None:
            _say_one(plan, training)
        if training is not None and not plan.finished(training).exists():
            if plan.table.evaluation is not None:
                print(f"then {training.name}-eval, with the checkpoint that it leaves")
        elif (evaluation := plan.evaluation(cell)) is not None:
            _say_one(plan, evaluation)


def _say_one(plan: Plan, launch: Launch) -> None:
    state = "finished: " if plan.finished(launch).exists() else ""
    print(f"{state}launcher.py {shlex.join(launch.arguments())}")


def _write(plan: Plan, out: Path) -> None:
    from agentevolver.evaluation.tables import figures, markdown, write_csv

    found = figures(plan)
    if not found:
        raise LaunchError(f"{plan.folder} holds no finished run of this table")
    out.parent.mkdir(parents=True, exist_ok=True)
    text = markdown(plan, found)
    write_csv(found, out.with_suffix(".csv"))
    out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(f"{text}\nwritten to {out.with_suffix('.csv')} and {out.with_suffix('.md')}")
