"""The acting roles in real pocket worlds: what an exploration covers and learns, and that tasks are solved from
observations alone."""

from __future__ import annotations

from collections import Counter

import pytest

from agentevolver.llm import prompts
from agentevolver.recipes.offline.teacher.calls import GUARDED, read_call
from agentevolver.recipes.offline.teacher.observed import see
from agentevolver.recipes.offline.teacher.prompt import MistakeRates, NotUnderstood
from agentevolver.recipes.offline.teacher.service import Teacher
from agentevolver.recipes.offline.tests.teacher.pocket_prompts import NO_MISTAKES, Steps, ask, explore, open_env
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.tasks import task_ids

WORLDS = task_ids("train", 40)


def test_breadth_goes_to_another_app_each_step() -> None:
    reached = 0
    for task_id in WORLDS[:10]:
        _, steps = explore(task_id, depth=0)
        calls = [read_call(action) for _, action, _ in steps]
        # Steps that an error asked for are not new ground.
        own = [
            c.app
            for c, (_, _, o) in zip(calls, steps, strict=True)
            if c and c.tool not in ("me.pin", "bank.login") and o[:3] != "err"
        ]
        assert len(set(own)) == len(own)
        reached += len(own)
    assert reached >= 25


@pytest.mark.thorough
def test_explorations_find_objects_and_learn_the_sites_rules() -> None:
    rules: Counter[str] = Counter()
    rows, repeats = 0, 0
    # Worlds differ much in what an exploration finds (standard deviation 2.2 rows), so that it takes many of them to
    # tell the mean.
    worlds = task_ids("train", 160)
    for task_id in worlds:
        opening, steps = explore(task_id)
        seen = see({"opening": opening}, [prompts.StepText(*step) for step in steps])
        rules.update(seen.rules.values.keys())
        rows += sum(map(len, seen.facts.rows.values()))
        repeats += len(steps) - len({action for _, action, _ in steps})
    assert rows >= 4 * len(worlds)
    assert min(rules[rule] for rule in ("guard", "pay", "login", "plan", "look")) >= 0.4 * len(worlds)
    # A call is repeated where an error said what was missing before it, and hardly ever else.
    assert repeats <= 1.5 * len(worlds)


def test_an_error_is_answered_as_it_asks() -> None:
    teacher = Teacher(rates=NO_MISTAKES)
    _, opening = open_env(WORLDS[0], 5)
    steps: Steps = [(0, "bank.pay ann 2", "err login first")]
    said = ["me.pin", "bank.login 4", "bank.pay ann 2"]
    answers = ["pin 4", "ok", "err use bank.pay AMOUNT NAME"]
    for wanted, answer in zip([*said, "bank.pay 2 ann"], [*answers, ""], strict=True):
        action = ask(teacher, "explorer/act", opening=opening, phase="depth", transcript=prompts.transcript(steps))[
            "action"
        ]
        assert action == wanted
        steps.append((len(steps), action, answer))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("manual", "changes"),
    [
        (
            "use note.del ID yes",
            {"note.tag n6 home yes", "note.del n6 yes", "cal.move e4 fri yes", "cal.del e4 yes", "shop.ret o1 yes"},
        ),
        ("use note.del ID", {"doc note.tag", "note.del n6", "doc cal.move", "doc cal.del", "doc shop.ret"}),
    ],
)
def test_a_change_is_tried_as_the_site_is_known_to_want_it(manual: str, changes: set[str]) -> None:
    _, opening = open_env(WORLDS[0], 12)
    found: Steps = [
        (0, "note.list fun", "hat n6 , tea n2"),
        (1, "cal.list mon", "ann e4 3"),
        (2, "shop.orders", "rug o1"),
    ]
    sections = {
        "opening": opening,
        "phase": "depth",
        "transcript": prompts.transcript([*found, (3, "doc note.del", manual)]),
    }
    teacher = Teacher(rates=NO_MISTAKES)
    said = {ask(teacher, "explorer/act", temperature=1.0, seed=seed, **sections)["action"] for seed in range(1500)}
    assert {action for action in said if GUARDED & set(action.split())} == changes


def test_explorations_of_one_world_differ_and_the_same_seed_repeats_one() -> None:
    first, other = (explore(WORLDS[0], number)[1] for number in (0, 1))
    again = explore.__wrapped__(WORLDS[0], 0)[1]
    assert first != other
    assert first == again


def test_without_a_seed_the_same_prompt_is_answered_differently_in_turn_and_at_temperature_0_alike() -> None:
    _, opening = open_env(WORLDS[0], 5)
    sections = {"opening": opening, "phase": "breadth", "transcript": prompts.transcript([])}
    one, other = Teacher(rates=NO_MISTAKES), Teacher(rates=NO_MISTAKES)
    drawn = [ask(one, "explorer/act", temperature=1.0, **sections)["action"] for _ in range(8)]
    assert len(set(drawn)) > 1
    assert drawn == [ask(other, "explorer/act", temperature=1.0, **sections)["action"] for _ in range(8)]
    assert len({ask(one, "explorer/act", temperature=0.0, **sections)["action"] for _ in range(8)}) == 1


def test_what_others_tried_is_left_to_them() -> None:
    teacher = Teacher(rates=NO_MISTAKES)
    _, opening = open_env(WORLDS[0], 5)
    sections = {"opening": opening, "phase": "breadth", "transcript": prompts.transcript([])}
    seen = {ask(teacher, "explorer/act", temperature=1.0, **sections)["action"] for _ in range(300)}
    tried = sorted(seen)[: len(seen) // 2]
    told = "\n".join([*tried, "note.find (7 times)"])
    for _ in range(50):
        assert ask(teacher, "explorer/act", temperature=1.0, tried=told, **sections)["action"] not in tried


def test_without_tools_in_the_prompt_the_manuals_are_read_from_the_top() -> None:
    teacher = Teacher(rates=NO_MISTAKES)
    env, opening = open_env(WORLDS[0], 8, verbose=False)
    steps: Steps = []
    for i in range(4):
        action = ask(teacher, "explorer/act", opening=opening, phase="breadth", transcript=prompts.transcript(steps))[
            "action"
        ]
        steps.append((i, action, str(env.step({"role": "assistant", "content": action})["state"][0]["content"])))
    assert [action for _, action, _ in steps[:2]] == ["doc", "doc note"]
    assert not [o for _, _, o in steps if o.startswith("err no tool")]


@pytest.mark.thorough
@pytest.mark.parametrize("verbose", [False, True])
def test_nearly_all_tasks_of_the_world_are_solved_from_observations(verbose: bool) -> None:
    teacher = Teacher(rates=NO_MISTAKES)
    solved = []
    for task_id in [*task_ids("train", 72), *task_ids("hard", 24)]:
        env = PocketEnv(task_id, "t", {"slack": 8, "verbose": verbose})
        opening, query = (message["content"] for message in env.get_init_state()["state"])
        steps: Steps = []
        while not env.is_over:
            action = ask(teacher, "verifier/solve", opening=opening, task=query, transcript=prompts.transcript(steps))[
                "action"
            ]
            steps.append(
                (len(steps), action, str(env.step({"role": "assistant", "content": action})["state"][0]["content"]))
            )
        solved.append(env.evaluate())
    assert sum(solved) / len(solved) >= 0.98


def test_a_task_that_cannot_be_done_is_given_up_at_once() -> None:
    teacher = Teacher(rates=NO_MISTAKES)
    reply = ask(
        teacher,
        "verifier/solve",
        opening="site k3",
        task="delete note milk",
        transcript=prompts.transcript([(0, "note.find milk", "none")]),
    )
    assert reply["action"] == "done"
    assert "no note milk" in reply["thought"]


def test_slips_are_made_at_their_rate() -> None:
    teacher = Teacher(rates=MistakeRates(0, 0, 0, 0, 0, 0, slips=0.3))
    _, opening = open_env(WORLDS[0], 5)
    actions = [
        ask(
            teacher,
            "verifier/solve",
            temperature=1.0,
            opening=opening,
            task="delete note milk",
            transcript=prompts.transcript([]),
        )["action"]
        for _ in range(600)
    ]
    assert 0.24 <= sum(action != "note.find milk" for action in actions) / 600 <= 0.36
    assert teacher.planted["verifier/solve: slip"] == sum(action != "note.find milk" for action in actions)


@pytest.mark.parametrize(
    ("task", "sections", "said"),
    [
        ("explorer/act", {"phase": "breadth", "transcript": "(no steps yet)"}, "no section <opening>"),
        (
            "explorer/act",
            {"opening": "site k1", "phase": "sideways", "transcript": "(no steps yet)"},
            "breadth or depth",
        ),
        ("explorer/act", {"opening": "site k1", "phase": "depth", "transcript": "I looked around"}, "numbered steps"),
        (
            "verifier/solve",
            {"opening": "site k1", "task": "paint the wall green", "transcript": "(no steps yet)"},
            "no wording",
        ),
        ("verifier/solve", {"task": "pay ann 3", "transcript": "(no steps yet)"}, "no section <opening>"),
    ],
)
def test_what_is_missing_or_unknown_is_said(task: str, sections: dict[str, str], said: str) -> None:
    with pytest.raises(NotUnderstood, match=said):
        ask(Teacher(rates=NO_MISTAKES), task, **sections)
