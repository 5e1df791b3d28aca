"""Summariser role: lessons about a site from transcripts, and notes for an agent whose context is too small.

Lessons are short lines, worded as the seed policy was taught to follow them. A lesson needs an observation that shows
it: an error with its rule, a manual, or a call that worked. Notes are `tip` with the site's rules, `so far` with the
calls that worked in the present task and their answers, and last the task itself.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from agentevolver.llm.prompts import StepText
from agentevolver.recipes.offline.teacher.goals import tools_of
from agentevolver.recipes.offline.teacher.intents import read_intent
from agentevolver.recipes.offline.teacher.observed import ObservedEpisode, see
from agentevolver.recipes.offline.teacher.prompt import NotUnderstood, Prompt, TeacherDraws
from agentevolver.recipes.offline.teacher.rules import OCCASIONS, RULES, concerns, rules_in
from env_service.environments.pocket.wordings import PHRASES

_SURE = {"error": 0.9, "manual": 0.85, "success": 0.7}
_GENERAL = {
    "do not repeat a call": "a call was refused or its answer is known",
    "use the id that find shows": "delete , move or return something by its id",
    "call done at the end": "every task",
}


def success(prompt: Prompt, draws: TeacherDraws) -> dict[str, Any]:
    """`summariser/success`: the site's rules that were learnt."""
    return {"experiences": _lessons(_seen(prompt, "transcript"), draws)}


def failure(prompt: Prompt, draws: TeacherDraws) -> dict[str, Any]:
    """`summariser/failure`: the same, and mistakes that do not depend on the site."""
    seen = _seen(prompt, "transcript")
    return {"experiences": [*_lessons(seen, draws), *_faults(seen)]}


def comparative(prompt: Prompt, draws: TeacherDraws) -> dict[str, Any]:
    """`summariser/comparative`: rules that the better attempt knew and the worse one violated or never learnt."""
    better, worse = _seen(prompt, "better"), _seen(prompt, "worse")
    erred = {rule for rule, evidence in worse.rules.evidence.items() if evidence.by == "error"}
    told = [rule for rule, value in better.rules.values.items() if rule in erred or worse.rules.get(rule) != value]
    return {
        "experiences": [
            _lesson(better, rule, better.rules.values[rule], draws)
            for rule in sorted(told, key=lambda r: r not in erred)
        ][:2]
    }


def validate(prompt: Prompt, draws: TeacherDraws) -> dict[str, Any]:
    """`summariser/validate`: which experiences are true, as far as the transcript shows."""
    known: dict[str, str] = {}
    entries = _experiences(prompt)
    if "transcript" in prompt.sections:
        known = _seen(prompt, "transcript").rules.values
    return {"judgements": [{"number": entry["number"], **_judged(entry["content"], known)} for entry in entries]}


def _judged(content: str, known: dict[str, str]) -> dict[str, Any]:
    claims = rules_in(content)
    if not claims and content.strip() not in _GENERAL:
        return {"reason": "it tells nothing about how tools are used here", "valid": False, "score": 0.1}
    wrong = [rule for rule, value in claims.items() if known.get(rule, value) != value]
    shown = [rule for rule in claims if rule in known]
    if wrong:
        return {"reason": f"the transcript shows otherwise for {wrong[0]}", "valid": False, "score": 0.1}
    if shown:
        return {"reason": "the transcript shows it", "valid": True, "score": 0.9}
    return {"reason": "it may be so; nothing here shows it", "valid": True, "score": 0.6}


def rewrite(prompt: Prompt, draws: TeacherDraws) -> dict[str, Any]:
    """`summariser/rewrite`: the lines that hold at this site and concern this task, joined; the majority decides."""
    entries = [entry for entry, fits in _ranked(prompt) if fits > 0]
    votes: Counter[tuple[str, str]] = Counter()
    general = []
    for entry in entries:
        claims = rules_in(entry["content"])
        votes.update(claims.items())
        if not claims and entry["content"].strip() in _GENERAL:
            general.append(entry["content"].strip())
    best = {
        rule: max((n, v) for (r, v), n in votes.items() if r == rule)[1]
        for rule in RULES
        if any(r == rule for r, _ in votes)
    }
    return {"text": " ; ".join([PHRASES[rule, value] for rule, value in best.items()] + list(dict.fromkeys(general)))}


def rerank(prompt: Prompt, draws: TeacherDraws) -> dict[str, Any]:
    """`summariser/rerank`: experiences that concern this task first; those of other sites are left out."""
    ranked = sorted(((entry, fits) for entry, fits in _ranked(prompt) if fits > 0), key=lambda item: -item[1])
    return {"order": [entry["number"] for entry, _ in ranked]}


def _seen(prompt: Prompt, name: str) -> ObservedEpisode:
    if prompt.task != "summariser/validate":
        prompt.text("opening")
    return see(prompt.sections, prompt.steps(name))


def _lessons(seen: ObservedEpisode, draws: TeacherDraws) -> list[dict[str, Any]]:
    lessons = [_lesson(seen, rule, value, draws) for rule, value in seen.rules.values.items()]
    return sorted(lessons, key=lambda lesson: -float(lesson["confidence"]))


def _lesson(seen: ObservedEpisode, rule: str, value: str, draws: TeacherDraws) -> dict[str, Any]:
    by = seen.rules.evidence[rule].by
    if draws.errs(draws.rates.wrong_experiences):
        right, value = value, next(other for other in RULES[rule] if other != value)
        draws.plant(
            "wrong experience", scope=f"site {seen.site}", content=PHRASES[rule, value], right=PHRASES[rule, right]
        )
    place = f"site {seen.site}" if seen.site else ""
    return {
        "when_to_use": f"{place + ' : ' if place else ''}{OCCASIONS[rule]}",
        "content": PHRASES[rule, value],
        "scope": place,
        "tags": [rule, by],
        "confidence": _SURE[by],
    }


def _faults(seen: ObservedEpisode) -> list[dict[str, Any]]:
    calls = [step.call for step in seen.steps if step.call is not None]
    found = []
    if len(calls) != len(set(calls)):
        found.append("do not repeat a call")
    if any("no such id" in step.observation for step in seen.steps):
        found.append("use the id that find shows")
    if seen.steps and seen.answer is None:
        found.append("call done at the end")
    return [
        {"when_to_use": _GENERAL[line], "content": line, "scope": "", "tags": ["general"], "confidence": 0.6}
        for line in found
    ]


def _experiences(prompt: Prompt) -> list[dict[str, Any]]:
    text = prompt.text("experience")
    parts = re.split(r"^\[(\d+)\]\s*", text, flags=re.MULTILINE)
    numbered = list(zip(parts[1::2], parts[2::2], strict=True)) or [("0", text)]
    found = []
    for number, body in numbered:
        match = re.search(r"when_to_use: ?(.*?)\ncontent: ?(.*)", body, re.DOTALL)
        if match is None:
            raise NotUnderstood(
                f"{prompt.task}: each entry of <experience> must have the lines 'when_to_use: ' and 'content: '"
            )
        found.append({"number": int(number), "when_to_use": match[1].strip(), "content": match[2].strip()})
    return found


def _ranked(prompt: Prompt) -> list[tuple[dict[str, Any], float]]:
    """Return the experiences with how well they fit: 0 for another site's, more if they concern the task's kind."""
    site = re.search(r"\bsite (k\d+)\b", prompt.text("opening"))
    intent = read_intent(prompt.text("task"))
    tools = set(tools_of(intent)) if intent is not None else set()
    ranked = []
    for entry in _experiences(prompt):
        held = re.search(r"\bsite (k\d+)\b", f"{entry['when_to_use']} {entry['content']}")
        elsewhere = held is not None and (site is None or held[1] != site[1])
        claims = rules_in(entry["content"])
        concerned = not claims or not tools or any(concerns(rule, tools) for rule in claims)
        ranked.append((entry, 0.0 if elsewhere else 1.0 + concerned))
    return ranked


# What an agent assumes without notes.
_USUAL = {"pay": "name", "login": "open", "plan": "name", "look": "free"}
_TIP, _SO_FAR = "tip ", "so far "
# Calls that notes keep. Goals with links keep (nearly) all: the last link may need what the first calls showed.
_MOST_CALLS, _MOST_CALLS_OF_A_GOAL = 4, 30


def context(prompt: Prompt, draws: TeacherDraws) -> str:
    """`summariser/context`: new notes from the transcript's steps and the earlier notes, as plain text."""
    steps, notes = prompt.steps(), prompt.sections.get("summary", "").splitlines()
    known = rules_in(next((line for line in notes if line.startswith(_TIP)), ""))
    known |= see(prompt.sections, steps).rules.values
    tips = [PHRASES[rule, known[rule]] for rule in RULES if known.get(rule) not in (None, _USUAL.get(rule))]
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
    intent = read_intent(task)
    most = _MOST_CALLS_OF_A_GOAL if intent is not None and intent.links else _MOST_CALLS
    lines += [_SO_FAR + " ; ".join(worked[-most:])] if worked else []
    return "\n".join([*lines, task])


def _ends_a_task(step: StepText) -> bool:
    return step.action.split()[:1] == ["done"] and not step.observation.startswith("err")
