"""The live timeline: edits change what is shown, what is unchanged is not rendered again."""

import pytest

from context_manager.timeline import LiveTimeline
from tests.context_manager.episodes import OPENING


def grown(renderer, turns=4):
    timeline = LiveTimeline(renderer, OPENING)
    for step in range(turns):
        timeline.said([*renderer.encode(f"act{step}"), renderer.tokenizer.eos_token_id], f"act{step}", step)
        timeline.add({"role": "user", "content": f"seen{step}"})
    return timeline


def text(timeline):
    return timeline.renderer.tokenizer.decode(timeline.prompt())


def rendered(timeline):
    return timeline.renderer.tokenizer.apply_chat_template(timeline.chat(), tokenize=False, add_generation_prompt=True)


EDITS = {
    "nothing": lambda t: None,
    "drop a turn": lambda t: t.drop(t.turns()[1]),
    "drop everything": lambda t: t.drop(t.messages),
    "rewrite an answer": lambda t: t.rewrite(t.messages[3], "short"),
    "rewrite a reply": lambda t: t.rewrite(t.messages[2], "short"),
    "a note in front": lambda t: t.note("earlier: x"),
    "a note between": lambda t: t.note("by the way", at=4),
    "drop a reply alone": lambda t: t.drop([t.messages[2]]),
    "replace the list": lambda t: setattr(t, "messages", t.messages[4:]),
    "swap answers": lambda t: t.messages.__setitem__(slice(1, 4, 2), [t.messages[3], t.messages[1]]),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_after_an_edit_the_prompt_is_what_the_template_renders_of_the_messages(renderer, edit):
    timeline = grown(renderer)
    timeline.prompt()
    edit(timeline)
    assert text(timeline) == rendered(timeline)
    timeline.said([*renderer.encode("more"), renderer.tokenizer.eos_token_id], "more", 9)
    timeline.add({"role": "user", "content": "seen"})
    assert text(timeline) == rendered(timeline)
    assert timeline.prompt_of(timeline.messages) == timeline.prompt()
