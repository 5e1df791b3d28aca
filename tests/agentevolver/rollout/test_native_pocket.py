"""PocketWorld played with Hermes' calls over HTTP: reference solutions, and mistakes among them."""

import pytest

from agentevolver.types import StopReason, Task
from tests.agentevolver.rollout.native import BROKEN, LOST, TASKS, play, pocket, qwen3, solution

pytestmark = pytest.mark.service


async def test_reference_solutions_solve_their_tasks_as_native_calls():
    async with pocket() as client:
        for task_id in TASKS:
            calls = solution(task_id)
            for texts in (calls, ["\n".join(calls)]):
                rollout, engine = await play(client, texts, task=Task(task_id, "pocket"), slack=0)
                trajectory = rollout.trajectory
                assert trajectory.outcome.score == 1.0 and trajectory.stop_reason is StopReason.FINISHED
                assert sum(step.calls for step in trajectory.steps) == len(calls)
                assert all(step.problems == () for step in trajectory.steps)
                (sample,) = rollout.samples
                pairs = zip(sample.response_ids, sample.response_mask, strict=True)
                assert [token for token, kept in pairs if kept] == [i for _, ids, _ in engine.calls for i in ids]


async def test_the_first_prompt_lists_the_tools_once_and_later_ones_begin_with_it():
    async with pocket() as client:
        _, engine = await play(client, solution(TASKS[0]))
    shown = qwen3().tokenizer.decode(engine.calls[0][0])
    assert shown.count('"name": "note_find"') == 1
    for (prompt, sampled, _), (later, _, _) in zip(engine.calls, engine.calls[1:], strict=False):
        assert later[: len(prompt) + len(sampled)] == [*prompt, *sampled]


@pytest.mark.parametrize("template", ["causal", "reasoning", "sliding_window", "self_managed"])
async def test_mistakes_are_answered_and_cost_the_environment_no_step(template):
    calls = solution(TASKS[0])
    texts = [LOST, BROKEN, f"{calls[0]}\n{LOST}", *calls[1:]]
    async with pocket() as client:
        rollout, _ = await play(client, texts, template=template, slack=0)
    trajectory = rollout.trajectory
    assert trajectory.outcome.score == 1.0 and trajectory.stop_reason is StopReason.FINISHED
    assert [step.problems for step in trajectory.steps[:3]] == [("unknown_tool",), ("broken",), ("unknown_tool",)]
    assert "did you mean 'note_find'?" in trajectory.steps[0].observation
    ids = [call["id"] for message in trajectory.messages for call in message.get("tool_calls", ())]
    assert ids == [message["tool_call_id"] for message in trajectory.messages if message["role"] == "tool"]
