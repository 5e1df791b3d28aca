"""Guidance in a conversation, and the same conversation without it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experience_manager.guide import Guidance, inject, strip
from experience_manager.settings import TEMPLATE, ExperienceSettings

TEXT = st.text(max_size=60)
ROLES = st.sampled_from(["system", "user"])
MESSAGE = st.fixed_dictionaries({"role": ROLES, "content": TEXT})
OPENING = st.lists(MESSAGE, min_size=1, max_size=4)
LATER = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": TEXT}), max_size=4)


def trained_on(injection):
    return injection.plain if injection.stripped else injection.messages


@settings(max_examples=50, deadline=None)
@given(OPENING, TEXT.filter(lambda text: text.strip()), st.booleans())
def test_guidance_stands_before_the_task_and_nothing_else_changes(opening, text, keep):
    injection = inject(opening, Guidance(text, ("a",), keep), TEMPLATE)
    assert injection.guided and injection.plain == opening
    assert injection.messages[:-1] == opening[:-1]
    assert injection.messages[-1]["content"] == TEMPLATE.replace("{}", text, 1) + opening[-1]["content"]
    assert injection.messages[-1]["role"] == opening[-1]["role"]


@settings(max_examples=50, deadline=None)
@given(OPENING, st.sampled_from(["", " ", "\n\t "]), st.booleans())
def test_without_a_text_nothing_is_injected_and_nothing_is_called_guided(opening, text, keep):
    injection = inject(opening, Guidance(text, ("a",), keep, problem="empty"), TEMPLATE)
    assert not injection.guided and not injection.stripped and injection.use().to_dict()["guidance"] is None
    assert injection.messages == injection.plain == trained_on(injection) == opening


@settings(max_examples=50, deadline=None)
@given(OPENING, TEXT.filter(lambda text: text.strip()), LATER)
def test_stripping_gives_back_the_opening_to_the_letter_whatever_the_texts_hold(opening, text, later):
    injection = inject(opening, Guidance(text, ("a",)), TEMPLATE)
    assert trained_on(injection) == opening
    talk = [{"role": "assistant", "content": "note.find"}, *later]
    assert strip([*injection.messages, *talk], injection.injected) == [*opening, *talk]


@pytest.mark.parametrize(
    "opening", [[], [{"role": "user", "content": [{"type": "text", "text": "a"}]}], [{"role": "user"}]]
)
def test_an_opening_that_does_not_end_with_a_text_is_refused_and_not_guessed(opening):
    with pytest.raises(ValueError, match="stands before the task's text"):
        inject(opening, Guidance("x"), TEMPLATE)


@pytest.mark.parametrize(
    ("guided", "kept", "boosting", "clip"),
    [(True, False, True, 0.6), (True, True, True, 0.28), (False, False, True, 0.28), (True, False, False, 0.28)],
)
def test_only_guided_and_stripped_samples_get_the_wider_clip(guided, kept, boosting, clip):
    settings = ExperienceSettings(selective_boosting=boosting)
    assert settings.clip_ratio_high(guided=guided, kept=kept, otherwise=0.28) == clip
