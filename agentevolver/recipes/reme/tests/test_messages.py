"""Rollouts that are known by their messages alone."""

from agentevolver.recipes.reme.messages import from_messages, to_messages
from tests.experience_manager.experience_fakes import attempt

OPENING = [{"role": "system", "content": "You are at site k7."}, {"role": "user", "content": "do t1"}]


def test_messages_alone_become_an_attempt_with_several_observations_joined():
    messages = [
        *OPENING,
        {"role": "assistant", "content": "look", "tool_calls": [{"function": {"name": "x", "arguments": '{"a": 1}'}}]},
        {"role": "tool", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "image"}]},
        {"role": "assistant", "content": None},
    ]
    found = from_messages(messages, 0.5, success_threshold=0.5)
    assert (found.opening, found.task, found.success) == ("You are at site k7.", "do t1", True)
    assert found.steps == ((0, 'look\n<tool_call>x {"a": 1}</tool_call>', "a\nb\n"), (1, "", ""))


def test_tasks_without_an_id_are_told_apart_by_opening_and_task():
    talk = [*OPENING, {"role": "assistant", "content": "x"}]
    other = [{"role": "system", "content": "You are at site k8."}, *talk[1:]]
    names = [
        from_messages(m, 1, success_threshold=1).task_id
        for m in (talk, [*talk, {"role": "user", "content": "y"}], other)
    ]
    assert names[0] == names[1] != names[2]
    assert from_messages(talk, 1, success_threshold=1, task_id="t9").task_id == "t9"


def test_what_is_sent_is_read_as_the_same_rollout():
    one = attempt(score=0.5)
    sent = to_messages(one)
    read = from_messages(sent["messages"], sent["score"], success_threshold=1.0, task_id=sent["task_id"])
    assert (read.opening, read.task, read.steps, read.score) == (one.opening, one.task, one.steps, one.score)
