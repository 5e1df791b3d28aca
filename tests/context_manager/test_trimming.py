"""What the templates share that shorten the conversation: when they step in, what they may drop, and that the budget
holds."""

from context_manager.settings import ContextSettings
from context_manager.sliding_window import TrimmingTemplate
from context_manager.template import ContextLimits
from tests.context_manager.episodes import begin, shown, turn

TIGHT = ContextLimits(
    max_prompt_tokens=100, max_response_tokens=600, max_model_len=1_000, max_new_tokens=40, max_observation_tokens=60
)


def grown(renderer, turns=6, limits=TIGHT, options=None, template=TrimmingTemplate):
    context = begin(template, renderer, limits, options)
    for step in range(turns):
        turn(context, f"act{step}", f"seen{step}", step)
    return context


def test_the_newest_turns_stay_as_many_as_were_asked_for_if_they_fit(renderer):
    options = ContextSettings(context_trigger_tokens=200, context_keep_turns=2)
    context = grown(renderer, options=options)
    context.fit()
    assert [message.content for message in context.timeline.messages] == ["act4", "seen4", "act5", "seen5"]
    assert context.edits == [{"calls": 6, "kind": "drop", "messages": [[1, 8]], "text": ""}]


def test_fewer_turns_stay_where_more_do_not_fit_and_one_always_does(renderer):
    context = begin(
        TrimmingTemplate, renderer, TIGHT, ContextSettings(context_trigger_tokens=200, context_keep_turns=5)
    )
    for step in range(5):
        turn(context, f"act{step}", "o" * 60, step)
    context.fit()
    assert [message.content for message in context.timeline.messages] == ["act4", "o" * 60]
    assert len(context.timeline.prompt()) <= 200
    tiny = begin(TrimmingTemplate, renderer, TIGHT, ContextSettings(context_trigger_tokens=1))
    for step in range(3):
        turn(tiny, f"act{step}", "seen", step)
    tiny.fit()
    assert [message.content for message in tiny.timeline.messages] == ["act2", "seen"]


def test_what_is_pinned_outlives_older_turns_until_the_context_would_be_full(renderer):
    context = begin(TrimmingTemplate, renderer, TIGHT)
    turn(context, "the plan", "go on", 0)
    context.timeline.pin(context.timeline.messages[0])
    for step in range(1, 12):
        turn(context, f"act{step}", "o" * 50, step)
        context.fit()
        assert "the plan" in shown(context, context.timeline.prompt())
    assert any(edit["kind"] == "drop" for edit in context.edits)
    for message in list(context.timeline.messages):
        context.timeline.pin(message)
    for step in range(12, 20):
        turn(context, f"act{step}", "o" * 50, step)
        context.timeline.pin(context.timeline.messages[-1])
        context.timeline.pin(context.timeline.messages[-2])
        context.fit()
        assert len(context.timeline.prompt()) <= context.room
