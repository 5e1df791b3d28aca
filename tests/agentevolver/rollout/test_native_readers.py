"""Whoever reads a trajectory sees the calls of its replies and their answers: judges, step labels, distilling, the
page, and the built-in teacher."""

import asyncio
import json

import pytest

from advantage_processor.labels import label_messages
from agentevolver.builtin.teacher.attributor import judge_steps
from agentevolver.builtin.teacher.intents import read_intent
from agentevolver.builtin.teacher.observed import see
from agentevolver.llm import prompts
from agentevolver.types import Task, Trajectory
from agentevolver.view.trajectories import Trajectories
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


def test_the_page_lists_and_shows_it(trajectory, tmp_path):
    line = json.dumps(trajectory.to_dict()) + "\n"
    (tmp_path / "step_1.jsonl").write_text(line, encoding="utf-8")
    (row,) = Trajectories(tmp_path).step(1)
    assert row["turns"] == 2 and row["success"]
    shown = Trajectories(tmp_path).one(1, 0)["record"]
    assert Trajectory.from_dict(shown) == trajectory
    assert [step["problems"] for step in shown["steps"]] == [["unknown_tool"], []]


@pytest.mark.parametrize("task_id", TASKS)
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "all at once"])
def test_the_teacher_understands_calls_as_it_does_text(task_id, together):
    calls = solution(task_id)
    played = record([LOST, *(["\n".join(calls)] if together else calls)], task_id)
    told = prompts.transcript([(step.index, step.action, step.observation) for step in played.steps])
    opening = "\n".join(message["content"] for message in played.messages[:2])
    seen = see({"opening": opening}, prompts.read_steps(told))
    assert seen.steps[0].failed and all(step.call is not None and not step.failed for step in seen.steps[1:])
    assert len(seen.steps) == 1 + len(calls)
    judged = judge_steps(read_intent(played.messages[1]["content"]), seen, success=True)
    assert sorted(judged) == [step.index for step in played.steps]
    assert not judged[0][0] and judged[played.steps[-1].index][0]
