"""Attributor role: GOOD or BAD for each step of a trajectory, from the task, the observations and the outcome.

GOOD steps are changes towards the goal, the first look-up of a needed fact, calls that the site requires before such a
change, and closing a finished task. All others are BAD: refusals, repeats, needless look-ups and changes, closing a
failure. In a failed trajectory only requested changes, and steps whose result was used later, are GOOD.
"""

from __future__ import annotations

import re
from typing import Any

from agentevolver.recipes.offline.teacher.calls import CHANGES, GUARDED, LOOKUPS, NEED_LOGIN, TeacherCall, canonical
from agentevolver.recipes.offline.teacher.goals import Effect, Impossible, goal
from agentevolver.recipes.offline.teacher.intents import Intent
from agentevolver.recipes.offline.teacher.observed import MissingLookup, ObservedEpisode, ObservedStep, see
from agentevolver.recipes.offline.teacher.prompt import NotUnderstood, Prompt, TeacherDraws

Judgement = tuple[bool, str]


def steps(prompt: Prompt, draws: TeacherDraws) -> dict[str, Any]:
    """`attributor/steps`: a label for each requested step."""
    intent, success = prompt.intent(), _is_success(prompt.text("outcome"))
    seen = see(prompt.sections, prompt.steps())
    judged = judge_steps(intent, seen, success=success)
    asked = _asked(prompt, list(dict.fromkeys(step.index for step in seen.steps)))
    entries = []
    for index in asked:
        if index not in judged:
            raise NotUnderstood(f"attributor/steps: step {index} is asked for, and the transcript does not hold it")
        good, why = judged[index]
        if draws.errs(draws.rates.wrong_labels):
            draws.plant("wrong label", step=index, right="GOOD" if good else "BAD")
            good = not good
        entries.append({"index": index, "analysis": why, "label": "GOOD" if good else "BAD"})
    return {"steps": entries}


def _is_success(text: str) -> bool:
    first = re.match(r"\s*(?:outcome: )?(success|failure)\b", text.lower())
    if first is None:
        raise NotUnderstood(f"attributor/steps: <outcome> must begin with success or failure, it is {text[:60]!r}")
    return first[1] == "success"


def _asked(prompt: Prompt, shown: list[int]) -> list[int]:
    text = prompt.sections.get("indices", "").strip()
    if not text:
        return shown
    found = re.fullmatch(r"(\d{1,6})-(\d{1,6})", text)
    if found is None:
        raise NotUnderstood(f"attributor/steps: <indices> must be of the form first-last, it is {text[:40]!r}")
    return list(range(int(found[1]), int(found[2]) + 1))


def judge_steps(intent: Intent, seen: ObservedEpisode, *, success: bool) -> dict[int, Judgement]:
    """Return whether each step deserves credit, and why, by its index."""
    wanted, needed = _wanted(intent, seen)
    judged: dict[int, Judgement] = {}
    earlier: set[TeacherCall] = set()
    for place, step in enumerate(seen.steps):
        # An attempt uses earlier results even if the site refused it for another reason.
        later = [s for s in seen.steps[place + 1 :] if s.call is not None and canonical(s.call) in wanted]
        found = _judge(step, needed, wanted, earlier, later, seen, success=success)
        # A step with several calls deserves credit if one of them does.
        if not judged.get(step.index, (False, ""))[0]:
            judged[step.index] = found
        if step.call is not None and not step.failed:
            earlier.add(step.call)
    return judged


def _wanted(intent: Intent, seen: ObservedEpisode) -> tuple[set[Effect], set[TeacherCall]]:
    try:
        found = goal(intent, seen.facts)
    except MissingLookup as missing:
        return set(), {missing.call}
    except Impossible:
        return set(), set()
    return set(found.effects), set(found.looked)


def _judge(
    step: ObservedStep,
    needed: set[TeacherCall],
    wanted: set[Effect],
    earlier: set[TeacherCall],
    later: list[ObservedStep],
    seen: ObservedEpisode,
    *,
    success: bool,
) -> Judgement:
    call = step.call
    if call is None or step.failed:
        return False, "it was refused and changed nothing"
    if call.tool == "done":
        return success, "it closed what was done" if success else "it closed a wrong result"
    if call.tool in CHANGES:
        asked = canonical(call) in wanted and call not in earlier
        return asked, "it made a change that the task asks for" if asked else "nobody asked for this change"
    if call in earlier:
        return False, "its answer was known"
    if call.tool in LOOKUPS and (call in needed or _tells(call, step, needed, wanted)):
        used = success or bool(later) or not wanted
        return used, "it showed what the task needs" if used else "what it showed was not used"
    follows = [s.call for s in later if s.call is not None]
    # A balance is a look-up that needs a login too.
    after = [s.call for s in seen.steps if s.index > step.index and not s.failed and s.call is not None]
    if (call.tool == "me.pin" or call.tool == "bank.login") and seen.rules.get("login") != "open":
        used = any(c.tool in NEED_LOGIN for c in [*follows, *(c for c in after if c in needed)])
        return used, "the site wants a login for what followed" if used else "the login was not used"
    if call.tool == "doc" and call.args[:1] and call.args[0] in GUARDED and seen.rules.get("guard") != "yes":
        used = any(c.tool == call.args[0] for c in follows)
        return used, "the site wants this manual read first" if used else "the manual was not used"
    if (
        call.tool == "shop.find"
        and any(c.tool == "shop.buy" and c.args[:1] == call.args for c in follows)
        and seen.rules.get("look") != "free"
    ):
        return True, "the site wants it looked up before it is bought"
    return False, "its result was not needed"


def _tells(call: TeacherCall, step: ObservedStep, needed: set[TeacherCall], wanted: set[Effect]) -> bool:
    ids = {arg for effect in wanted for arg in effect[1:] if re.fullmatch(r"[neom]\d+", arg)}
    return bool(ids & set(step.observation.split()))
