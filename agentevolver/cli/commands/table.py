"""`agentevolver table`: runs conditions x seeds and writes their table."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentevolver.cli.commands.verbs import VerbParser, carried_out, listed, positive
from agentevolver.utils.errors import LaunchError, NothingMeasured, UsageError
from agentevolver.utils.processes import die_with_parent

if TYPE_CHECKING:
    from agentevolver.evaluation.table_results import Results
    from agentevolver.evaluation.tables import TableLaunch, TablePlan

Start = Callable[[list[str]], int]


def parser() -> VerbParser:
    made = VerbParser(
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
    add("--jobs", type=positive, default=1, metavar="N", help="runs side by side, each with its share of the CPUs")
    add("--known", type=Path, metavar="CSV", help="a csv that this wrote elsewhere: what stands there is not run again")
    add("--out", type=Path, metavar="PATH", help="of csv and markdown, without suffix (default: the yaml's)")
    add("--dry-run", action="store_true", help="print what would be launched, and start nothing")
    add("--only-table", action="store_true", help="launch nothing, and write the table of what is finished")
    return made


def main(arguments: Sequence[str], root: Path) -> int:
    return carried_out("table", lambda: _table(parser().read(arguments), root))


def _table(options: argparse.Namespace, root: Path) -> int:
    from agentevolver.evaluation.table_results import Results, read_csv
    from agentevolver.evaluation.tables import TablePlan, read_table

    wrong = next((item for item in (*options.overrides, *options.train) if "=" not in item), None)
    if wrong is not None:
        raise UsageError(f"{wrong!r} is no override: write key=value")
    try:
        seeds = None if options.seeds is None else [int(seed) for seed in options.seeds]
    except ValueError as error:
        raise UsageError(f"--seeds {','.join(options.seeds)} must be whole numbers, 1,2,3 for example") from error
    table = read_table(options.table)
    plan = TablePlan(
        table if options.baseline is None else table.against(options.baseline),
        options.table.parent,
        seeds=seeds,
        conditions=options.conditions,
        train=options.train,
        every=options.overrides,
    )
    known = Results() if options.known is None else read_csv(options.known)
    shares = _shares(options.jobs)
    if options.dry_run:
        _say(plan, known)
        return 0
    if not options.only_table:
        carry_out(plan, partial(_start, root), known=known, shares=shares)
    _write(plan, known, options.out or plan.table.out or plan.folder / "table")
    return 0


def _start(root: Path, arguments: list[str]) -> int:
    # If this process is killed, the kernel sends SIGTERM to the launcher, which then stops its run in order.
    ends_with_us = partial(die_with_parent, os.getpid(), signal.SIGTERM)
    return subprocess.call([sys.executable, str(root / "launcher.py"), *arguments], preexec_fn=ends_with_us)


def _shares(jobs: int) -> list[set[int]]:
    """Return the CPUs of each job; an empty set means no limit. Raises UsageError."""
    if jobs == 1:
        return [set()]
    from agentevolver.config.devices import has_gpu

    cpus = sorted(os.sched_getaffinity(0))
    if has_gpu():
        raise UsageError(f"--jobs {jobs}: parallel runs can share only CPUs; on GPUs use --jobs 1")
    if jobs > len(cpus):
        raise UsageError(f"--jobs {jobs}: {len(cpus)} CPUs are available, and each run needs its own")
    return [set(cpus[i * len(cpus) // jobs : (i + 1) * len(cpus) // jobs]) for i in range(jobs)]


def carry_out(
    plan: TablePlan, start: Start, *, known: Results | None = None, shares: Sequence[set[int]] = (set(),)
) -> None:
    """Launch the cells without a result, neither on disk nor in `known`; each share of CPUs runs one cell at a time.

    Raises:
        LaunchError: a launch failed. Parallel launches ran to their end.
    """
    cells, lock, failed = plan.cells(), threading.Lock(), threading.Event()
    waiting = iter(enumerate(cells, 1))
    evaluated = plan.table.evaluation is not None

    def work(share: set[int]) -> None:
        if share:
            # On Linux the affinity belongs to the calling thread, and its child processes inherit it.
            os.sched_setaffinity(0, share)
        while not failed.is_set():
            with lock:
                number, cell = next(waiting, (0, None))
            if cell is None:
                return
            where = f"{number} of {len(cells)}"
            if known is not None and known.has(cell, evaluated):
                _tell(f"{cell.name}: known ({where})")
                continue
            try:
                for launch_of in (plan.training, plan.evaluation):
                    if (launch := launch_of(cell)) is not None:
                        _launch(plan, launch, start, where)
            except BaseException:
                failed.set()
                raise

    if len(shares) == 1:
        work(set())
        return
    with ThreadPoolExecutor(len(shares)) as pool:
        try:
            for done in as_completed([pool.submit(work, share) for share in shares]):
                done.result()
        except BaseException:
            failed.set()
            raise


def _tell(text: str) -> None:
    # Printed in one piece with the line break, because other threads print too.
    print(f"[table] {text}\n", end="", flush=True)


def _launch(plan: TablePlan, launch: TableLaunch, start: Start, where: str) -> None:
    finished = plan.finished(launch.name)
    if finished.exists():
        _tell(f"{launch.name}: finished before ({where})")
        return
    _tell(f"{launch.name}: starting ({where})")
    if launch.copy is not None and not (target := finished.parent / launch.copy.name).exists():
        # The evaluation writes to a copy; the run's own pool stays as training left it.
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(launch.copy, target)
    code = start(launch.arguments())
    if code == NothingMeasured.exit_code:
        # It would measure nothing again; the table says so.
        _tell(f"{launch.name}: nothing was measured")
    elif code:
        raise LaunchError(f"{launch.name} ended with exit code {code}; the same command resumes it")
    finished.parent.mkdir(parents=True, exist_ok=True)
    finished.touch()


def _say(plan: TablePlan, known: Results) -> None:
    evaluated = plan.table.evaluation is not None
    for cell in plan.cells():
        if known.has(cell, evaluated):
            print(f"known: {cell.name}")
            continue
        training = plan.training(cell)
        if training is not None:
            _say_one(plan, training)
        if training is not None and not plan.finished(training.name).exists():
            if evaluated:
                print(f"then {training.name}-eval, with the checkpoint that it leaves")
        elif (evaluation := plan.evaluation(cell)) is not None:
            _say_one(plan, evaluation)


def _say_one(plan: TablePlan, launch: TableLaunch) -> None:
    state = "finished: " if plan.finished(launch.name).exists() else ""
    print(f"{state}launcher.py {shlex.join(launch.arguments())}")


def _write(plan: TablePlan, known: Results, out: Path) -> None:
    from agentevolver.evaluation.table_results import gather, markdown, write_csv

    results = gather(plan, known)
    if not results.ends(plan.table.evaluation is not None):
        if results.unmeasured:
            raise NothingMeasured(f"no rollout acted in the last validation of any run of {plan.folder}")
        raise LaunchError(f"{plan.folder} holds no finished run of this table")
    out.parent.mkdir(parents=True, exist_ok=True)
    text = markdown(plan, results)
    write_csv(results, out.with_suffix(".csv"))
    out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(f"{text}\nwritten to {out.with_suffix('.csv')} and {out.with_suffix('.md')}")
