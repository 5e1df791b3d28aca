"""The mcp world with the notes server: what can be asked follows from the notes that are there."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentevolver.llm.prompts import StepText
from tests.llm.minds.families import WORDS
from tests.llm.minds.world import CallingWorld, Goal, Lesson, Steps, called, calling, response, same

_EXAMPLE = Path(__file__).parents[1] / "example" / "tasks.jsonl"
_LIST = calling("note_list")
_KINDS = (
    ("read", "What do I have in my note {key}?", True),
    ("write", "Make a note under {key} that says: {text}", False),
    ("delete", "Throw my note {key} away.", False),
    ("replace", "Let my note {key} say this instead of what it says: {text}", False),
    ("count", "How many notes do I have?", True),
    ("search", "How many of my notes have the word {word} in them?", True),
    ("swap", "Throw my note {key} away and make one under {new} that says: {text}", False),
)


class McpWorld(CallingWorld):
    """Notes by key."""

    env_type = "mcp"
    reading = frozenset({"note_list", "note_read", "note_search"})
    lessons = (
        Lesson("when a note that exists is to say something "
               "else", "Write it with overwrite set to true, else the server refuses.",
               "Write it without overwrite, the server replaces notes by itself."),
        Lesson("when the key of a note is not "
               "known", "List the keys first, and use one of them as it is written there.",
               "Guess the key, the server finds notes with similar keys."),
        Lesson("when everything is "
               "done", "End with a message without a call, which holds the bare answer if one was asked for.",
               "End with a call of note_list, because only a call ends the task."),
    )  # fmt: skip

    def recognises(self, opening: str) -> bool:
        return "note_list" in opening

    def first_look(self, steps: Steps) -> str | None:
        return None if any(self.canonical(step.action) == self.canonical(_LIST) for step in steps) else _LIST

    def closing(self, answer: str | None) -> str | None:
        return f"Answer: {answer}" if answer else self.done

    def answered(self, action: str) -> str | None:
        said = super().answered(action)
        return said.removeprefix("Answer:").strip() if said is not None else None

    def refused(self, step: StepText) -> bool:
        return response(step.observation).startswith("Error:")

    def goals(self, opening: str, steps: Steps) -> list[Goal]:
        keys = next(
            (_listed(step.observation) for step in steps if self.canonical(step.action) == self.canonical(_LIST)), None
        )
        if keys is None:
            return []
        place = sum(map(ord, "".join(keys)))
        new = [WORDS[(place + 7 * i) % len(WORDS)] for i in range(6)]
        texts = [f"{WORDS[(place + 3 * i) % len(WORDS)]} at {8 + i} o'clock" for i in range(6)]
        asked: list[tuple[str, dict[str, str]]] = [("count", {})]
        for number, key in enumerate(keys):
            asked += [
                ("read", {"key": key}),
                ("delete", {"key": key}),
                ("replace", {"key": key, "text": texts[number % 6]}),
            ]
            asked += [("swap", {"key": key, "new": new[number % 6], "text": texts[-1 - number % 6]})]
        asked += [("write", {"key": key, "text": text}) for key, text in zip(new, texts, strict=True)]
        asked += [("search", {"word": word}) for word in ("milk", "at", "code", "the", "note")]
        return [_goal(kind, slots) for kind, slots in asked]

    def goal_of(self, query: str, opening: str, steps: Steps) -> Goal | None:
        for kind, wording, _ in _KINDS:
            parts = re.split(r"\{(\w+)\}", wording)
            pattern = "".join(re.escape(part) if i % 2 == 0 else f"(?P<{part}>.+?)" for i, part in enumerate(parts))
            if found := re.fullmatch(pattern, query.strip()):
                return _goal(kind, found.groupdict())
        return None

    def answer(self, goal: Goal, observations: Sequence[str]) -> str | None:
        if not observations:
            return None
        told = response(observations[-1])
        return told if goal.kind == "read" else str(len(_listed(observations[-1])))

    def right(self, seed_task_id: str, query: str, solution: Sequence[str]) -> bool:
        tasks = {task["id"]: task for task in map(json.loads, _EXAMPLE.read_text().splitlines())}
        start = {call["arguments"]["key"]: call["arguments"]["text"] for call in tasks[seed_task_id].get("setup", [])}
        goal = self.goal_of(query, "", [])
        if goal is None:
            return False
        wanted, told = _played(start, goal.actions)
        notes, _ = _played(start, solution)
        if wanted is None or notes != wanted:
            return False
        return not goal.asks or same(
            self.answered(solution[-1]) or "", told[-1] if goal.kind == "read" else str(len(told[-1]))
        )


def _goal(kind: str, slots: dict[str, str]) -> Goal:
    wording, asks = next((wording, asks) for name, wording, asks in _KINDS if name == kind)
    writing = {"key": slots.get("new") or slots.get("key", ""), "text": slots.get("text", "")}
    actions = {
        "read": lambda: [calling("note_read", key=slots["key"])],
        "write": lambda: [calling("note_write", **writing)],
        "delete": lambda: [calling("note_delete", key=slots["key"])],
        "replace": lambda: [calling("note_write", **writing, overwrite=True)],
        "count": lambda: [_LIST],
        "search": lambda: [calling("note_search", word=slots["word"])],
        "swap": lambda: [calling("note_delete", key=slots["key"]), calling("note_write", **writing)],
    }[kind]()
    return Goal(kind, wording.format(**slots), tuple(actions), asks=asks, changes=not asks)


def _listed(observation: str) -> list[str]:
    told = response(observation)
    return [] if told.startswith('{"result": []') else told.splitlines()


def _played(start: dict[str, str], actions: Sequence[str]) -> tuple[dict[str, str] | None, list[Any]]:
    """Return the notes after some calls, None if the server would have refused one, and what the calls were answered
    with."""
    notes, told = dict(start), []
    for action in actions:
        found = called(action)
        if found is None:
            continue
        name, given = found
        key = given.get("key")
        if name == "note_list":
            told.append(sorted(k for k in notes if k.startswith(given.get("prefix", ""))))
        elif name == "note_search":
            told.append(sorted(k for k, text in notes.items() if given["word"].casefold() in text.casefold()))
        elif name == "note_write":
            if key in notes and not given.get("overwrite"):
                return None, told
            notes[key] = given["text"]
        elif name in ("note_read", "note_delete"):
            if key not in notes:
                return None, told
            told.append(notes[key])
            if name == "note_delete":
                del notes[key]
    return notes, told


PLAYER = McpWorld()
