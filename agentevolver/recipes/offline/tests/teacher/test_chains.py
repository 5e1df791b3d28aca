"""The teacher in calc: it knows what the calculator said and nothing else, and what it makes of that holds."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agentevolver.llm import prompts
from agentevolver.llm.prompts import StepText
from agentevolver.recipes.offline.teacher.chains import observed, worked_out
from agentevolver.recipes.offline.teacher.prompt import NotUnderstood, Rates
from agentevolver.recipes.offline.teacher.service import Teacher
from agentevolver.recipes.offline.tests.teacher.pocket_prompts import NO_MISTAKES, Steps, ask
from env_service.environments.calc.env import CalcEnv
from env_service.environments.calc.grammar import FAMILIES, draw_question, evaluate, parse_question, solution

OPENING = "\n\n".join(
    message["content"] for message in CalcEnv("left.2.00032", "i", {"verbose": True, "is_open_query": True})
    .get_init_state()["state"]
)  # fmt: skip


def carried_out(actions: list[str]) -> Steps:
    env = CalcEnv("left.2.00032", "i", {"is_open_query": True, "max_steps": 100})
    said = [str(env.step({"role": "assistant", "content": action})["state"][0]["content"]) for action in actions]
    return [(i, action, text) for i, (action, text) in enumerate(zip(actions, said, strict=True))]


def told(teacher: Teacher, asked: str, steps: Steps, seed: int = 0, **sections: str) -> dict[str, Any]:
    transcript = prompts.transcript(steps)
    return ask(teacher, asked, opening=OPENING, transcript=transcript, temperature=0.7, seed=seed, **sections)


def explored(seed: int, breadth: int = 3, depth: int = 12) -> Steps:
    teacher, steps = Teacher(seed=seed, rates=NO_MISTAKES), Steps()
    for i in range(breadth + depth):
        phase = "breadth" if i < breadth else "depth"
        action = told(teacher, "explorer/act", steps, phase=phase)["action"]
        steps = carried_out([*(taken for _, taken, _ in steps), action])
    return steps


@pytest.mark.parametrize("seed", range(5))
def test_what_an_explorer_did_proves_every_task(seed: int) -> None:
    steps = explored(seed)
    assert len({action for _, action, _ in steps}) == len(steps), "a call whose answer is known is not made again"
    assert all(text.isdecimal() for _, _, text in steps), "every call is one of calc's"
    made = told(Teacher(rates=NO_MISTAKES), "synthesiser/tasks", steps, count="5")["tasks"]
    assert len({task["query"] for task in made}) == len(made) == 5
    for task in made:
        *calls, closing = task["solution"]
        wanted = [
            f"calc {step.first} {step.operator} {step.second}" for step in solution(parse_question(task["query"]))
        ]
        assert calls == wanted and set(calls) <= {action for _, action, _ in steps}
        assert closing == f"answer {evaluate(task['query'])}"
        judged = told(Teacher(rates=NO_MISTAKES), "judge/accept", carried_out(task["solution"]), task=task["query"])
        assert judged["accepted"], judged["reason"]


def test_chains_are_of_both_families_and_of_many_lengths_and_none_that_exists() -> None:
    chains = [
        parse_question(task["query"])
        for seed in range(20)
        for task in told(Teacher(rates=NO_MISTAKES), "synthesiser/tasks", explored(seed), count="5")["tasks"]
    ]
    assert {chain.family for chain in chains} == set(FAMILIES)
    assert {chain.level for chain in chains} >= {3, 4, 5, 6}
    steps = carried_out(["calc 3 f 4"])
    first = {task["query"] for task in told(Teacher(rates=NO_MISTAKES), "synthesiser/tasks", steps, count="5")["tasks"]}
    assert first >= {"left 3 f 4", "right 3 f 4"} or len(first) >= 2
    existing = "\n".join(f"- {query}" for query in first)
    again = told(Teacher(rates=NO_MISTAKES), "synthesiser/tasks", steps, count="5", existing=existing)["tasks"]
    assert first.isdisjoint(task["query"] for task in again)


def test_mistakes_on_purpose_are_what_the_judge_refuses() -> None:
    steps, wrong = explored(1), Teacher(rates=Rates(hallucinated=1, malformed=0))
    made = [task for seed in range(8) for task in told(wrong, "synthesiser/tasks", steps, seed, count="5")["tasks"]]
    kinds = {name.partition(": ")[2] for name in wrong.planted}
    assert kinds == {"wrong answer", "another chain"}
    for task in made:
        judged = told(Teacher(rates=NO_MISTAKES), "judge/accept", carried_out(task["solution"]), task=task["query"])
        *calls, closing = task["solution"]
        proven = worked_out(parse_question(task["query"]), observed([StepText(*s) for s in carried_out(calls)]))
        assert judged["accepted"] == (proven[0] is None and closing == f"answer {proven[1]}")
    assert not any(
        told(Teacher(rates=NO_MISTAKES), "judge/accept", carried_out(t["solution"]), task=t["query"])["accepted"]
        for t in made
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_verifier_works_a_chain_out_with_the_calculator(family: str) -> None:
    question = str(draw_question(random.Random(family), family, 6))
    actions: list[str] = []
    while not actions or not actions[-1].startswith("answer"):
        teacher = Teacher(rates=NO_MISTAKES)
        actions.append(told(teacher, "verifier/solve", carried_out(actions), task=question)["action"])
    assert len(actions) == 6 and actions[-1] == f"answer {evaluate(question)}"


def test_what_is_no_chain_and_a_calculator_that_was_not_asked_are_not_guessed() -> None:
    with pytest.raises(NotUnderstood, match="no chain of calc"):
        told(Teacher(), "verifier/solve", [], task="delete note milk")
    judged = told(Teacher(rates=NO_MISTAKES), "judge/accept", carried_out(["answer 3"]), task="left 3 f 4")
    assert not judged["accepted"] and "nothing shows what calc 3 f 4" in judged["reason"]
    assert told(Teacher(rates=NO_MISTAKES), "synthesiser/tasks", [], count="5")["tasks"] == []
