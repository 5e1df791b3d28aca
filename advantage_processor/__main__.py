"""`python -m advantage_processor explain FILE [--index I]`: prints trajectories with labels, step rewards and
advantages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from advantage_processor.explain import ExplainedAdvantage, explain_credit
from advantage_processor.labels import opening_and_task
from agentevolver.types import NOBODY_ASKED, Attribution, LabelStatus, StepCredit, Trajectory

BAR = 8
TASK_WIDTH = 1000
GROUP_WIDTH = 12
_STATUS_STYLE = {
    LabelStatus.LABELLED: "green",
    LabelStatus.SKIPPED: "yellow",
    LabelStatus.FAILED: "red",
    LabelStatus.OFF: "dim",
}


def overview(trajectories: Sequence[Trajectory]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("index", "trajectory", "task", "outcome", "steps", "labels", "first A", "last A"):
        table.add_column(name, justify="right" if name in ("index", "steps", "first A", "last A") else "left")
    for i, trajectory in enumerate(trajectories):
        advantages, _ = _credit(trajectory)
        ends = (_signed(advantages[0]), _signed(advantages[-1])) if advantages else (Text("-"), Text("-"))
        labels = _flags(trajectory.attribution or NOBODY_ASKED)
        name = f"{trajectory.group_id[:GROUP_WIDTH]}_{trajectory.rollout_id}"
        table.add_row(
            str(i), name, trajectory.task.task_id, _outcome(trajectory), str(len(trajectory.steps)), labels, *ends
        )
    return table


def explanation(trajectory: Trajectory, *, width: int = 400) -> RenderableType:
    """Return a trajectory step by step; `width` limits the characters of an action or observation."""
    attribution = trajectory.attribution or NOBODY_ASKED
    advantages, rewards = _credit(trajectory)
    taken_apart = explain_credit(trajectory.credit) if trajectory.credit is not None else []
    largest = max((abs(value) for value in advantages), default=0.0)
    parts: list[RenderableType] = [_head(trajectory, attribution)]
    for i, step in enumerate(trajectory.steps):
        title = Text.assemble(("step ", "bold"), (str(step.index), "bold"))
        if attribution.good:
            label = (" GOOD ", "black on green") if attribution.good[i] else (" BAD ", "white on red")
            title.append("  ").append(*label)
        if rewards:
            title.append("  reward ").append_text(_signed(rewards[i]))
        if advantages:
            title.append("  advantage ").append_text(_signed(advantages[i])).append(" ").append_text(
                _bar(advantages[i], largest)
            )
        body = Text.assemble((_cut(step.action, width), "cyan"), "\n", (_cut(step.observation, width), "dim"))
        if attribution.analyses and attribution.analyses[i]:
            body.append(f"\n{_cut(attribution.analyses[i], width)}", style="italic")
        if taken_apart and taken_apart[i].outcome is not None:
            body.append(f"\n{_sum(taken_apart[i])}", style="dim")
        parts.append(Panel(body, title=title, title_align="left", border_style="dim"))
    return Group(*parts)


def _head(trajectory: Trajectory, attribution: Attribution) -> Text:
    text = Text.assemble(
        (trajectory.trajectory_id, "bold"),
        f"  {trajectory.task.task_id}  {trajectory.stop_reason.value}  ",
        _outcome(trajectory),
    )
    text.append(f"\n{_cut(opening_and_task(trajectory)[1], TASK_WIDTH)}\n")
    text.append(f"labels: {attribution.status.value}", style=_STATUS_STYLE[attribution.status])
    if attribution.reason:
        text.append(f" ({attribution.reason})")
    if attribution.calls or attribution.cached:
        took = "from the cache" if attribution.cached else f"{attribution.calls} calls, {attribution.seconds:.1f} s"
        text.append(f", {took}", style="dim")
    return text


def _outcome(trajectory: Trajectory) -> Text:
    outcome = trajectory.outcome
    if outcome is None:
        return Text("failed rollout", style="yellow")
    return Text(
        f"{'success' if outcome.success else 'failure'} {outcome.score:.3g}",
        style="green" if outcome.success else "red",
    )


def _credit(trajectory: Trajectory) -> tuple[tuple[float, ...], tuple[float, ...]]:
    credit = trajectory.credit or StepCredit(())
    return credit.advantages, credit.step_rewards or ()


def _sum(one: ExplainedAdvantage) -> str:
    named = ((one.outcome, "outcome"), (one.label, "label"), (one.later, "what comes after"))
    text = " ".join(f"{value:+.3f} {name}" for value, name in named if value is not None)
    text = text if one.scale is None else f"({text}) x {one.scale:.3g} of later stages"
    return f"{text}{'' if one.rest is None else f' {one.rest:+.3f} of later stages'} = {one.advantage:+.3f}"


def _flags(attribution: Attribution) -> Text:
    if not attribution.good:
        return Text(attribution.status.value, style=_STATUS_STYLE[attribution.status])
    return Text.assemble(*(("G", "green") if good else ("B", "red") for good in attribution.good))


def _signed(value: float) -> Text:
    return Text(f"{value:+.3f}", style="green" if value > 0 else "red" if value < 0 else "dim")


def _bar(value: float, largest: float) -> Text:
    length = round(BAR * abs(value) / largest) if largest else 0
    return Text("█" * length, style="green" if value > 0 else "red")


def _cut(text: Any, width: int) -> str:
    # The agent's text may contain terminal control sequences.
    whole = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in str(text))
    return whole if len(whole) <= width else f"{whole[:width]} … {len(whole) - width} more characters"


def main(arguments: Sequence[str] | None = None) -> int:
    from agentevolver.utils.terminal import guard_output

    guard_output()
    parser = argparse.ArgumentParser(prog="python -m advantage_processor", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    explain = commands.add_parser("explain", help="print a trajectory with its labels, step rewards and advantages")
    explain.add_argument("file", type=Path, help="trajectories/step_<n>.jsonl of an experiment")
    explain.add_argument(
        "--index", type=int, help="which trajectory of the file, from 0; without it all of them are listed"
    )
    explain.add_argument("--width", type=int, default=400, help="characters of an action or observation (default 400)")
    explain.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    options = parser.parse_args(arguments)
    try:
        return _explain(options)
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def _explain(options: argparse.Namespace) -> int:
    from advantage_processor.__main__ import explanation, overview
    from agentevolver.utils.files import read_jsonl
    from agentevolver.utils.rich_console import TerminalConsole

    console = TerminalConsole(
        force_terminal=True if options.color == "always" else None,
        no_color=options.color == "never",
        highlight=False,
        soft_wrap=False,
    )
    trajectories = [Trajectory.from_dict(record) for record in read_jsonl(options.file)]
    if options.index is None:
        console.print(overview(trajectories))
        return 0
    if not 0 <= options.index < len(trajectories):
        raise ValueError(
            f"--index {options.index}: {options.file} holds {len(trajectories)} trajectories, 0 to "
            f"{len(trajectories) - 1}"
        )
    console.print(explanation(trajectories[options.index], width=options.width))
    return 0


if __name__ == "__main__":
    sys.exit(main())
