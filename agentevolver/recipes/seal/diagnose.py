"""Diagnosis of failed trajectories: the step, the tool and the kind of each fault. It is never a score.

Faults come from the environment's refusals (`PlainFormat.fault`), else from a comparison with the task's reference
solution, else the only diagnosis is the wrong end. There is one diagnosis for each tool and kind, in the order of
steps. A trajectory that succeeded or has no grade has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentevolver.types import Diagnosis, StopReason, Trajectory
from task_manager.actions import PlainFormat
from task_manager.tasks import solution_of

# Kinds of faults. `missing_call`: a call was needed earlier, or never made; `no_recovery`: a refused call repeated; the
# last two are for episodes without another fault.
KINDS = ("malformed", "wrong_argument", "missing_call", "refused", "no_recovery", "out_of_steps", "wrong_outcome")
WORDS = 160


def diagnose(trajectory: Trajectory, fmt: PlainFormat) -> tuple[Diagnosis, ...]:
    if trajectory.outcome is None or trajectory.outcome.success or not trajectory.steps:
        return ()
    for found in (_said(trajectory, fmt), _missed(trajectory, fmt)):
        first = {(one.tool, one.kind): one for one in reversed(list(found))}
        if first:
            return tuple(sorted(first.values(), key=lambda one: one.step))
    return (_ended(trajectory, fmt),)


@dataclass(frozen=True, slots=True)
class _Refusal:
    action: str
    words: str


def _said(trajectory: Trajectory, fmt: PlainFormat) -> Iterator[Diagnosis]:
    refused: set[_Refusal] = set()
    for place, step in enumerate(trajectory.steps):
        if step.kind != "action":
            continue
        found = fmt.fault(step.action, step.observation)
        if found is None:
            continue
        kind, words = found
        refusal = _Refusal(step.action.strip(), words)
        yield Diagnosis(place, "no_recovery" if refusal in refused else kind, fmt.signature(step.action), words[:WORDS])
        refused.add(refusal)


def _missed(trajectory: Trajectory, fmt: PlainFormat) -> Iterator[Diagnosis]:
    """Yield the reference calls with a tool that was never called; if there are none, those with other arguments."""
    taken = [step.action.strip() for step in trajectory.steps if step.kind == "action"]
    tools = {fmt.signature(action) for action in taken}
    last = len(trajectory.steps) - 1
    wanted = [action for action in solution_of(trajectory.task) if fmt.answer_of(action) is None]
    missing = [action for action in wanted if fmt.signature(action) not in tools]
    kind = "missing_call" if missing else "wrong_argument"
    for action in missing or [action for action in wanted if action.strip() not in taken]:
        yield Diagnosis(last, kind, fmt.signature(action), f"the reference has {action.strip()}"[:WORDS])


def _ended(trajectory: Trajectory, fmt: PlainFormat) -> Diagnosis:
    acted = [place for place, step in enumerate(trajectory.steps) if step.kind == "action"] or [0]
    # If an answer ended the episode, the fault lies in the action before it.
    said = fmt.answer_of(trajectory.steps[acted[-1]].action) is not None
    place = acted[-2] if said and len(acted) > 1 else acted[-1]
    kind = "wrong_outcome" if trajectory.stop_reason is StopReason.FINISHED else "out_of_steps"
    reason = trajectory.outcome.reason if trajectory.outcome is not None else ""
    return Diagnosis(place, kind, fmt.signature(trajectory.steps[place].action), reason[:WORDS])
