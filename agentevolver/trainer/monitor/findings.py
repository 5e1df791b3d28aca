"""Problems of a finished run that its scores do not show: nothing measured, no learning signal, cut replies, failed
roles.

Read from the run's folder. Keys that an earlier release did not write are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentevolver.trainer.monitor.measured import Measured
from agentevolver.trainer.monitor.results import measured_of, measured_rollouts, records
from agentevolver.types import Trajectory
from agentevolver.utils.files import open_lines, parse, written

Records = Sequence[Mapping[str, Any]]

MOSTLY = 0.5
_DOCTOR = "try the model with `agentevolver doctor FILE`, or switch the role off"
# What is said of a role, the metric that counts its failures, and the prefixes of those that count its results.
_ROLES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("the judge labelled no rollout and failed on {}", "prm/failed", ("prm/labelled",)),
    (
        "extraction gave no experience and failed on {} calls",
        "exp_manager/distil/failed_extraction",
        ("exp_manager/distil/extracted_",),
    ),
    (
        "the summariser judged no experience and failed on {}",
        "exp_manager/distil/failed_validation",
        ("exp_manager/distil/valid", "exp_manager/distil/invalid"),
    ),
    ("no round of synthesis made a task, of {}", "questioning/empty_rounds", ("questioning/rounds_with_tasks",)),
)
# These count since the start of the process, the others count a step.
_TOTALS = ("exp_manager/distil/", "questioning/")


def nothing_measured(folder: Path) -> str | None:
    """Return why no training rollout acted, or none of the last validation; None if some did."""
    found = list(records(folder))
    trained = [record for record in found if "rollout/never_acted" in record]
    total = sum(map(measured_rollouts, trained), Measured())
    if total.unmeasured:
        why = _reason(folder / "trajectories", trained[-1], total)
        return f"no rollout of {len(trained)} training steps acted, the policy learnt nothing; in the last one {why}"
    step, sources = last_validation(found)
    whole = sum(sources.values(), Measured())
    if whole.unmeasured:
        return (
            f"the validation of step {step} measured nothing: {_reason(folder / 'validation', {'step': step}, whole)}"
        )
    return None


def last_validation(found: Records) -> tuple[int, dict[str, Measured]]:
    """Return step and counts (by source) of the last validation; (0, {}) if there is none."""
    each = ((int(record["step"]), measured_of(record)) for record in reversed(found))
    return next(((step, sources) for step, sources in each if sources), (0, {}))


def unmeasured_sources(folder: Path) -> list[str]:
    """Return the sources of the last validation in which no rollout acted."""
    return [source for source, own in last_validation(list(records(folder)))[1].items() if own.unmeasured]


def findings(folder: Path) -> list[str]:
    """Return the problems, one sentence each."""
    found, told = list(records(folder)), []
    if (problem := nothing_measured(folder)) is not None:
        told.append(problem)
    elif unmeasured := unmeasured_sources(folder):
        told.append(f"the last validation measured nothing on {', '.join(unmeasured)}: no rollout acted there")
    signals = _values(found, "rollout/signal")
    if signals and not any(signals) and problem is None:
        told.append(
            f"none of {len(signals)} training steps had a signal, all rollouts of every task scored alike: "
            "docs/troubleshooting.md#it-runs-but"
        )
    shares = _values(found, "rollout/truncated_replies")
    if shares and (share := sum(shares) / len(shares)) > MOSTLY:
        told.append(f"{share:.0%} of the replies were cut: raise actor_rollout_ref.rollout.response_length")
    for words, bad, good in _ROLES:
        failed, done = _count(found, (bad,), exact=True), _count(found, good)
        if failed and not done:
            told.append(f"{words.format(int(failed))}: {_DOCTOR}")
    sizes = _values(found, "exp_manager/pool_size")
    if sizes and not sizes[-1] and _count(found, ("exp_manager/distil/groups",), exact=True):
        told.append("the pool of experience is empty, so no rollout was guided")
    return told


def _values(found: Records, name: str) -> list[float]:
    return [float(record[name]) for record in found if name in record]


def _count(found: Records, prefixes: tuple[str, ...], *, exact: bool = False) -> float:
    names = {name for record in found for name in record if (name in prefixes if exact else name.startswith(prefixes))}
    values = {name: _values(found, name) for name in names}
    return sum(max(own) if name.startswith(_TOTALS) else sum(own) for name, own in values.items())


def _reason(folder: Path, record: Mapping[str, Any], counted: Measured) -> str:
    """Return the problem with causes from the step's trajectories. If those are gone, return only the counts."""
    path = written(folder / f"step_{record['step']}.jsonl")
    try:
        if path is not None:
            with open_lines(path) as lines:
                read = (parse(line) for line in lines)
                own = Measured.of(Trajectory.from_dict(one) for one in read if one is not None)
            return own.problem() or counted.remark()
    except (OSError, EOFError, ValueError):
        pass
    return counted.remark()
