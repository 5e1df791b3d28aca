"""Answers to the prompts of all roles, from what a world's player knows (`world.World`), or from a teacher of its
own."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentevolver.llm.prompts import PromptError, StepText, read_sections, read_steps, read_task
from tests.answers import without_examples
from tests.llm.dressing import Answer, ToolCall
from tests.llm.minds.world import Goal, Lesson, Teacher, World
from tests.llm.minds.worlds import WORLDS


class NotUnderstood(ValueError):
    """A prompt of a world or a role that no mind knows."""


@dataclass(frozen=True, slots=True)
class Thought:
    """An answer, whose prompt it is for, and the native tool call that the answer's action would be."""

    task: str
    answer: Answer
    call: ToolCall | None = None


@dataclass
class Minds:
    """All roles' minds. `wrong` is the share of proposed tasks and experiences that are wrong on purpose."""

    wrong: float = 0.15
    seed: int = 0

    def answer(self, messages: list[dict[str, Any]], rng: random.Random) -> Thought:
        """Return what an honest model says; raises NotUnderstood."""
        messages = without_examples(messages)
        try:
            task = read_task(str(messages[0]["content"]))
            sections = read_sections(str(messages[1]["content"]))
            prompt = _Prompt(task, sections, rng)
            teacher = prompt.world.teacher(self.wrong, self.seed)
            if teacher is not None:
                answer = _taught(teacher, messages[:2], rng.randrange(2**31))
            else:
                handler = _HANDLERS.get(task)
                if handler is None:
                    raise NotUnderstood(f"nobody here plays {task}")
                answer = handler(prompt, self.wrong)
        except (PromptError, LookupError) as error:
            raise NotUnderstood(f"{type(error).__name__}: {error}") from error
        if not isinstance(answer, dict) or "action" not in answer:
            return Thought(task, answer)
        action = str(answer["action"])
        asks_for_json = '"action"' in str(messages[0]["content"])
        return Thought(task, answer if asks_for_json else action, prompt.world.call(action))


def _taught(teacher: Teacher, messages: list[dict[str, Any]], seed: int) -> Answer:
    try:
        text = teacher(messages, seed)
    except ValueError as error:
        raise NotUnderstood(str(error)) from error
    bare = text.removeprefix("Here it is:\n```json\n").removesuffix("\n```")
    try:
        answer = json.loads(bare)
    except ValueError:
        return text
    return answer if isinstance(answer, dict) else text


class _Prompt:
    """A prompt as a player reads it."""

    def __init__(self, task: str, sections: dict[str, str], rng: random.Random) -> None:
        self.task, self.sections, self.rng = task, sections, rng
        self.opening = sections.get("opening", "")
        self.world = _world(sections)
        self.steps = read_steps(sections.get("transcript", ""))

    def goal(self, steps: Sequence[StepText] | None = None) -> Goal | None:
        """What the task asks for."""
        return self.world.goal_of(self.sections["task"], self.opening, self.steps if steps is None else steps)


def _world(sections: dict[str, str]) -> World:
    text = "\n".join(
        sections.get(name, "") for name in ("opening", "transcript", "better", "task", "experience", "tools")
    )
    for world in WORLDS:
        if world.recognises(text):
            return world
    raise NotUnderstood("this is no world that is known here")


def _explore(prompt: _Prompt, wrong: float) -> Answer:
    thought, action = prompt.world.explore(prompt.opening, prompt.steps, prompt.rng)
    return {"thought": thought, "action": action}


def _tasks(prompt: _Prompt, wrong: float) -> Answer:
    world, steps = prompt.world, prompt.steps
    existing = set(prompt.sections.get("existing", "").replace("- ", "").splitlines())
    made: list[dict[str, Any]] = []
    for goal in world.goals(prompt.opening, steps):
        found = world.matches(goal, steps)
        if found is None or goal.query in existing or any(goal.query == task["query"] for task in made):
            continue
        if (
            any(world.changes(step.action) and not world.refused(step) for step in steps if step.index < found[0].index)
            and goal.asks
        ):
            continue  # what was read may have been another thing at the start
        answer = world.answer(goal, [step.observation for step in found]) if goal.asks else None
        if goal.asks and answer is None:
            continue
        solution = world.solution(goal, answer)
        if prompt.rng.random() < wrong:
            solution = (
                made[-1]["solution"] if made and prompt.rng.random() < 0.3 else world.wrong(goal, solution, prompt.rng)
            )
        made.append({"query": goal.query, "solution": solution, "confidence": 0.9})
    prompt.rng.shuffle(made)
    return {"tasks": made[: int(prompt.sections.get("count", "5"))]}


def _profile(prompt: _Prompt, wrong: float) -> Answer:
    entity = {"name": "thing", "description": "what the world holds", "attrs": {"name": "its name"}, "opts": []}
    entity["opts"] = [{"name": "change", "description": "change it"}]
    preference = {"num_entities": 1, "num_opts": 2, "relation_difficulty": 1}
    return {
        "name": "Ada",
        "background": "uses it",
        "entities": [entity],
        "task_preference": preference,
        "rubrics": ["one clear outcome"],
    }


def _solve(prompt: _Prompt, wrong: float) -> Answer:
    world, steps = prompt.world, prompt.steps
    goal = prompt.goal()
    if goal is None:
        raise NotUnderstood(f"the task {prompt.sections['task'][:100]!r} is in words that nobody here uses")
    done = [world.canonical(step.action) for step in steps if not world.refused(step)]
    for action in goal.actions:
        if world.canonical(action) not in done:
            return {"thought": "This is the next thing to do.", "action": action}
        done.remove(world.canonical(action))
    if not goal.actions:
        thought, action = world.explore(prompt.opening, steps, prompt.rng)
        return {"thought": thought, "action": action}
    found = world.matches(goal, steps)
    answer = world.answer(goal, [step.observation for step in found]) if goal.asks and found is not None else None
    return {"thought": "That was all.", "action": world.solution(goal, answer)[-1]}


def _accept(prompt: _Prompt, wrong: float) -> Answer:
    goal = prompt.goal()
    is_right = goal is not None and prompt.world.holds(goal, prompt.steps)
    return {"reason": "what was done is compared with what was asked", "accepted": is_right, "confidence": 0.9}


def _grade(prompt: _Prompt, wrong: float) -> Answer:
    goal = prompt.goal()
    is_right = goal is not None and prompt.world.holds(goal, prompt.steps)
    reason = "what was done is compared with what was asked"
    return {"reason": reason, "relevant": True, "achieved": is_right, "score": 90 if is_right else 20}


def _label(prompt: _Prompt, wrong: float) -> Answer:
    world, goal = prompt.world, prompt.goal()
    indices = [step.index for step in prompt.steps]
    if wanted := prompt.sections.get("indices"):
        first, _, last = wanted.partition("-")
        indices = list(range(int(first), int(last or first) + 1))
    succeeded = prompt.sections["outcome"].startswith("success")
    good = world.credits(goal, prompt.steps, succeeded=succeeded)
    return {
        "steps": [
            {"index": i, "analysis": "by what it did", "label": "GOOD" if good.get(i) else "BAD"} for i in indices
        ]
    }


def _learn(prompt: _Prompt, wrong: float) -> Answer:
    lessons = list(prompt.world.lessons)
    prompt.rng.shuffle(lessons)
    return {"experiences": [_experience(lesson, prompt.rng.random() < wrong) for lesson in lessons[:2]]}


def _experience(lesson: Lesson, is_wrong: bool) -> dict[str, Any]:
    content = lesson.opposite if is_wrong else lesson.content
    return {"when_to_use": lesson.when, "content": content, "scope": "", "tags": ["how", "order"], "confidence": 0.9}


def _validate(prompt: _Prompt, wrong: float) -> Answer:
    entries = re.split(r"^\[\d+\]$", prompt.sections["experience"], flags=re.MULTILINE)[1:]
    judgements = []
    for number, entry in enumerate(entries, 1):
        is_true = any(lesson.content in entry for lesson in prompt.world.lessons)
        reason = "compared with how this world is"
        judgements.append({"number": number, "reason": reason, "valid": is_true, "score": 0.9 if is_true else 0.1})
    return {"judgements": judgements}


def _rewrite(prompt: _Prompt, wrong: float) -> Answer:
    told = [lesson.content for lesson in prompt.world.lessons if lesson.content in prompt.sections["experience"]]
    return {"text": " ".join(told)}


def _rerank(prompt: _Prompt, wrong: float) -> Answer:
    count = sum(line.startswith("[") for line in prompt.sections["experience"].splitlines())
    return {"order": list(range(1, count + 1))}


def _context(prompt: _Prompt, wrong: float) -> Answer:
    return "\n".join(f"{step.action} gave {step.observation[:80]}" for step in prompt.steps[-5:])


_HANDLERS = {
    "explorer/act": _explore,
    "synthesiser/tasks": _tasks,
    "synthesiser/profile": _profile,
    "verifier/solve": _solve,
    "judge/accept": _accept,
    "judge/grade": _grade,
    "attributor/steps": _label,
    "summariser/success": _learn,
    "summariser/failure": _learn,
    "summariser/comparative": _learn,
    "summariser/validate": _validate,
    "summariser/rewrite": _rewrite,
    "summariser/rerank": _rerank,
    "summariser/context": _context,
}
