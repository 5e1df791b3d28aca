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


def test_each_message_is_rendered_once_however_many_prompts_are_made(renderer, monkeypatch):
    timeline = grown(renderer, turns=0)
    rendered_texts = []
    encode = type(renderer).encode
    monkeypatch.setattr(type(renderer), "encode", lambda self, text: rendered_texts.append(text) or encode(self, text))
    for step in range(8):
        timeline.prompt()
        timeline.said([7, renderer.tokenizer.eos_token_id], "x", step)
        timeline.add({"role": "user", "content": f"seen{step}"})
        if step == 5:
            timeline.drop(timeline.older(3))
    timeline.prompt()
    assert sum("seen0" in t for t in rendered_texts) == 1
    assert all(sum(f"seen{i}" in t for t in rendered_texts) == 1 for i in range(8))


def test_sizes_add_up_to_the_prompt_and_are_shared_where_messages_stand_together(renderer):
    timeline = grown(renderer)
    timeline.add({"role": "tool", "content": "x" * 30})
    whole = len(timeline.prompt())
    sizes = timeline.sizes()
    assert set(sizes) == set(timeline.messages)
    assert sum(sizes.values()) + timeline.opening_length == pytest.approx(whole, abs=2)
    assert sizes[timeline.messages[-1]] > sizes[timeline.messages[-2]]
    timeline.drop(timeline.messages[:3])
    whole = len(timeline.prompt())
    sizes = timeline.sizes()
    assert sum(sizes[message] for message in timeline.messages) + timeline.opening_length == pytest.approx(whole, abs=2)


def test_an_append_only_timeline_has_nothing_between_opening_and_first_reply(renderer):
    timeline = LiveTimeline(renderer, OPENING, append_only=True)
    timeline.add({"role": "user", "content": "too early"})
    with pytest.raises(ValueError, match="put it into the opening"):
        timeline.prompt()
