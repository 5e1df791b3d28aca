"""The keeper of notes for an agent whose context is too small: what it is asked now, what it learnt of the site, what
it did so far.

Lines as the seed policy knows them: `tip` and what the site wants, `so far` and the calls that worked for the present
    task with their
answers, and at the end the task itself.
"""

from __future__ import annotations

from agentevolver.builtin.teacher.observed import see
from agentevolver.builtin.teacher.prompt import Draws, Prompt
from agentevolver.builtin.teacher.rules import LINES, RULES, rules_in
from agentevolver.llm.prompts import StepText

# What an agent takes for granted that was told nothing.
_USUAL = {"pay": "name", "login": "open", "plan": "name", "look": "free"}
_TIP, _SO_FAR = "tip ", "so far "
_MOST_CALLS = 4


def context(prompt: Prompt, draws: Draws) -> str:
    """`summariser/context`: notes on the steps of the transcript and on the earlier notes, as plain text."""
    steps, notes = prompt.steps(), prompt.sections.get("summary", "").splitlines()
    known = rules_in(next((line for line in notes if line.startswith(_TIP)), ""))
    known |= see(prompt.sections, steps).rules.values
    tips = [LINES[rule, known[rule]] for rule in RULES if known.get(rule) not in (None, _USUAL.get(rule))]
    before = [line for line in notes if not line.startswith((_TIP, _SO_FAR))] or prompt.text("opening").splitlines()
    task, worked = before[-1] if before else "", []
    if so_far := next((line for line in notes if line.startswith(_SO_FAR)), ""):
        worked = so_far.removeprefix(_SO_FAR).split(" ; ")
    for step in steps:
        if _ends_a_task(step):
            task, worked = step.observation.strip(), []
        elif step.observation and not step.observation.startswith("err"):
            worked.append(f"{step.action.strip()} : {step.observation.strip()}")
    lines = [_TIP + " ; ".join(tips)] if tips else []
    lines += [_SO_FAR + " ; ".join(worked[-_MOST_CALLS:])] if worked else []
    return "\n".join([*lines, task])


def _ends_a_task(step: StepText) -> bool:
    return step.action.split()[:1] == ["done"] and not step.observation.startswith("err")
