"""Files of synthetic tasks: ours, AgentEvolver's old and new ones, and those that are none."""

import json
from dataclasses import replace

import pytest
from questioning_fakes import all_synthetic_tasks

from agentevolver.types import Task
from task_manager.background import round_files
from task_manager.tasks import (
    env_params_of,
    read_objectives,
    read_tasks,
    seed_of,
    solution_of,
    write_objectives,
    write_tasks,
)

OURS = Task(
    "a.k1.2#0",
    "pocket",
    True,
    "q",
    "x\ndone",
    "state",
    {"seed_task_id": "a.k1.2", "solution": ["x", "done"], "env_params": {"n": 1}},
)


def test_files_of_the_original_are_read_and_their_tasks_get_ids_of_their_own(tmp_path):
    common = {"task_id": "s1", "env_type": "appworld", "evaluator": "llm"}
    new = {**common, "open_query": True, "metadata": {}, "query": "q", "ground_truth": "g"}
    old = {**common, "query": "r", "metadata": None}
    lines = [
        {"task": new, "confidence": 0.5, "reward": None},
        {"task": old, "ground_truth": "h", "confidence": 1.0, "reward": 0.3},
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tasks = read_objectives(tmp_path / "t.jsonl")
    assert [(t.task_id, t.ground_truth, t.open_query, seed_of(t)) for t in tasks] == [
        ("s1#0", "g", True, "s1"),
        ("s1#1", "h", True, "s1"),
    ]
    assert [solution_of(t) for t in tasks] == [["g"], ["h"]] and tasks[0].metadata["confidence"] == 0.5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not a synthetic task"),
        ('{"task": {"task_id": "a", "env_type": "x", "query": "q"}}', "query or ground_truth is missing"),
        ('{"task": {"task_id": "a", "query": "q", "ground_truth": "g"}}', "env_type"),
    ],
)
def test_what_is_no_synthetic_task_is_named_with_its_line(tmp_path, line, message):
    write_objectives(tmp_path / "t.jsonl", [OURS])
    with (tmp_path / "t.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=rf"t\.jsonl:2: .*{message}"):
        read_objectives(tmp_path / "t.jsonl")


def test_our_tasks_survive_their_file_also_with_what_ends_a_line_elsewhere(tmp_path):
    odd = replace(OURS, query="one\u2028two\u0085three\x1cfour\rfive\nsix")
    write_objectives(tmp_path / "t.jsonl", [odd, replace(OURS, task_id="a.k1.2#1")])
    task, _ = read_objectives(tmp_path / "t.jsonl")
    assert task.query == odd.query
    assert (seed_of(task), solution_of(task), env_params_of(task)) == ("a.k1.2", ["x", "done"], {"n": 1})
    write_tasks(tmp_path / "p.jsonl", [odd])
    assert read_tasks(tmp_path / "p.jsonl") == [odd]


def test_rounds_are_read_in_their_order_and_unfinished_ones_are_not(tmp_path):
    path = tmp_path / "t.jsonl"
    for number, name in enumerate(
        ("t.jsonl", "t.jsonl.round2", "t.jsonl.round10", "t.jsonl.round1", "t.jsonl.round3.unfinished")
    ):
        write_objectives(
            tmp_path / name, [Task(f"a#{number}", "pocket", True, "q", "x", "state", {"seed_task_id": "a"})]
        )
    assert [file.name for file in round_files(path)] == ["t.jsonl.round1", "t.jsonl.round2", "t.jsonl.round10"]
    assert [task.task_id for task in all_synthetic_tasks(path)] == ["a#0", "a#3", "a#1", "a#2"]
