"""Whatever a policy writes, a format answers, soon, and gives away nothing that a tool could not be given."""

import random
import time

import pytest

from agentevolver.rollout.tools.formats import TOOL_FORMATS, tool_format
from agentevolver.rollout.tools.reply import END_THINK, MAX_PROBLEMS, THINK
from tests.agentevolver.rollout.tools.replies import WEATHER, Letters
from tests.agentevolver.rollout.tools.writing import writer

SCRAPS = [
    *("{", "}", "[", "]", '"', ":", ",", ";", "\\", "\n", " ", "`", "<", ">", "```json", "\x00", "\ufffd", "é", "😀"),
    '{"name": "get_weather", "arguments": {"city": "Oslo"}}',
    '{"name": "f", "parameters": {}}',
    *('{"city": "Oslo"}', '"name"', '"arguments"', '"parameters"', "null", "NaN", "-1e999", "9" * 30, "get_weather"),
    *("\\ud800", "[[[[[[[[", '{"a":' * 70, THINK, END_THINK),
]


def tags_of(name):
    """What the format looks for."""
    reader = tool_format(name, Letters())._reader
    return sorted(reader._tags)


def check(parsed, text):
    assert len(parsed.problems) <= MAX_PROBLEMS and all(0 < len(problem) < 400 for problem in parsed.problems)
    assert len(parsed.content) <= len(text)
    for call in parsed.calls:
        arguments = call.decoded()
        assert call.name.strip() and isinstance(arguments, dict)
        call.to_openai("c00001000")["function"]["arguments"].encode()
        WEATHER.problem(arguments)


def reply(draw, name, pieces):
    good = writer(name).text([("get_weather", {"city": "Oslo"})], "") if draw.random() < 0.3 else ""
    parts = draw.choices(pieces, k=draw.randint(0, 25))
    parts.insert(draw.randint(0, len(parts)), good)
    text = "".join(parts)
    cut = draw.randint(0, len(text)) if draw.random() < 0.2 else len(text)
    return text[:cut]


@pytest.mark.thorough
@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_ten_thousand_hostile_replies_are_answered(name):
    draw = random.Random(name)
    tags = tags_of(name)
    pieces = SCRAPS + tags * (1 + len(SCRAPS) // len(tags))
    form = tool_format(name, Letters())
    calls = problems = 0
    for _ in range(10_000):
        text = reply(draw, name, pieces)
        parsed = form.parse(list(map(ord, text)), (WEATHER,))
        check(parsed, text)
        calls += len(parsed.calls)
        problems += len(parsed.problems)
    assert calls > 40 and problems > 400


SIZE = 100_000


@pytest.mark.thorough
@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_as_much_of_anything_as_fits_a_context_is_answered_soon(name):
    """What takes the square of its length takes minutes here."""
    tags = tags_of(name)
    opening = writer(name).text([("get_weather", {"city": "Oslo"})], "").partition("Oslo")[0]
    units = [*tags, *(tag + other for tag in tags[:3] for other in tags[:3]), "[", '{"a":', " ", "\\", '"', "9"]
    units += [opening, opening + '"', opening + "\n" * 100]
    form = tool_format(name, Letters())
    for unit in units:
        for text in (unit * (SIZE // len(unit)), opening + unit * (SIZE // len(unit)) + tags[0]):
            ids = list(map(ord, text))
            began = time.process_time()
            parsed = form.parse(ids, (WEATHER,))
            took = time.process_time() - began
            assert took < 1, f"{took:.1f} s for {unit[:60]!r}"
            assert len(parsed.problems) <= MAX_PROBLEMS and sum(map(len, parsed.problems)) < 4_000
