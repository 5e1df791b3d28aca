"""The teacher in `pocket_app`: it understands every goal, solves it, and judges and labels as the environment does."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from agentevolver.llm import prompts
from agentevolver.recipes.offline.teacher.app_goals import AppLink
from agentevolver.recipes.offline.teacher.goals import tools_of
from agentevolver.recipes.offline.teacher.intents import read_intent
from agentevolver.recipes.offline.teacher.prompt import NotUnderstood
from agentevolver.recipes.offline.teacher.service import Teacher
from agentevolver.recipes.offline.tests.teacher.app_episodes import (
    LINKS,
    SPLITS,
    app_tasks,
    changed,
    played,
    solution_of,
)
from agentevolver.recipes.offline.tests.teacher.pocket_prompts import NO_MISTAKES, Steps, ask
from env_service.environments.pocket.app_env import PocketAppEnv
from env_service.environments.pocket.app_tasks import make_app_task
from env_service.environments.pocket.wordings import APP_LINKS, APP_OPENINGS

TEACHER = Teacher(rates=NO_MISTAKES)
# Sites of one split want what those of another want, so a part of each stands for what only costs time.
SOME = 24


def solved(task_id: str, links: int) -> tuple[float, Steps]:
    """Let the verifier solve a task in its own episode; returns the environment's grade and the steps."""
    env, steps = PocketAppEnv(task_id, "i", {"links": links}), Steps()
    opening, query = (message["content"] for message in env.get_init_state()["state"])
    while not env.is_over:
        transcript = prompts.transcript(steps)
        action = ask(TEACHER, "verifier/solve", opening=opening, task=query, transcript=transcript)["action"]
        said = str(env.step({"role": "assistant", "content": action})["state"][0]["content"])
        steps.append((len(steps), action, said))
    return env.evaluate(), steps


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("split", SPLITS)
def test_every_goal_is_understood_and_solved_within_its_budget(split: str, links: int) -> None:
    for task in app_tasks(split, links):
        grade, steps = solved(task.id, links)
        assert grade == 1.0, (task.query, steps)
        # Nobody told what the site wants, so each of its five rules may cost a refusal, and little else is spent.
        assert len(steps) <= len(task.solution) + 5
        assert not any(steps[i][1:] == steps[i + 1][1:] for i in range(len(steps) - 1))


def test_links_are_done_in_the_order_asked() -> None:
    wanted = {"pay": "bank.pay", "send": "mail.send", "buy": "shop.buy", "note": "note.add"}
    wanted |= {"move": "cal.move", "plan": "cal.add", "drop": "mail.del"}
    for task in app_tasks("train", 4, SOME):
        intent = read_intent(task.query)
        assert intent is not None
        worked = [action.split()[0] for _, action, said in solved(task.id, 4)[1] if said.startswith("ok")]
        assert [tool for tool in worked if tool != "bank.login"] == [wanted[link.kind] for link in intent.links]


def test_every_wording_is_understood_with_politeness_and_below_guidance() -> None:
    slots = {"w": "pen", "q": "joe", "r": "ivy"}
    for opening in APP_OPENINGS:
        for kind, wordings in APP_LINKS.items():
            for wording in wordings:
                query = f"{opening.format(p='gus', d='mon')} {wording.format(**slots)} , mail it to him"
                for said in (query, f"please {query}", f"Task: {query.capitalize()}.", f"tip login first\n{query}"):
                    intent = read_intent(said)
                    assert intent is not None, said
                    assert (intent.kind, intent.slots) == ("app", {"p": "gus", "d": "mon"})
                    assert [link.kind for link in intent.links] == [kind, "send"]
                    assert intent.links[0].other in (*slots.values(), "")
    intent = read_intent("gus did write it , i meet him on mon : tag it as note pen")
    assert intent is not None and intent.links == (AppLink("note", "pen"),)
    assert tools_of(intent) == {"mail.find", "cal.list", "note.find", "note.add"}


@pytest.mark.parametrize(
    "query",
    [
        "gus did write it , i meet him on mon :",
        "gus did write it , i meet him on mon : dance with him",
        "gus did write it , i meet him on mon : mail it to him , dance",
        "gus did write it , i meet him on sun : mail it to him",
        "gus did write it , i meet him on mon : " + " , ".join(["mail it to him"] * 5),
    ],
)
def test_what_is_no_goal_is_not_guessed(query: str) -> None:
    assert read_intent(query) is None
    with pytest.raises(NotUnderstood, match="no wording"):
        ask(TEACHER, "verifier/solve", opening="site k3", task=query, transcript="")


def test_a_later_link_is_about_what_the_goal_began_with() -> None:
    """The meeting was moved and the mail deleted, some was bought before the price was looked up."""
    steps: Steps = [
        (0, "mail.find gus", "gus m3 desk"),
        (1, "cal.list mon", "eve e4 7"),
        (2, "cal.find cat", "cat e1 thu 2"),
        (3, "cal.move e4 thu yes", "ok"),
        (4, "mail.del m3 yes", "ok"),
        (5, "shop.buy desk 1", "ok o1"),
        (6, "shop.find desk", "desk price 4 left 1"),
        (7, "bank.pay eve 4", "ok"),
        (8, "cal.add ivy mon 7", "ok e2"),
        (9, "done", "bye"),
    ]
    opening = "gus did write it , i meet him on mon : see him on the day of cat instead , remove the mail"
    for last, of_it in (
        ("order 1 it in the shop , give him what it does cost", (5, 6, 7)),
        ("plan ivy on that day at his hour", (8,)),
    ):
        told = [step for step in steps if step[0] not in (5, 6, 7, 8) or step[0] in of_it]
        sections = {"opening": "site k3", "task": f"{opening} , {last}"}
        assert ask(TEACHER, "judge/accept", **sections, transcript=prompts.transcript(told))["accepted"]
        assert ask(TEACHER, "verifier/solve", **sections, transcript=prompts.transcript(told[:-1]))["action"] == "done"
        for at in of_it:
            if at != 6:
                less = [step for step in told if step[0] != at]
                assert not ask(TEACHER, "judge/accept", **sections, transcript=prompts.transcript(less))["accepted"]


@pytest.mark.parametrize("links", LINKS)
def test_verdicts_are_the_environments_on_references_and_changed_ones(links: int) -> None:
    rng, found = random.Random(links), Counter[tuple[str, bool]]()
    for task in [task for split in ("dev", "hard") for task in app_tasks(split, links)]:
        for way, actions in [("reference", solution_of(task)), changed(task, rng), changed(task, rng)]:
            opening, steps, grade = played(task, links, actions)
            sections = {"opening": opening, "task": task.query, "transcript": prompts.transcript(steps)}
            graded = ask(TEACHER, "judge/grade", **sections, reference=prompts.actions(solution_of(task)))
            assert graded["achieved"] == (grade == 1.0), (way, task.query, steps, graded)
            alone, accepted = ask(TEACHER, "judge/grade", **sections), ask(TEACHER, "judge/accept", **sections)
            # What no look-up showed is not taken on trust without a reference, nor is a refusal in one.
            blind = way == "dropped call" and grade == 1.0
            assert alone["achieved"] == (grade == 1.0) or blind, (way, task.query, steps, alone)
            refused = any(said.startswith("err") for _, _, said in steps)
            assert accepted["accepted"] == (alone["achieved"] and not refused)
            found[way, grade == 1.0] += 1
    assert found["reference", True] == 120 and found["reference", False] == 0
    assert sum(n for (_, right), n in found.items() if not right) >= 120
    assert {way for (way, right) in found if not right} >= {"dropped call", "wrong value", "wrong id", "one more"}


def labels(query: str, steps: Steps, grade: float) -> list[str]:
    outcome = f"{'success' if grade else 'failure'}\nscore: {grade}"
    sections = {"task": query, "outcome": outcome, "transcript": prompts.transcript(steps)}
    return [entry["label"] for entry in ask(TEACHER, "attributor/steps", **sections)["steps"]]


@pytest.mark.parametrize("links", LINKS)
def test_every_step_of_a_reference_is_good_but_what_it_says_twice(links: int) -> None:
    for task in [task for split in SPLITS for task in app_tasks(split, links, SOME)]:
        actions = solution_of(task)
        _, steps, grade = played(task, links, actions)
        # A purchase may want the product looked up before the price of it is asked for.
        wanted = ["BAD" if action in actions[:i] else "GOOD" for i, action in enumerate(actions)]
        assert labels(task.query, steps, grade) == wanted, (task.query, steps)


@pytest.mark.parametrize(
    ("call", "still_right"), [("shop.orders", True), ("note.del n0 yes", True), ("mail.send ann milk", False)]
)
def test_a_step_that_nobody_asked_for_is_bad(call: str, still_right: bool) -> None:
    rng = random.Random(call)
    for task in app_tasks("train", 4, SOME):
        actions = solution_of(task)
        place = rng.randrange(len(actions))
        _, steps, grade = played(task, 4, [*actions[:place], call, *actions[place:]])
        assert (grade == 1.0) == still_right
        assert labels(task.query, steps, grade)[place] == "BAD"


def test_a_wrong_change_is_bad_and_the_right_ones_beside_it_are_not() -> None:
    tasks = [task for task in app_tasks("dev", 4) if any(call.tool == "mail.send" for call in task.solution)]
    assert len(tasks) >= 20
    for task in tasks:
        actions = solution_of(task)
        place = next(i for i, action in enumerate(actions) if action.startswith("mail.send"))
        actions[place] = f"mail.send {actions[place].split()[1]} home"
        _, steps, grade = played(task, 4, actions)
        found = labels(task.query, steps, grade)
        assert grade == 0.0 and found[place] == found[-1] == "BAD"
        assert all(found[i] == "GOOD" for i, (_, _, said) in enumerate(steps) if said.startswith("ok") and i != place)


def test_lessons_and_notes_are_drawn_from_such_episodes() -> None:
    task = make_app_task("app.k3.17")
    steps = solved(task.id, 4)[1]
    opening = f"site k{task.site}\n{task.query}"
    transcript = prompts.transcript(steps)
    lessons = ask(TEACHER, "summariser/success", opening=opening, task=task.query, transcript=transcript)["experiences"]
    assert lessons and all(lesson["scope"] == f"site k{task.site}" for lesson in lessons)
    listed = "\n".join(
        f"[{i}] when_to_use: {lesson['when_to_use']}\ncontent: {lesson['content']}" for i, lesson in enumerate(lessons)
    )
    ranked = ask(TEACHER, "summariser/rerank", opening=opening, task=task.query, experience=listed)["order"]
    assert sorted(ranked) == list(range(len(lessons)))
    messages = prompts.messages(
        "summariser/context", "Do it.", {"opening": opening, "task": task.query, "transcript": transcript}
    )
    notes = TEACHER.answer(messages, temperature=0.0)
    assert notes.splitlines()[-1] != "" and "tip " in notes
    before_the_end = prompts.messages(
        "summariser/context", "Do it.", {"opening": opening, "transcript": prompts.transcript(steps[:-1])}
    )
    kept = TEACHER.answer(before_the_end, temperature=0.0)
    assert kept.endswith(task.query)
    assert all(f"{action} : {said}" in kept for _, action, said in steps[:-1] if not said.startswith("err"))
