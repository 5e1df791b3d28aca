"""The self-managed context: the policy says what it keeps, its decisions are trained, and the budget holds if it says
nothing."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from context_manager.self_managed import (
    GUIDE,
    REMOVED,
    Command,
    SelfManagedTemplate,
    commands_of,
    without_blocks,
)
from context_manager.settings import ContextSettings
from context_manager.template import ContextLimits
from tests.context_manager.episodes import begin, shown, turn

LIMITS = ContextLimits(
    max_prompt_tokens=400, max_response_tokens=1_200, max_model_len=2_000, max_new_tokens=120, max_observation_tokens=80
)
TRIGGERED = ContextSettings(context_trigger_tokens=600, context_keep_turns=2, summary_tokens=100)


def started(renderer, options=None, limits=LIMITS):
    return begin(SelfManagedTemplate, renderer, limits, options)


def texts(context):
    return [message.content for message in context.timeline.messages]


@pytest.mark.parametrize(
    ("commands", "left"),
    [
        ("remove m1", ["[m2] seen0", "act1", "[m4] seen1", "next", "[m6] seen2"]),
        ("remove m2; keep m2", ["act0", f"[m2] {REMOVED}", "act1", "[m4] seen1", "next", "[m6] seen2"]),
        ("compress m1: a", ["a", "[m2] seen0", "act1", "[m4] seen1", "next", "[m6] seen2"]),
        ("compress m2: s\nremove m2 m1", ["act1", "[m4] seen1", "next", "[m6] seen2"]),
        ("remove m4 m3 m2", ["act0", f"[m4] {REMOVED}", "next", "[m6] seen2"]),
        ("remove m5 m6 m7 m0 m99", ["act0", "[m2] seen0", "act1", "[m4] seen1", "next", "[m6] seen2"]),
    ],
)
def test_commands_in_a_reply_are_carried_out(renderer, commands, left):
    context = started(renderer)
    turn(context, "act0", "seen0", 0)
    turn(context, "act1", "seen1", 1)
    turn(context, f"next<context>\n{commands}\n</context>", "seen2", 2)
    assert texts(context) == left
    rendered = renderer.tokenizer.apply_chat_template(
        context.timeline.chat(), tokenize=False, add_generation_prompt=True
    )
    if "<think>" not in rendered:
        assert shown(context, context.next_prompt()) == rendered


def test_what_is_kept_outlives_what_is_not(renderer):
    context = started(renderer, TRIGGERED)
    turn(context, "act0", "the key is 4711", 0)
    turn(context, "act1<context>keep m2</context>", "seen1", 1)
    for step in range(2, 14):
        prompt = turn(context, f"act{step}", "o" * 60, step, answers={"context": "nothing"})
    assert "the key is 4711" in shown(context, prompt) and "[m4]" not in shown(context, prompt).replace(GUIDE, "")
    assert {"keep", "drop"} <= {edit["kind"] for edit in context.edits}


def test_the_policy_is_asked_once_the_trigger_is_passed_with_the_sizes_of_what_may_go(renderer):
    context = started(renderer, TRIGGERED)
    step = 0
    while (call := context.housekeeping()) is None:
        turn(context, f"act{step}", "o" * 60, step)
        step += 1
    assert len(context.timeline.prompt()) > context.trigger
    asked, newest = call.messages[-1]["content"], context.timeline.last_number
    assert f"of {context.trigger} tokens" in asked
    sizes = {
        int(number): int(size) for number, size in re.findall(r"m(\d+) (\d+)", asked.partition("Tokens by id: ")[2])
    }
    assert sorted(sizes) == list(range(1, newest - 1)), "the newest turn is out of reach"
    assert all(65 <= sizes[number] <= 110 for number in sizes if number % 2 == 0), "sixty, the id, what is around it"
    calls = len(context.recorder.snapshots)
    reply = [*renderer.encode("remove m1 m2\ncompress m4: o"), renderer.tokenizer.eos_token_id]
    context.answer(call, reply, [-0.1] * len(reply), 50)
    assert texts(context)[:2] == ["act1", "[m4] o"]
    snapshot = context.recorder.snapshots[calls]
    assert (snapshot.kind, snapshot.trained, snapshot.sampled_ids) == ("context", True, reply)
    assert context.housekeeping() is None, "asked once between two replies"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Remove m1, m2,m3", [Command("remove", (1, 2, 3))]),
        ("- keep [m4] [m5]", [Command("keep", (4, 5))]),
        ("compress m4: short: text", [Command("compress", (4,), "short: text")]),
        ("compress m1: a; b", [Command("compress", (1,), "a; b")]),
        ("compress m1: a; remove m2", [Command("compress", (1,), "a"), Command("remove", (2,))]),
        ("compress m4:", []),
        ("I would remove m4", []),
        ("remove m" + "9" * 5_000, []),
    ],
)
def test_a_line_is_a_command_or_nothing(line, expected):
    assert commands_of(f"<context>\n{line}\n</context>") == expected


def test_commands_stand_between_tags_unless_they_were_asked_for():
    assert commands_of("remove m1") == []
    assert commands_of("remove m1", asked=True) == [Command("remove", (1,))]
    assert commands_of("remove m1 <context>keep m2</context>", asked=True) == [Command("keep", (2,))], (
        "tags count where there are some"
    )


PIECES = [*("keep", "remove", "compress", "m1", "[m22]", "<context>", "</context>", "- "), *" m3,:;\nx"]


@pytest.mark.thorough
@settings(max_examples=400, deadline=None)
@given(text=st.lists(st.sampled_from(PIECES), max_size=30).map("".join), asked=st.booleans())
def test_whatever_was_said_commands_are_whole_and_reading_them_never_fails(text, asked):
    for command in commands_of(text, asked=asked):
        assert command.numbers and (command.verb != "compress" or (len(command.numbers) == 1 and command.text))
        assert "\n" not in command.text
    assert commands_of(without_blocks(text)) == [] or text.count("<context>") > 1, "what is taken out is what counted"
