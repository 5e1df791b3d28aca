"""Summary of a finished run: results, cost, paths and the next commands, read from its folder alone."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from agentevolver.trainer.checkpoints import only_starts_over, whole_checkpoints
from agentevolver.trainer.monitor.console import duration
from agentevolver.trainer.monitor.findings import findings
from agentevolver.trainer.monitor.log import read_status
from agentevolver.trainer.monitor.results import Comparison, compare, figure, records, spent
from agentevolver.utils.errors import NothingMeasured
from agentevolver.utils.experiments import ROOT

LEDGER = "llm_usage.sqlite"
SIGNALLED = 128


def ending(folder: Path, *, code: int, seconds: float, ledger: Path | None = None) -> list[str]:
    """Return the summary as lines, or an empty list if the run neither trained nor validated.

    The last lines name problems that the figures hide. If nothing was measured, no command that uses the policy is
    suggested.

    Args:
        folder: the experiment's folder.
        code: exit code of the launch.
        seconds: duration of the launch.
        ledger: SQLite file of language model calls; None: the run's own.
    """
    steps = [int(record["step"]) for record in records(folder)]
    whole = whole_checkpoints(folder / "checkpoints")
    if not steps and not whole:
        return []
    name, step, found = quote(name_of(folder)), max(steps, default=0), findings(folder)
    unmeasured = code == NothingMeasured.exit_code
    how = "finished, but see the last lines," if found and _how(code) == "finished" else _how(code)
    lines = [f"{name} {how} after {duration(seconds)}, step {step}{_of_total(folder)}"]
    for one in compare(folder):
        lines.append(f"  {_compared(one)}")
    if (used := spent(ledger or folder / LEDGER)) is not None:
        cost = f", cost {used.cost:.2f}" if used.cost else ""
        lines.append(
            f"  language models: {used.calls:,} calls, {used.prompt_tokens:,} tokens in, {used.completion_tokens:,} "
            f"out{cost}"
        )
    if whole:
        lines.append(f"  checkpoint: {_short(whole[-1].folder)}")
        if whole[-1].step < step:
            lines.append(f"  the {step - whole[-1].step} steps after it are repeated when the run resumes")
    todo = [("look at it", f"view {name}")]
    if unmeasured:
        whole = []
    elif code and only_starts_over(folder):
        lines.append("  no checkpoint was written (trainer.save_freq): a later start begins anew")
        todo.append(("start over", f"resume {name} trainer.resume_mode=disable"))
    elif code:
        todo.append(("go on", f"resume {name}"))
    elif whole:
        todo.append(("train on", f"resume {name} trainer.total_training_steps={2 * step}"))
    if whole:
        todo += [
            ("measure", f"eval {name} --out {quote(folder.name)}.json"),
            ("compare", f"eval {name} --beside OTHER.json"),
            ("talk to it", f"chat {name}"),
            ("take it home", f"export {name} --to {quote(folder.name)}-policy"),
        ]
    lines += [f"  {what + ':':<14}agentevolver {verb}" for what, verb in todo]
    return [*lines, *(f"  but {text}" for text in found)]


def name_of(folder: Path) -> str:
    """Return "project/experiment" if the folder is below `experiments/`, else its path."""
    resolved = folder.resolve()
    return "/".join(resolved.parts[-2:]) if resolved.parent.parent == ROOT.resolve() else _short(folder)


def _short(path: Path) -> str:
    resolved, here = path.resolve(), Path.cwd()
    return str(resolved.relative_to(here)) if resolved.is_relative_to(here) else str(resolved)


def _how(code: int) -> str:
    if code in (0, NothingMeasured.exit_code):
        return "finished"
    return "was stopped" if code > SIGNALLED else f"failed with exit code {code}"


def _of_total(folder: Path) -> str:
    total = read_status(folder).get("total_steps")
    return f" of {total}" if isinstance(total, int) else ""


def _compared(one: Comparison) -> str:
    last = f"{figure(one.last.average, one.after)} avg@{one.last.n}"
    if one.first.step == one.last.step:
        return f"{one.source}: {last} (step {one.last.step})"
    difference = one.last.average - one.first.average
    gain = f"{difference:+.3f}" if one.gain is None else f"{one.gain.shown('+')}, {one.gain.n} tasks in pairs"
    return (
        f"{one.source}: {figure(one.first.average, one.before)} -> {last} (steps {one.first.step}, {one.last.step}): "
        f"{gain}"
    )
