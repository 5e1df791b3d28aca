"""Demonstrations: references solve tasks, mistakes stand in the context alone, and one command writes the file."""

import json
import random

import pytest

from agentevolver.llm.message_logs import find_logs, read_logs
from agentevolver.trainer.job.cold_start import render
from context_manager.chat import ChatRenderer
from env_service.cli import main
from env_service.demonstrations import NoReference, demonstrations, instance, mistaken, with_references
from env_service.registry import known_environments, load
from tests.real_tokenizers import build_real

# What a task of them needs is asked for by their own tests: packages in a venv, data, a compiler.
ELSEWHERE = {"bfcl", "catalogue", "scienceworld", "textworld"}


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("name", sorted(set(with_references()) - ELSEWHERE))
def test_following_the_reference_solves_the_task_in_each_format(name, native):
    found = load(known_environments()[name])
    params = {"native_tools": True} if native and found.native_tools else {}
    tasks = random.Random(name).sample(found.get_query_list("train"), 5)
    assert [instance(found, task, params).score for task in tasks] == [1.0] * 5


@pytest.mark.parametrize("params", [{}, {"native_tools": True}, {"syntax": "json"}])
def test_a_conversation_with_mistakes_succeeds_and_they_alone_weigh_nothing(params):
    pocket = load(known_environments()["pocket_app"])
    tasks = pocket.get_query_list("train")[:20]
    found, again = (list(demonstrations(pocket, tasks, 20, params=params, seed=3)) for _ in range(2))
    assert found == again and len({one["task_id"] for one in found}) == 20
    assert sum(one["metadata"]["mistakes"] for one in found) > 5
    for one in found:
        said = [message for message in one["messages"] if message["role"] == "assistant"]
        assert sum(message.get("weight") == 0 for message in said) == one["metadata"]["mistakes"]
        assert one["messages"][-1] is said[-1] and said[-1].get("weight") is None
        right = [
            {key: message[key] for key in ("content", "tool_calls") if key in message}
            for message in said
            if "weight" not in message
        ]
        reference = instance(pocket, one["task_id"], params).messages
        assert [message.get("content") for message in right] == [
            message["content"] for message in reference if message["role"] == "assistant"
        ]


@pytest.mark.environment("gymnasium")
def test_where_the_way_from_here_is_known_a_mistake_is_walked_around():
    lake = load(known_environments()["gymnasium"])
    tasks = [task for task in lake.get_query_list("train") if task.startswith("FrozenLake")][:20]
    found = list(demonstrations(lake, tasks, 20, seed=1))
    lengths = {task: len(instance(lake, task, {}).actions) for task in tasks}
    beside = [
        sum(message["role"] == "assistant" for message in one["messages"])
        - one["metadata"]["mistakes"]
        - lengths[one["task_id"]]
        for one in found
    ]
    assert any(beside)


def test_a_mistake_keeps_the_form_of_its_call():
    rng = random.Random(0)
    right = '<tool_call>\n{"name": "calc", "arguments": {"a": 3, "b": 4}}\n</tool_call>'
    drawn = {mistaken(rng, right, [], [], [right.replace("3", "7")]) for _ in range(100)} - {None}
    assert right.replace("3", "7") in drawn and right.replace('"a": 3, ', "") in drawn
    assert {mistaken(rng, "note.tag n3 fun", [], [], []) for _ in range(100)} == {None, "note.tag n3", "note.tag fun"}
    assert mistaken(random.Random(1), "done", [], [], []) is None


def test_the_command_writes_what_the_cold_start_reads(tmp_path, capsys):
    out = tmp_path / "demos.jsonl"
    options = f"-n 30 --mistakes 0.5 --out {out} slack=3 --filter levels=[2]".split()
    assert main(["demonstrate", "pocket", *options]) == 0
    assert "30 of 30 conversations" in capsys.readouterr().out
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert {one["env_type"] for one in records} == {"pocket"} and all(one["success"] for one in records)
    hinted = [one for one in records if one["metadata"]["hinted"]]
    assert 5 < len(hinted) < 25
    for one in records:
        asked = next(message["content"] for message in one["messages"] if message["role"] == "user")
        assert ("<EXP>" in asked) is one["metadata"]["hinted"]
    renderer = ChatRenderer(build_real("qwen2_5"))
    kept, left_out = render(read_logs(find_logs([str(out)])), renderer, 10**4)
    assert len(kept) == 30 and not left_out
    for one, made in zip(records, kept, strict=True):
        imitated = renderer.tokenizer.decode([i for i, m in zip(made.ids, made.mask, strict=True) if m])
        right = [m["content"] for m in one["messages"] if m["role"] == "assistant" and "weight" not in m]
        assert imitated == "".join(f"{text}<|im_end|>" for text in right)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        pytest.param(
            ["propose"], "has no reference_actions", marks=pytest.mark.environment("propose"), id="no references"
        ),
        (["pocket", "verbos=true"], "unknown parameter 'verbos'"),
        (["pocket", "--template", "tip"], "--template must hold {} once"),
        (["pocket", "--split", "no"], "there is no split 'no'"),
    ],
)
def test_what_cannot_be_demonstrated_is_one_line(tmp_path, capsys, arguments, why):
    assert main(["demonstrate", *arguments, "--out", str(tmp_path / "x.jsonl")]) == 1
    told = capsys.readouterr().err
    assert why in told and told.count("\n") == 1 and not (tmp_path / "x.jsonl").exists()


def test_an_episode_without_a_task_has_no_reference():
    with pytest.raises(NoReference):
        instance(load(known_environments()["pocket"]), "pay.k5.11", {"is_open_query": True})
