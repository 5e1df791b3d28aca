"""Demonstrations of calc are episodes of the real environments, and their mistakes are of many kinds."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from agentevolver.recipes.offline.seed.calc.demonstrator import NARROW, WIDE, CalcHabits, demonstrate, propose, work_off
from agentevolver.recipes.offline.seed.sampler import SampledRollout
from env_service.environments.calc.env import CalcEnv
from env_service.environments.calc.grammar import parse_question, solution
from env_service.environments.calc.tasks import held_out, question_of
from env_service.environments.propose.env import ProposeEnv

STEADY = CalcHabits(slip=0.0, slip_at_end=0.0)
TASKS = [task for split in ("train", "dev") for task in CalcEnv.get_query_list(split)][::7]


def failure(rollout: SampledRollout) -> str:
    """What a failed episode of calc did first that its solution does not: "form" (refused and never mended), "operand",
    "operator", "early" or "late" answer, "answer" (another than the last result), or "unfinished"."""
    left = [(str(step.first), step.operator, str(step.second)) for step in solution(question_of(rollout.task_id))]
    refused = False
    for action, observation in zip(rollout.actions, rollout.observations, strict=True):
        words = action.split()
        if observation.startswith("err"):
            refused = True
        elif words[0] == "answer":
            return "early answer" if left else "answer"
        elif not left:
            return "late answer"
        elif tuple(words[1:]) != (expected := left.pop(0)):
            return "operator" if (words[1], words[3]) == (expected[0], expected[2]) else "operand"
    return "form" if refused else "unfinished"


def texts(messages, role):
    return [m["content"] for m in messages if m["role"] == role]


def shown(habits, n=600, seed=0):
    rng = random.Random(seed)
    return [demonstrate(rng, habits) for _ in range(n)]


def worked(habits, per_task=4, seed=0):
    """(task, the executor's conversation, its grade) of real tasks."""
    rng = random.Random(seed)
    out = []
    for task in TASKS * per_task:
        messages = work_off(question_of(task), rng, habits)
        env = CalcEnv(task, "again")
        assert env.get_init_state()["state"] == messages[:2]
        said = texts(messages, "assistant")
        seen = [env.step({"role": "assistant", "content": text})["state"][0]["content"] for text in said]
        assert env.is_over and seen[:-1] == texts(messages[2:], "user")
        rollout = SampledRollout(task, [], [], [], actions=said, observations=seen, reward=env.evaluate())
        out.append((task, messages, rollout))
    return out


def test_an_executor_that_never_slips_makes_the_calls_of_the_solution_and_succeeds():
    for task, messages, rollout in worked(STEADY, 1):
        steps = solution(question_of(task))
        expected = [f"calc {step.first} {step.operator} {step.second}" for step in steps]
        assert texts(messages, "assistant") == [*expected, f"answer {steps[-1].value}"] and rollout.reward == 1.0


def test_what_is_shown_is_what_the_real_environment_says_to_the_same_actions():
    episodes = worked(CalcHabits(slip=0.5, slip_at_end=0.5))
    assert {rollout.reward for _, _, rollout in episodes} == {0.0, 1.0}
    assert any(text.startswith("err") for _, messages, _ in episodes for text in texts(messages, "user"))


def test_mistakes_are_of_many_kinds_and_none_is_most_of_them():
    failed = [rollout for _, _, rollout in worked(CalcHabits(slip=0.2, slip_at_end=0.1), 12) if rollout.reward < 1.0]
    kinds = Counter(map(failure, failed))
    assert {"operand", "operator", "early answer", "answer"} <= set(kinds)
    assert max(kinds.values()) < 0.75 * len(failed)


def test_slips_cost_success():
    often, seldom = (sum(rollout.reward for _, _, rollout in worked(CalcHabits(slip=slip), 2)) for slip in (0.4, 0.1))
    assert often < 0.6 * seldom


def test_a_seed_repeats_the_demonstrations():
    assert shown(CalcHabits(), 50, seed=1) == shown(CalcHabits(), 50, seed=1) != shown(CalcHabits(), 50, seed=2)


def test_no_question_of_dev_or_test_is_worked_off():
    short = CalcHabits(proposals=0.0, worked=(1.0, 0, 0, 0, 0, 0, 0))
    questions = {texts(messages, "user")[0] for messages in shown(short, 1500)}
    assert len(questions) > 300 and not questions & held_out()


@pytest.mark.parametrize("lengths", [WIDE, NARROW])
def test_proposals_are_accepted_and_as_long_as_they_are_meant_to_be(lengths):
    rng, levels = random.Random(0), Counter()
    for messages in shown(replace(CalcHabits(), proposals=1.0, proposed=lengths), 1000):
        (seed,) = texts(messages, "user")
        env = ProposeEnv(f"calc.{seed.replace(' ', '.')}.{rng.randrange(100):05}", "again")
        assert env.get_init_state()["state"] == messages[:2]
        env.step(messages[-1])
        assert env.evaluate() == 1.0
        levels[parse_question(env.get_info()["facts"]["question"]).level] += 1
    assert all(abs(levels[level] / 1000 - share) < 0.05 for level, share in enumerate(lengths, 2))
    assert set(levels) == {level for level, share in enumerate(lengths, 2) if share}


def test_a_proposal_is_asked_for_by_its_seed_and_is_one_block():
    question = parse_question("right 3 f 4 g 7")
    messages = propose(question, random.Random(0))
    assert texts(messages, "user") == ["right 3 f"]
    assert texts(messages, "assistant") == ["<question>right 3 f 4 g 7</question>"]
