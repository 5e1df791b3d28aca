"""Goals of `pocket_app` that the teacher writes: proven by what was explored, and only where they are wanted."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agentevolver.llm import prompts
from agentevolver.recipes.offline.teacher.app_goals import LINK_TOOLS
from agentevolver.recipes.offline.teacher.calls import CHANGES
from agentevolver.recipes.offline.teacher.intents import read_intent
from agentevolver.recipes.offline.teacher.service import Teacher
from agentevolver.recipes.offline.tests.teacher.app_episodes import PROFILE, as_the_environment_does, explore_app
from agentevolver.recipes.offline.tests.teacher.pocket_prompts import NO_MISTAKES, Steps, ask, carry_out, explore
from env_service.environments.pocket.app_env import PocketAppEnv
from env_service.environments.pocket.app_tasks import app_task_ids
from env_service.environments.pocket.tasks import task_ids
from env_service.environments.pocket.wordings import APP_LINKS, APP_OPENINGS
from task_manager.profile import shipped_profile

WORLDS = app_task_ids("train", 32)
WANTED = PROFILE.preference_instruction()
USUAL = shipped_profile("pocket").preference_instruction()


@dataclass
class AppProposal:
    world: str
    opening: str
    query: str
    solution: list[str]

    @property
    def links(self) -> int:
        intent = read_intent(self.query)
        assert intent is not None
        return len(intent.links)

    def carried_out(self) -> tuple[PocketAppEnv, Steps]:
        env = PocketAppEnv(self.world, "t", {"is_open_query": True, "explore_steps": len(self.solution)})
        return env, carry_out(env, self.solution)

    def is_accepted(self, steps: Steps) -> bool:
        if any(said.startswith("err") for _, _, said in steps) or steps[-1][2] != "bye":
            return False
        sections = {"opening": self.opening, "task": self.query, "transcript": prompts.transcript(steps)}
        return bool(ask(Teacher(rates=NO_MISTAKES), "judge/accept", **sections)["accepted"])  # type: ignore[arg-type]


def synthesise(teacher: Teacher, preference: str = WANTED, n: int = len(WORLDS), **sections: str) -> list[AppProposal]:
    made = []
    for number, world in enumerate(WORLDS[:n]):
        opening, steps = explore_app(world, number)
        shown = {"opening": opening, "preference": preference, "transcript": prompts.transcript(steps), **sections}
        reply: dict[str, Any] = ask(teacher, "synthesiser/tasks", temperature=0.7, seed=number, **shown)
        made += [AppProposal(world, opening, task["query"], task["solution"]) for task in reply["tasks"]]
    return made


def test_goals_do_in_the_world_what_the_environment_would_do() -> None:
    goals = [made for made in synthesise(Teacher(rates=NO_MISTAKES)) if made.links]
    links = Counter(made.links for made in goals)
    assert set(links) == {1, 2, 3, 4} and links[4] >= links[1]
    assert len(goals) >= 0.5 * 5 * len(WORLDS)
    for made in goals:
        env, steps = made.carried_out()
        assert made.is_accepted(steps), (made, steps)
        assert env.world.tables.facts() == as_the_environment_does(made.world, made.query), made
        _, explored = explore_app(made.world, WORLDS.index(made.world))
        shown = {word for _, action, said in explored for word in f"{action} {said}".split()}
        values = {arg for action in made.solution for arg in action.split()[1:] if "." not in arg}
        assert values <= shown | {*made.query.split(), "1", "yes"}
    kinds = Counter(link.kind for made in goals for link in read_intent(made.query).links)  # type: ignore[union-attr]
    assert set(kinds) == set(LINK_TOOLS)


def test_no_goal_is_written_in_a_wording_that_is_held_out_of_training() -> None:
    held_out = [re.sub(r"\{\w\}", "[a-z]+", wordings[2]) for wordings in (APP_OPENINGS, *APP_LINKS.values())]
    for made in synthesise(Teacher(rates=NO_MISTAKES), n=24):
        assert not made.links or not any(re.search(text, made.query) for text in held_out)


def test_who_is_to_find_goals_changes_nothing_and_proves_four_links_in_most_worlds() -> None:
    most = dict.fromkeys(WORLDS, 0)
    for made in synthesise(Teacher(rates=NO_MISTAKES), count="20"):
        most[made.world] = max(most[made.world], made.links)
    best = Counter(most.values())
    assert best[4] >= 0.8 * len(WORLDS) and best[0] <= 0.1 * len(WORLDS), best
    for number, world in enumerate(WORLDS):
        tools = {action.split()[0] for _, action, _ in explore_app(world, number)[1]}
        assert not tools & CHANGES


def test_mistakes_on_purpose_are_refused(tmp_path: Path) -> None:
    record = tmp_path / "planted.jsonl"
    made = synthesise(Teacher(rates=replace(NO_MISTAKES, hallucinated=1.0), record=record))
    planted = [json.loads(line) for line in record.read_text().splitlines()]
    kinds = {(entry["query"], tuple(entry["solution"])): entry["kind"] for entry in planted}
    goals = [one for one in made if one.links]
    found = Counter((kinds[one.query, tuple(one.solution)], one.is_accepted(one.carried_out()[1])) for one in goals)
    assert {kind for kind, _ in found} == {"invalid tool", "missing step", "wrong id", "wrong value"}
    assert not any(accepted for _, accepted in found)
    assert len(goals) >= 70


@pytest.mark.parametrize("tool", ["bank.pay", "cal.move", "note.find", "shop.buy"])
def test_a_focus_is_on_goals_that_need_the_tool(tool: str) -> None:
    made = synthesise(Teacher(rates=NO_MISTAKES), focus=f"tool: {tool}\nwrong: wrong_argument")
    assert sum(one.links > 0 for one in made) >= 0.5 * len(made) > 0
    assert all(tool in {action.split()[0] for action in one.solution} for one in made)


def test_easier_preferences_ask_for_fewer_links_and_the_usual_one_for_none() -> None:
    easier = PROFILE.with_preference(PROFILE.task_preference.shifted(-1)).preference_instruction()
    teacher = Teacher(rates=NO_MISTAKES)

    def links(preference: str) -> set[int]:
        return {made.links for made in synthesise(teacher, preference)}

    assert links(WANTED) == {0, 1, 2, 3, 4}
    assert links(easier) == {0, 1, 2, 3}
    assert links(USUAL) == {0}


def test_what_exists_is_stayed_away_from() -> None:
    teacher = Teacher(rates=NO_MISTAKES)
    first = synthesise(teacher, n=1)
    existing = "\n".join(f"- {made.query}" for made in first)
    again = synthesise(teacher, n=1, existing=existing)
    assert again and not {made.query for made in first} & {made.query for made in again}


# Of what was said at commit b03b2df, before there were goals with links.
@pytest.mark.parametrize(("by", "digest"), [(0, "dc9617e055d582a4"), (1, "6d51dd2d42d404b5"), (-1, "828ed79370a31f01")])
def test_in_pocket_all_is_said_that_was_said_before_there_were_goals(by: int, digest: str) -> None:
    profile = shipped_profile("pocket")
    preference = profile.with_preference(profile.task_preference.shifted(by)).preference_instruction()
    teacher, said = Teacher(rates=replace(NO_MISTAKES, hallucinated=0.3)), hashlib.sha256()
    for number, world in enumerate(task_ids("train", 20)):
        opening, steps = explore(world, number)
        for focus in ("", "tool: bank.pay\nwrong: wrong_argument"):
            reply = ask(
                teacher,
                "synthesiser/tasks",
                temperature=0.7,
                seed=number,
                opening=opening,
                preference=preference,
                focus=focus,
                count="5",
                existing="- what is my balance",
                transcript=prompts.transcript(steps),
            )
            said.update(json.dumps([steps, reply]).encode())
    assert said.hexdigest()[:16] == digest
