"""The transcript of an attempt as it is looked back upon, within a length: all of it evenly, from the first step to the
last.

Who goes on with an attempt needs its latest steps (`agentevolver.llm.prompts`); what an attempt teaches may lie
anywhere in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentevolver.llm import prompts

Steps = Sequence[tuple[int, str, str]]
# What a step takes beside its texts, what the note of a cut takes, and what is left of a text at least.
STEP_CHARS, CUT_CHARS, LEAST_CHARS = 32, 40, 120


def transcript(steps: Steps, part: int, total: int) -> str:
    """Return numbered steps, (index, action, observation) each, as the text of a transcript section.

    Args:
        steps: in order.
        part: the most characters of an action or observation.
        total: about the most of the whole. The longest parts are cut first, all to one length; where that leaves too
            little of each, steps from the middle are left out, which the step before them says.
    """
    shown = _fewer(steps, total)
    level = _level([len(text) for _, *texts in shown for text in texts], total - STEP_CHARS * len(shown))
    return prompts.transcript(shown, min(part, level))


def _fewer(steps: Steps, total: int) -> Steps:
    """Return the first and the last steps, so many that each part may have `LEAST_CHARS`, at least two."""
    most = max(2, total // (STEP_CHARS + 2 * LEAST_CHARS))
    if (
        len(steps) <= most
        or sum(len(action) + len(observation) + STEP_CHARS for _, action, observation in steps) <= total
    ):
        return steps
    head = most // 2
    index, action, observation = steps[head - 1]
    said = (index, action, f"{observation}\n[... {len(steps) - most} steps left out ...]")
    return [*steps[: head - 1], said, *steps[len(steps) - (most - head) :]]


def _level(lengths: list[int], total: int) -> int:
    """Return the greatest length to which parts may be cut so that they are `total` long together, `LEAST_CHARS` at
    least."""
    left = total
    for place, length in enumerate(sorted(lengths)):
        if length * (len(lengths) - place) > left:
            return max(LEAST_CHARS, left // (len(lengths) - place) - CUT_CHARS)
        left -= length
    return max(lengths, default=0)
