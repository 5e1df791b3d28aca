"""What the judge of steps is shown of an opening."""

import pytest

from advantage_processor.labels import opening_and_task
from tests.trajectories import trajectory as rollout


def trajectory(last, query=None, injected=""):
    messages = [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": injected + last},
        {"role": "assistant", "content": "go"},
    ]
    return rollout(messages=messages, task={"query": query}, guidance={"injected": injected} if injected else None)


@pytest.mark.parametrize(
    ("record", "opening", "task"),
    [
        (trajectory("reach the goal\n\nA F"), "rules", "reach the goal\n\nA F"),
        (trajectory("walk north\n\nA F", "walk north"), "rules\n\nA F", "walk north"),
        (trajectory("walk north\n\nA F", "walk north", "<EXP>be quick</EXP>"), "rules\n\nA F", "walk north"),
        (trajectory("walk north", "walk north"), "rules", "walk north"),
        (trajectory("something else", "walk north"), "rules", "walk north"),
    ],
)
def test_the_state_beside_the_task_is_shown_and_guidance_is_not(record, opening, task):
    assert opening_and_task(record) == (opening, task)
