"""Tasks made of explorations: those that are meant well hold in the world, those that are not do not, and the judge
tells which."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from agentevolver.llm import prompts
from agentevolver.recipes.offline.teacher.intents import KINDS, WRITTEN, normal, read_intent
from agentevolver.recipes.offline.teacher.prompt import MistakeRates, NotUnderstood
from agentevolver.recipes.offline.teacher.service import Teacher
from agentevolver.recipes.offline.teacher.synthesiser import digest
from agentevolver.recipes.offline.tests.teacher.pocket_prompts import (
    NO_MISTAKES,
    Steps,
    ask,
    carry_out,
    explore,
    open_env,
)
from env_service.environments.pocket.families import FAMILIES
from env_service.environments.pocket.tasks import make_task, task_ids

WORLDS = task_ids("train", 60)


@dataclass
class Made:
    world: str
    opening: str
    task: dict[str, Any]
    planted: str | None

    def carried_out(self) -> Steps:
        env, _ = open_env(self.world, len(self.task["solution"]))
        return carry_out(env, self.task["solution"])


@lru_cache
def synthesise(hallucinated: float) -> list[Made]:
    with tempfile.TemporaryDirectory() as folder:
        return _synthesise(hallucinated, Path(folder) / "planted.jsonl")


def _synthesise(hallucinated: float, record: Path) -> list[Made]:
    teacher = Teacher(rates=replace(NO_MISTAKES, hallucinated=hallucinated), record=record)
    made = []
    for number, world in enumerate(WORLDS):
        opening, steps = explore(world, number)
        record.write_text("")
        reply = ask(
            teacher,
            "synthesiser/tasks",
            temperature=0.7,
            opening=opening,
            transcript=prompts.transcript(steps),
            count="5",
        )
        planted = map(json.loads, record.read_text().splitlines())
        kinds = {(p["query"], tuple(p["solution"])): p["kind"] for p in planted}
        made += [Made(world, opening, t, kinds.get((t["query"], tuple(t["solution"])))) for t in reply["tasks"]]
    return made


def accepted(made: Made, steps: Steps) -> bool:
    if any(observation.startswith("err") for _, _, observation in steps) or not steps[-1][2].startswith("bye"):
        return False
    transcript = prompts.transcript(steps)
    judge = Teacher(rates=NO_MISTAKES)
    return bool(
        ask(judge, "judge/accept", opening=made.opening, task=made.task["query"], transcript=transcript)["accepted"]
    )


@pytest.mark.thorough
def test_tasks_that_are_meant_well_are_carried_out_and_accepted() -> None:
    made = synthesise(0.0)
    assert len(made) >= 4.5 * len(WORLDS)
    assert not [m for m in made if not accepted(m, m.carried_out())]
    assert all(0 <= m.task["confidence"] <= 1 for m in made)


def test_planted_mistakes_come_at_their_rate_in_all_ways_and_are_told_apart() -> None:
    made = synthesise(0.3)
    kept = [m for m in made if accepted(m, m.carried_out())]
    planted = Counter(m.planted for m in made if m.planted)
    assert 0.25 <= planted.total() / len(made) <= 0.35
    assert set(planted) == {"invalid tool", "missing step", "wrong id", "wrong answer", "wrong value", "unseen thing"}
    dropped = [m for m in made if m not in kept]
    caught = sum(m.planted is not None for m in dropped)
    assert caught / len(dropped) >= 0.97
    assert caught / planted.total() >= 0.97


def test_the_tasks_are_of_all_kinds_and_levels() -> None:
    kinds = Counter(read_intent(m.task["query"]).kind for m in synthesise(0.0))  # type: ignore[union-attr]
    assert set(kinds) == set(KINDS)
    assert max(kinds.values()) <= 0.15 * kinds.total()


def test_a_preference_for_hard_tasks_is_heard() -> None:
    teacher = Teacher(rates=NO_MISTAKES)
    levels: dict[str, list[int]] = {"easy": [], "hard": []}
    for number, world in enumerate(WORLDS[:30]):
        opening, steps = explore(world, number)
        for wish, found in levels.items():
            sections = {
                "opening": opening,
                "preference": f"- {wish}: as such",
                "count": "3",
                "transcript": prompts.transcript(steps),
            }
            tasks = ask(teacher, "synthesiser/tasks", temperature=0.7, **sections)["tasks"]
            found += [KINDS[read_intent(t["query"]).kind].level for t in tasks]  # type: ignore[union-attr]
    assert sum(levels["hard"]) / len(levels["hard"]) > sum(levels["easy"]) / len(levels["easy"]) + 0.5


def test_what_exists_is_stayed_away_from() -> None:
    teacher = Teacher(rates=NO_MISTAKES)
    opening, steps = explore(WORLDS[0])
    had: list[str] = []
    for _ in range(6):
        existing = "\n".join(f"- {query}" for query in had)
        sections = {"opening": opening, "existing": existing, "count": "4", "transcript": prompts.transcript(steps)}
        new = [t["query"] for t in ask(teacher, "synthesiser/tasks", temperature=0.7, **sections)["tasks"]]
        assert not {normal(q) for q in new} & {normal(q) for q in had}
        had += new
    assert len(had) >= 20


def test_nothing_is_proposed_of_what_was_not_seen() -> None:
    teacher = Teacher(rates=NO_MISTAKES)
    sections = {"opening": "site k3", "transcript": prompts.transcript([(0, "note.find milk", "none")])}
    assert ask(teacher, "synthesiser/tasks", **sections) == {"tasks": []}
    with pytest.raises(NotUnderstood, match="<count>"):
        ask(teacher, "synthesiser/tasks", **{**sections, "count": "many"})


def test_changes_of_the_exploration_are_not_taken_for_the_start() -> None:
    """The note was moved and the money spent while exploring: a fresh world has neither."""
    teacher = Teacher(rates=NO_MISTAKES)
    told: Steps = [
        (0, "note.find milk", "milk n3 home"),
        (1, "note.tag n3 work", "ok"),
        (2, "note.list work", "milk n3"),
        (3, "note.add tea work", "ok n1"),
        (4, "note.find tea", "tea n1 work"),
        (5, "bank.pay ann 5", "ok"),
        (6, "bank.bal", "balance 40"),
    ]
    solutions: dict[str, list[str]] = {}
    for _ in range(40):
        sections = {"opening": "site k3", "count": "24", "transcript": prompts.transcript(told)}
        solutions |= {
            t["query"]: t["solution"] for t in ask(teacher, "synthesiser/tasks", temperature=0.7, **sections)["tasks"]
        }
    assert solutions["what is the tag of note milk"] == ["note.find milk", "done home"]
    assert solutions["what is my balance"] == ["bank.bal", "done 45"]
    assert not [q for q in solutions if "note tea" in q or "notes have tag work" in q]


def test_the_teacher_writes_in_no_wording_that_is_held_out_of_training() -> None:
    held_out = {family.wordings[2] for family in FAMILIES.values()}
    written = {wording for kind in KINDS.values() for wording in kind.wordings[:WRITTEN]}
    assert not written & held_out


def test_every_wording_of_the_world_is_understood() -> None:
    for split in ("train", "dev", "test", "hard"):
        for task_id in task_ids(split, 240 if split == "train" else None):
            task = make_task(task_id)
            for query in (
                task.query,
                f"please {task.query}",
                f"can you {task.query} now",
                f"Task: {task.query.capitalize()}.",
            ):
                intent = read_intent(query)
                assert intent is not None, query
                assert intent.kind == task.family


def test_mistakes_are_recorded_for_those_who_measure_filters(tmp_path: Path) -> None:
    teacher = Teacher(rates=MistakeRates(1.0, 0, 0, 0, 0, 0, 0), record=tmp_path / "planted.jsonl")
    opening, steps = explore(WORLDS[0])
    tasks = ask(teacher, "synthesiser/tasks", opening=opening, transcript=prompts.transcript(steps))["tasks"]
    lines = [json.loads(line) for line in (tmp_path / "planted.jsonl").read_text().splitlines()]
    assert [(line["query"], line["solution"]) for line in lines] == [(t["query"], t["solution"]) for t in tasks]
    assert all(line["task"] == "synthesiser/tasks" and line["kind"] for line in lines)
    assert {line["transcript"] for line in lines} == {digest(prompts.transcript(steps))}
