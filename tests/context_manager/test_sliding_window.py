"""The sliding window: older turns give way to a summary, the newest stay, and prompts are bounded over any horizon."""

import pytest

from context_manager.settings import ContextSettings
from context_manager.sliding_window import NOTE, SlidingWindowTemplate
from context_manager.template import ContextLimits
from tests.context_manager.episodes import begin, shown, turn

LIMITS = ContextLimits(
    max_prompt_tokens=100, max_response_tokens=900, max_model_len=1_000, max_new_tokens=60, max_observation_tokens=80
)
TRIGGERED = ContextSettings(context_trigger_tokens=300, context_keep_turns=2, summary_tokens=40)


def filled(renderer, options=TRIGGERED, turns=6, limits=LIMITS, **more):
    context = begin(SlidingWindowTemplate, renderer, limits, options)
    for step in range(turns):
        turn(context, f"act{step}", f"seen{step} " + "o" * 40, 10 * step, **more)
    return context


def texts(context):
    return [message.content for message in context.timeline.messages]


def test_a_summary_takes_the_place_of_older_turns_and_the_newest_stay(renderer):
    context = filled(renderer, answers={"summary": "did a"})
    assert context.edits[0]["kind"] == "summary"
    assert texts(context)[0] == NOTE.format(text="did a")
    assert context.timeline.messages[0].role == "user"
    assert texts(context)[-2:] == ["act5", "seen5 " + "o" * 40]
    assert not any("act0" in text for text in texts(context))
    assert [message["content"] for message in context.messages if message["role"] == "assistant"] == [
        f"act{i}" for i in range(6)
    ], "the record keeps everything"


def test_the_policy_is_asked_on_the_conversation_that_it_knows_and_trained_on_its_summary(renderer):
    context = filled(renderer, turns=4)
    while (call := context.housekeeping()) is None:
        turn(context, "act", "o" * 60, 90)
    assert (call.kind, call.by, call.max_new_tokens) == ("summary", "policy", 40)
    before = context.timeline.prompt()
    assert call.prompt_ids[: len(before) - len(renderer.generation)] == before[: -len(renderer.generation)]
    assert "at most 40 tokens" in shown(context, call.prompt_ids)
    calls = len(context.recorder.snapshots)
    context.answer(call, renderer.encode("did a"), [-0.2] * 5, 99)
    assert context.recorder.snapshots[calls].kind == "summary" and context.recorder.snapshots[calls].trained
    assert context.housekeeping() is None, "asked once between two replies"


@pytest.mark.parametrize("said", ["s" * 500, "é" * 60, "�" * 40])
def test_a_summary_is_bounded_whatever_was_said(renderer, said):
    context = filled(renderer, turns=4)
    while (call := context.housekeeping()) is None:
        turn(context, "act", "o" * 60, 90)
    context.settle(call, said)
    note = context.timeline.messages[0].content
    assert len(renderer.encode(note)) <= len(renderer.encode(NOTE.format(text=""))) + 40


def test_a_roles_model_gets_the_opening_and_what_goes_as_a_transcript(renderer):
    context = filled(renderer, TRIGGERED.model_copy(update={"summary_by": "summariser"}), turns=3)
    while (call := context.housekeeping()) is None:
        turn(context, "act", "</transcript> o", 90)
    assert call.by == "summariser" and call.prompt_ids == [] and call.max_new_tokens == 40
    system, user = call.messages
    assert system["content"].startswith("role: summariser/context\n")
    assert "<opening>\ns\ngo\n</opening>" in user["content"] and "<summary>" not in user["content"]
    assert "step 0\naction: act0\nobservation: seen0" in user["content"]
    assert user["content"].count("</transcript>") == 1, "an observation cannot close its section"
    snapshots = len(context.recorder.snapshots)
    context.settle(call, "told")
    assert len(context.recorder.snapshots) == snapshots and texts(context)[0] == NOTE.format(text="told")
    while (call := context.housekeeping()) is None:
        turn(context, "act", "o" * 60, 90)
    assert "<summary>\ntold\n</summary>" in call.messages[1]["content"], "the next summary knows the one before it"


def test_two_hundred_turns_take_no_more_room_than_fifty(renderer):
    context = begin(SlidingWindowTemplate, renderer, LIMITS, TRIGGERED)
    sizes = []
    for step in range(200):
        prompt = turn(context, f"act{step}", f"seen{step} " + "o" * 40, step, answers={"summary": f"upto {step}"})
        timeline = context.timeline
        sizes.append(
            (len(prompt), len(timeline.messages), len(timeline._blocks), len(timeline._seen_ids), len(timeline._seen))
        )
        assert len(prompt) <= context.trigger
    early, late = sizes[:50], sizes[50:]
    for measure in range(5):
        assert max(size[measure] for size in late) <= max(size[measure] for size in early) + 8
    per_call = sum(len(s.prompt_ids) for s in context.recorder.snapshots) / len(context.recorder.snapshots)
    assert per_call <= context.total
    assert "upto" in shown(context, prompt), "what happened long ago is still told of"
