"""Demonstrations are read line by line, and are what a rollout in the world would be; what is wrong is named by its
line."""

import pytest

from agentevolver.recipes.offline.seed.demonstrations import (
    Demonstration,
    DemonstrationError,
    played,
    read_demonstrations,
)
from agentevolver.recipes.offline.tests.seed.worlds import Parrot

GOOD = '{"task_id": "zebra", "actions": ["hello", "zebra"]}'


def demonstration(*actions, task_id="zebra"):
    return Demonstration(task_id, actions, "demos.jsonl:7")


def test_lines_are_demonstrations_and_empty_ones_nothing(tmp_path):
    path = tmp_path / "demos.jsonl"
    path.write_text(f"{GOOD}\n\n{GOOD.replace('zebra', 'okapi')}\n")
    assert read_demonstrations(path) == [
        Demonstration("zebra", ("hello", "zebra"), f"{path}:1"),
        Demonstration("okapi", ("hello", "okapi"), f"{path}:3"),
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"task_id": "zebra", "actions": ["hel', "no JSON"),
        ('["zebra"]', "an object with the keys task_id and actions"),
        ('{"task_id": "zebra"}', "an object with the keys task_id and actions"),
        ('{"task_id": "zebra", "actions": ["a"], "score": 1}', "and no others"),
        ('{"task_id": 3, "actions": ["a"]}', "task_id must be a text"),
        ('{"task_id": "", "actions": ["a"]}', "task_id must be a text"),
        ('{"task_id": "zebra", "actions": "a"}', "actions must be a list"),
        ('{"task_id": "zebra", "actions": []}', "actions must be a list"),
        ('{"task_id": "zebra", "actions": ["a", ""]}', "actions must be a list"),
        ('{"task_id": "zebra", "actions": ["a", 3]}', "actions must be a list"),
    ],
)
def test_a_malformed_line_is_refused_by_its_number_in_one_line(tmp_path, line, why):
    path = tmp_path / "demos.jsonl"
    path.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(DemonstrationError) as caught:
        read_demonstrations(path)
    said = str(caught.value)
    assert said.startswith(f"{path}:2: ") and why in said and "\n" not in said


def test_a_file_that_is_not_there_or_holds_nothing_is_refused(tmp_path):
    with pytest.raises(DemonstrationError, match="cannot be read: No such file"):
        read_demonstrations(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DemonstrationError, match="holds no demonstration"):
        read_demonstrations(tmp_path / "empty.jsonl")


def test_what_the_world_says_stands_between_the_actions_and_nothing_behind_the_last():
    shown = played(Parrot, demonstration("hello", "zebra"), {"greeting": "hi"})
    assert [(m["role"], m["content"]) for m in shown.messages] == [
        ("user", "hi zebra"),
        ("assistant", "hello"),
        ("user", "no, turn 1"),
        ("assistant", "zebra"),
    ]
    assert shown.score == 1.0 and played(Parrot, demonstration("hello")).score == 0.0


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (demonstration("a", task_id="gnu"), "does not take this task: ValueError: no task 'gnu'"),
        (demonstration("zebra", "more"), "over with action 1 of 2"),
        (demonstration("bite"), "the world failed: RuntimeError: the parrot bit back"),
        (demonstration("empty", "zebra"), "says nothing before an action"),
        (demonstration("special", "zebra"), "<|im_end|> cannot be part of a message"),
        (demonstration("<|im_start|>"), "<|im_start|> cannot be part of a message"),
    ],
)
def test_what_the_world_does_not_take_is_refused_by_its_line(wrong, why):
    with pytest.raises(DemonstrationError) as caught:
        played(Parrot, wrong)
    assert str(caught.value).startswith("demos.jsonl:7: ") and why in str(caught.value)
    assert "\n" not in str(caught.value)
