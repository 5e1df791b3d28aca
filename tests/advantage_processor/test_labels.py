import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advantage_processor.labels import LabelError, opening_and_task, read_some
from tests.advantage_processor.judges import read_labels
from tests.trajectories import trajectory as rollout


def answer(flags, first=0):
    steps = [
        {"index": first + i, "analysis": f"a{i}", "label": "GOOD" if flag == "G" else "BAD"}
        for i, flag in enumerate(flags)
    ]
    return {"steps": steps}


def flags_of(text, count, first=0):
    return "".join("G" if label.good else "B" for label in read_labels(text, range(first, first + count)))


@settings(max_examples=60, deadline=None)
@given(flags=st.text("GB", min_size=1, max_size=30), first=st.integers(0, 60), shuffled=st.randoms())
def test_json_is_read_by_index_in_any_order(flags, first, shuffled):
    reply = answer(flags, first)
    shuffled.shuffle(reply["steps"])
    assert flags_of(json.dumps(reply), len(flags), first) == flags
    assert flags_of(json.dumps(reply["steps"]), len(flags), first) == flags


@settings(max_examples=60, deadline=None)
@given(flags=st.text("GB", min_size=1, max_size=30), shuffled=st.randoms())
def test_the_classic_lines_are_read_by_index_in_any_order(flags, shuffled):
    lines = [
        f"Step {i} Analysis: this is not BAD\nStep {i} Judgment: {'GOOD' if flag == 'G' else 'BAD'}"
        for i, flag in enumerate(flags)
    ]
    shuffled.shuffle(lines)
    assert flags_of("\n".join(lines), len(flags)) == flags


@pytest.mark.parametrize(
    "wrapped",
    [
        "```json\n{}\n```",
        "Here is my judgement of the [2] steps:\n{}\nI hope that helps.",
        '<think>maybe {{"steps": [{{"index": 0, "label": "BAD"}}]}}</think>{}',
        "the template opened the thinking</think>\n{}",
    ],
)
def test_json_is_found_in_its_wrapping(wrapped):
    assert flags_of(wrapped.format(json.dumps(answer("GB"))), 2) == "GB"


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("", "is empty"),
        (json.dumps(answer("GB")), "step 2 has no entry"),
        (
            json.dumps({"steps": [*answer("GBG")["steps"], {"index": 1, "label": "GOOD"}]}),
            "step 1 has more than one entry",
        ),
        (json.dumps(answer("GBG", first=1)), "step 0 has no entry; step 3 was not asked for"),
        (json.dumps(answer("GBG")) + json.dumps(answer("BBB")), "2 different answers"),
        (json.dumps(answer("GBG"))[:-20], "does not fit"),
        ("<think>" + json.dumps(answer("GBG")), "inside its thinking"),
        ("Step 0 Judgment: GOOD\nStep 1 Judgment: GOOD or BAD\nStep 2 Judgment: BAD", "step 1 has no entry"),
    ],
)
def test_anything_but_one_label_for_each_step_is_refused_and_named(reply, problem):
    with pytest.raises(LabelError, match=problem):
        read_labels(reply, range(3))


@pytest.mark.parametrize(
    "entry",
    [
        {"index": 1, "label": "GOOD or BAD"},
        "GOOD",
    ],
)
def test_an_entry_that_cannot_be_read_costs_none_of_the_others(entry):
    found = read_some(json.dumps([{"index": 0, "label": "GOOD"}, entry, {"index": 2, "label": "BAD"}]), range(3))
    assert {index: label.good for index, label in found.labels.items()} == {0: True, 2: False}
    assert "step 1 has no entry" in found.problem and "cannot be read" in found.problem


@pytest.mark.parametrize(
    "hostile", ["[" * 100_000, "Step 1 " * 30_000, '{"a":' * 50_000, "**_" * 60_000, "[1]" * 50_000]
)
def test_hostile_replies_are_refused_quickly(hostile):
    began = time.process_time()
    with pytest.raises(LabelError):
        read_labels(hostile, range(2))
    assert time.process_time() - began < 1.0


def opened(last, query=None, injected=""):
    messages = [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": injected + last},
        {"role": "assistant", "content": "go"},
    ]
    return rollout(messages=messages, task={"query": query}, guidance={"injected": injected} if injected else None)


@pytest.mark.parametrize(
    ("record", "opening", "task"),
    [
        (opened("reach the goal\n\nA F"), "rules", "reach the goal\n\nA F"),
        (opened("walk north\n\nA F", "walk north"), "rules\n\nA F", "walk north"),
        (opened("walk north\n\nA F", "walk north", "<EXP>be quick</EXP>"), "rules\n\nA F", "walk north"),
        (opened("walk north", "walk north"), "rules", "walk north"),
        (opened("something else", "walk north"), "rules", "walk north"),
    ],
)
def test_the_state_beside_the_task_is_shown_and_guidance_is_not(record, opening, task):
    assert opening_and_task(record) == (opening, task)
