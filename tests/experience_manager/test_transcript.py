"""Transcripts within a length: even, from the first step to the last, and honest about what is missing."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.llm import prompts
from experience_manager.prompts import transcript

_LENGTHS = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 9000)), max_size=60)


@settings(deadline=None)
@given(_LENGTHS, st.integers(400, 60_000))
def test_a_transcript_of_a_given_length_keeps_what_fits_its_ends_and_says_what_it_leaves_out(
    lengths: list[tuple[int, int]], total: int
) -> None:
    steps = [(i, "a" * action, "o" * observation) for i, (action, observation) in enumerate(lengths)]
    text, whole = transcript(steps, 8000, total), prompts.transcript(steps, 8000)
    assert len(text) <= max(1.3 * total, 900)
    if len(whole) <= total:
        assert text == whole
    shown = prompts.read_steps(text)
    assert [step.index for step in shown] == sorted({step.index for step in shown} & set(range(len(steps))))
    if steps:
        assert shown[0].index == 0 and shown[-1].index == len(steps) - 1
    gaps = sum(int(n) for n in re.findall(r"\[\.\.\. (\d+) steps left out", text))
    assert gaps == len(steps) - len(shown)
