"""Whoever reads a trajectory sees the calls of its replies and their answers: judges, step labels, distilling, the
page, and the built-in teacher."""

import asyncio

import pytest

from advantage_processor.labels import label_messages
from agentevolver.llm import prompts
from agentevolver.types import Task
from experience_manager.attempts import read_attempts
from task_manager.graders.judge import JudgeGrader
from tests.agentevolver.rollout.native import LOST, TASKS, play, pocket, solution

pytestmark = pytest.mark.service


def record(texts, task_id=TASKS[0]):
    async def run():
        async with pocket() as client:
            rollout, _ = await play(client, texts, task=Task(task_id, "pocket"), slack=3)
            return rollout.trajectory

    return asyncio.run(run())


@pytest.fixture(scope="module")
def trajectory():
    played = record([LOST, "\n".join(solution(TASKS[0]))])
    assert played.outcome.success and None in [message["content"] for message in played.messages]
    return played


def assert_told(text, trajectory):
    for step in trajectory.steps:
        for part in (step.action, step.observation):
            assert all(line in text for line in part.splitlines()), part


def test_the_judge_of_steps_is_shown_calls_and_answers(trajectory):
    messages = label_messages(trajectory, range(len(trajectory.steps)), success=True, max_chars=4_000)
    assert_told("\n".join(map(prompts.restored, [messages[-1]["content"]])), trajectory)


def test_the_judge_of_rollouts_is_shown_calls_and_answers(trajectory):
    grader = JudgeGrader("llm", None)
    told = "\n".join(message["content"] for message in grader._prompt(trajectory.task, trajectory)(None))
    assert_told(prompts.restored(told), trajectory)


def test_what_is_distilled_holds_calls_and_answers(trajectory):
    (attempt,) = read_attempts([trajectory])
    assert [(action, answer) for _, action, answer in attempt.steps] == [
        (step.action, step.observation) for step in trajectory.steps
    ]
