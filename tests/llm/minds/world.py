"""A world as its players know it: the queries that can be asked, the actions that fulfil them, and what counts as
having done so."""

from __future__ import annotations

import json
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agentevolver.llm.prompts import StepText

Steps = Sequence[StepText]
Teacher = Callable[[list[dict[str, Any]], int], str]
"""`function(messages, seed) -> reply`; raises ValueError for what it does not understand."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a query asks for.

    `actions` are what it takes up to the closing one; `asks`: whether an answer is wanted, which follows from what the
    actions show;
    `changes`: whether the world is another one afterwards; `kind` names the sort of task.
    """

    kind: str
    query: str
    actions: tuple[str, ...]
    asks: bool = False
    changes: bool = False


@dataclass(frozen=True, slots=True)
class Lesson:
    """Something true about a world that helps, and what would be its opposite."""

    when: str
    content: str
    opposite: str


class World(ABC):
    """The base of the worlds' players. Text is compared by `canonical`, so that another spelling of an action is the
    same action."""

    env_type: ClassVar[str]
    lessons: ClassVar[tuple[Lesson, ...]] = ()

    @abstractmethod
    def recognises(self, opening: str) -> bool:
        """Whether an opening is one of this world's."""

    @abstractmethod
    def goals(self, opening: str, steps: Steps) -> list[Goal]:
        """Return goals that can be pursued in a world with this opening, after what was seen; the same ones for the
        same input."""

    @abstractmethod
    def goal_of(self, query: str, opening: str, steps: Steps) -> Goal | None:
        """Return what a query asks for, None for words that nobody here would use."""

    @abstractmethod
    def answer(self, goal: Goal, observations: Sequence[str]) -> str | None:
        """Return the answer to a goal that asks, from what its actions were answered with; None if they do not tell."""

    @abstractmethod
    def closing(self, answer: str | None) -> str | None:
        """Return the action that ends an episode, with an answer or without one; None where none is written."""

    @abstractmethod
    def answered(self, action: str) -> str | None:
        """Return the answer that an action gives when it ends the episode ("" for none), None if it does not end it."""

    @abstractmethod
    def right(self, seed_task_id: str, query: str, solution: Sequence[str]) -> bool:
        """Whether a solution does what its query asks in the very world of a seed task, carried out by the world's own
        code."""

    def teacher(self, wrong: float, seed: int) -> Teacher | None:
        """Return who answers in this world in place of what follows from its goals, or None."""
        return None

    def solution(self, goal: Goal, answer: str | None) -> list[str]:
        """Return the actions that fulfil a goal, the closing one included where the goal's own do not end the
        episode."""
        closing = self.closing(answer)
        return [*goal.actions, *([closing] if closing is not None else [])]

    def first_look(self, steps: Steps) -> str | None:
        """Return what has to be looked at before goals can be known, None if nothing has."""
        return None

    def explore(self, opening: str, steps: Steps, rng: random.Random) -> tuple[str, str]:
        """Return a thought and the next action of somebody who finds out what can be done: goals are pursued one after
        the other."""
        if (look := self.first_look(steps)) is not None:
            return "First I look around.", look
        goals = self.goals(opening, steps)
        said = [self.canonical(step.action) for step in steps]
        for goal in goals:
            wanted = [self.canonical(action) for action in goal.actions]
            for length in range(min(len(wanted) - 1, len(said)), 0, -1):
                if said[-length:] == wanted[:length] and not self.refused(steps[-1]):
                    return f"I go on with this: {goal.kind}.", goal.actions[length]
        new = [goal for goal in goals if self.canonical(goal.actions[0]) not in said] or goals
        goal = rng.choice(new)
        return f"I try something else: {goal.kind}.", goal.actions[0]

    def canonical(self, action: str) -> str:
        """Return what an action comes to, whatever its spelling."""
        return action.strip()

    def refused(self, step: StepText) -> bool:
        """Whether the world did not carry a step out."""
        return False

    def changes(self, action: str) -> bool:
        """Whether an action may change the world."""
        return True

    def call(self, action: str) -> tuple[str, dict[str, Any]] | None:
        """Return an action as a native tool call, as a model that was trained on such would write it."""
        return None

    def is_true(self, content: str, seed_task_id: str) -> bool:
        """Whether an experience's content is so in the world of a seed task."""
        return any(lesson.content in content for lesson in self.lessons)

    def wrong(self, goal: Goal, solution: Sequence[str], rng: random.Random) -> list[str]:
        """Return a solution that does not do what the goal asks: a step is missing, or the answer is another."""
        *acts, last = solution
        if goal.asks:
            return [*acts, self.closing(other_answer(self.answered(last) or "")) or last]
        return [*acts[:-1], last]

    def matches(self, goal: Goal, steps: Steps) -> list[StepText] | None:
        """Return the steps that carried a goal's actions out one after the other, None if that did not happen."""
        wanted = [self.canonical(action) for action in goal.actions]
        said = [self.canonical(step.action) for step in steps]
        for start in range(len(said) - len(wanted) + 1):
            found = list(steps[start : start + len(wanted)])
            if said[start : start + len(wanted)] == wanted and not any(map(self.refused, found)):
                return found
        return None

    def holds(self, goal: Goal, steps: Steps) -> bool:
        """Whether a finished transcript did what a goal asks, and changed nothing else."""
        acts = [step for step in steps if self.answered(step.action) is None]
        wanted = [self.canonical(action) for action in goal.actions]
        done = [step for step in acts if not self.refused(step)]
        if [self.canonical(s.action) for s in done if self.changes(s.action)] != [w for w in wanted if self.changes(w)]:
            return False
        closed = [answer for step in steps if (answer := self.answered(step.action)) is not None]
        if self.closing(None) is not None and not closed:
            return False
        if not goal.asks:
            return True
        found = self.matches(goal, done)
        right = self.answer(goal, [step.observation for step in found]) if found is not None else None
        return right is not None and bool(closed) and same(closed[-1], right)

    def credits(self, goal: Goal | None, steps: Steps, *, succeeded: bool) -> dict[int, bool]:
        """Return whether each step deserves credit: it was carried out and the goal needs it, or it closed what was
        right."""
        wanted = [self.canonical(action) for action in goal.actions] if goal is not None else []
        out: dict[int, bool] = {}
        for step in steps:
            name = self.canonical(step.action)
            if self.answered(step.action) is not None:
                out[step.index] = succeeded
            else:
                out[step.index] = name in wanted and not self.refused(step)
                if out[step.index]:
                    wanted.remove(name)
        return out


def same(left: str, right: str) -> bool:
    """Compare answers up to case, space and a closing full stop."""
    return left.strip().rstrip(".").casefold() == right.strip().rstrip(".").casefold()


def other_answer(answer: str) -> str:
    """Return another answer of the same kind."""
    if re.fullmatch(r"-?\d+", answer):
        return str(int(answer) + 1)
    try:
        return f"{float(answer) + 1:g}"
    except ValueError:
        return f"not {answer}"


TOOL_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
TOOL_RESPONSE = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


def calling(name: str, /, **arguments: Any) -> str:
    """Return an action of the worlds with function calls."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def called(action: str) -> tuple[str, dict[str, Any]] | None:
    """Return name and arguments of the one function call in an action, None if there is not exactly one."""
    found = TOOL_CALL.findall(action)
    try:
        value = json.loads(found[0]) if len(found) == 1 else None
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("arguments"), dict):
        return None
    return str(value.get("name")), value["arguments"]


def response(observation: str) -> str:
    """Return the text of the first tool response of an observation, "" if there is none."""
    found = TOOL_RESPONSE.search(observation)
    return found[1] if found is not None else ""


class CallingWorld(World):
    """Worlds whose actions are `<tool_call>` blocks, and whose last message is the answer."""

    reading: ClassVar[frozenset[str]] = frozenset()
    done: ClassVar[str] = "Done."

    def canonical(self, action: str) -> str:
        found = called(action)
        return action.strip() if found is None else json.dumps(found, sort_keys=True)

    def call(self, action: str) -> tuple[str, dict[str, Any]] | None:
        return called(action)

    def changes(self, action: str) -> bool:
        if action.startswith("["):  # a canonical one
            return json.loads(action)[0] not in self.reading
        found = called(action)
        return found is not None and found[0] not in self.reading

    def closing(self, answer: str | None) -> str | None:
        return answer or self.done

    def answered(self, action: str) -> str | None:
        if "<tool_call>" in action:
            return None
        return "" if action.strip() == self.done else action.strip()
