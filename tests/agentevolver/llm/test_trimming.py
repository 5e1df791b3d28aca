"""What goes out of a transcript that is too long, in what order, and what never does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.llm.prompts import LATEST, LEAST, StepText, cut, fitted, transcript

_TEXT = st.text(alphabet="ab \n<é中", max_size=1500)
_STEPS = st.lists(st.tuples(_TEXT, _TEXT, st.sampled_from(["", "because"])), max_size=12).map(
    lambda rows: [
        StepText(i, action[:40], observation, thought) for i, (action, observation, thought) in enumerate(rows)
    ]
)


def size(steps):
    return len(transcript(steps, 10**9))


@pytest.mark.thorough
@settings(deadline=None, max_examples=300)
@given(_STEPS, st.integers(0, 12_000))
def test_no_more_goes_than_must_and_the_oldest_goes_first(steps: list[StepText], room: int) -> None:
    before = list(steps)
    kept = fitted(steps, room, size)
    assert steps == before, "a pure function"
    if size(steps) <= room:
        assert kept == steps
        return
    by_index = {step.index: step for step in steps}
    assert [step.index for step in kept] == list(range(len(steps)))[len(steps) - len(kept) :], (
        "the steps that stay are the last ones"
    )
    assert len(kept) >= min(LATEST, len(steps))
    for step in kept:
        was = by_index[step.index]
        assert step.action == was.action and len(step.observation) <= len(was.observation)
        assert step.thought in ("", was.thought)
    can_lose = [step for step in kept if by_index[step.index].thought or len(by_index[step.index].observation) > LEAST]
    touched = [step != by_index[step.index] for step in can_lose]
    assert touched == sorted(touched, reverse=True), "no step loses anything while an older one is whole"
    if any(step != by_index[step.index] for step in kept[-LATEST:]):
        assert len(kept) <= LATEST, "the latest steps lose nothing while others are there"
    if size(kept) > room:
        assert len(kept) <= LATEST and all(len(step.observation) <= LEAST and not step.thought for step in kept), (
            "nothing is left to go"
        )
    assert fitted(kept, room, size) == kept, "what fits stays as it is"


@settings(deadline=None)
@given(st.text(max_size=400), st.integers(60, 500))
def test_a_cut_text_keeps_to_its_limit_and_has_head_and_tail(text: str, limit: int) -> None:
    short = cut(text, limit)
    assert len(short) <= limit or short == text
    if len(text) > limit:
        assert "characters and more left out" in short
        assert short[0] == text[0] and short[-1] == text[-1]
