"""Judge role: whether a transcript did what a task asks for, from the transcript itself.

A change counts if it was answered with `ok`; claims do not count. The goal is computed from the look-ups of the
transcript and of the verifier's attempt, which has the same start. If these are not enough, a reference solution is
used if there is one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from agentevolver.llm.prompts import read_actions
from agentevolver.recipes.offline.teacher.calls import CHANGES, canonical, read_call
from agentevolver.recipes.offline.teacher.goals import Effect, Impossible, TeacherGoal, goal, tools_of
from agentevolver.recipes.offline.teacher.intents import Intent
from agentevolver.recipes.offline.teacher.observed import MissingLookup, ObservedEpisode, see
from agentevolver.recipes.offline.teacher.prompt import Prompt, TeacherDraws


@dataclass(frozen=True, slots=True)
class JudgeFinding:
    """Verdict on a transcript: the share of requested changes and answer that are there, and the problem."""

    share: float
    problem: str | None
    errors: int
    relevant: bool


def accept(prompt: Prompt, draws: TeacherDraws) -> dict[str, Any]:
    """`judge/accept`: whether a task and its executed reference solution match."""
    intent = prompt.intent()
    prompt.text("opening")
    seen = see(prompt.sections, prompt.steps())
    _learn_from_attempt(prompt, seen)
    finding = find(intent, seen, None)
    problem = finding.problem or (f"{finding.errors} of its calls were refused" if finding.errors else None)
    accepted = problem is None
    if draws.errs(draws.rates.wrong_accepts):
        draws.plant("wrong accept", query=prompt.text("task"), right=accepted)
        accepted = not accepted
    reason = "it does what the task asks for, and nothing else" if problem is None else problem
    return {"reason": reason, "accepted": accepted, "confidence": round(0.8 + 0.15 * draws.rng.random(), 2)}


def grade(prompt: Prompt, draws: TeacherDraws) -> dict[str, Any]:
    """`judge/grade`: 60 to 100 if the goal was reached, 0 to 40 if not, less for errors and waste."""
    intent = prompt.intent()
    steps = prompt.steps()
    seen = see(prompt.sections, steps)
    reference = read_actions(prompt.sections["reference"]) if "reference" in prompt.sections else None
    finding = find(intent, seen, reference)
    achieved, relevant = finding.problem is None, finding.relevant
    if draws.errs(draws.rates.wrong_grades):
        draws.plant("wrong grade", query=prompt.text("task"), right=achieved)
        achieved, relevant = not achieved, True
    waste = finding.errors + _repeats(seen)
    partly = max(1, round(10 + 28 * finding.share) - 3 * waste) if relevant else 0
    score = max(60, 98 - 8 * waste) if achieved else partly
    reason = "every change that was asked for happened" if finding.problem is None else finding.problem
    return {
        "reason": f"{reason}; {waste} needless or refused steps",
        "relevant": relevant,
        "achieved": achieved,
        "score": min(score, 100),
    }


def _learn_from_attempt(prompt: Prompt, seen: ObservedEpisode) -> None:
    if "attempt" not in prompt.sections:
        return
    facts = see(prompt.sections, prompt.steps("attempt")).facts
    for call in facts.answered - seen.facts.answered:
        seen.facts.take(call, facts.look(call))


def find(intent: Intent, seen: ObservedEpisode, reference: list[str] | None) -> JudgeFinding:
    errors = sum(step.failed for step in seen.steps)
    relevant = is_relevant(intent, seen)
    try:
        wanted = goal(intent, seen.facts)
    except Impossible as error:
        return JudgeFinding(0.0, str(error), errors, relevant)
    except MissingLookup as missing:
        if reference is None:
            return JudgeFinding(0.0, f"nothing shows what {missing.call} would have shown", errors, relevant)
        wanted = _of_reference(reference)
    done = seen.net_effects()
    missing_effects, extra = Counter(wanted.effects) - done, done - Counter(wanted.effects)
    right_answer = wanted.answer is None or _same(seen.answer, wanted.answer)
    parts = len(wanted.effects) + (wanted.answer is not None)
    there = len(wanted.effects) - missing_effects.total() + (wanted.answer is not None and right_answer)
    problem = _problem(missing_effects, extra, seen.answer, wanted, right_answer)
    return JudgeFinding(there / parts if parts else 1.0, problem, errors, relevant)


def _problem(
    missing: Counter[Effect], extra: Counter[Effect], given: str | None, wanted: TeacherGoal, right_answer: bool
) -> str | None:
    if missing:
        return f"this did not happen: {' '.join(next(iter(missing)))}"
    if extra:
        return f"this was not asked for: {' '.join(next(iter(extra)))}"
    if given is None:
        return "the episode was not closed"
    if not right_answer:
        return f"the answer is {given or 'missing'}, the observations say {wanted.answer}"
    if not wanted.effects and wanted.answer is None:
        return "nothing needed to be done"
    return None


def _same(given: str | None, wanted: str) -> bool:
    return given is not None and given.strip().rstrip(".").strip().lower() == wanted.lower()


def _of_reference(reference: list[str]) -> TeacherGoal:
    calls = [call for action in reference if (call := read_call(action)) is not None]
    closing = next((call for call in calls if call.tool == "done"), None)
    answer = " ".join(closing.args) if closing is not None and closing.args else None
    return TeacherGoal([canonical(call) for call in calls if call.tool in CHANGES], answer)


def is_relevant(intent: Intent, seen: ObservedEpisode) -> bool:
    words = intent.words
    apps = {tool.partition(".")[0] for tool in tools_of(intent)} | {intent.kind.partition("_")[0]}
    calls = [step.call for step in seen.steps if step.call is not None and step.call.tool != "done"]
    return any(words & set(call.args) or call.app in apps for call in calls)


def _repeats(seen: ObservedEpisode) -> int:
    calls = [step.call for step in seen.steps if not step.failed]
    return len(calls) - len(set(calls))
