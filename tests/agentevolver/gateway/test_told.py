"""What a request repeats of the one before it is known by its bytes, and is answered as if it were read."""

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.gateway import chat
from agentevolver.gateway.request import RequestRefused
from agentevolver.gateway.told import mark_of, rest_of
from tests.agentevolver.gateway.harness import ScriptedEngine, rollout, said, user

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(max_size=8)
    | st.sampled_from(["[", "]", '"', ","]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
elements = st.lists(values, min_size=1, max_size=4)
fields = st.dictionaries(st.text(max_size=5).filter(lambda name: name != "messages"), values, max_size=3)


def written(before, messages, after, **how):
    return json.dumps({**before, "messages": messages, **after}, **how).encode()


@given(fields, elements, elements, fields, st.booleans(), st.sampled_from([None, 1]))
@settings(max_examples=300, deadline=None)
def test_what_follows_a_mark_is_what_a_whole_reading_has_there(before, first, more, after, ascii_only, indent):
    after = {name: value for name, value in after.items() if name not in before}
    how = {"ensure_ascii": ascii_only, "indent": indent}
    mark = mark_of(written(before, first, {}, **how))
    assert mark.count == len(first)
    body = written(before, [*first, *more], after, **how)
    read, further = rest_of(body, mark)
    whole = orjson.loads(body)
    assert read == {**whole, "messages": whole["messages"][len(first) :]}
    assert further == mark_of(body)


@given(st.binary(max_size=60))
def test_anything_has_a_mark_or_none(body):
    assert mark_of(body) is None or b"messages" in body


FIRST = b'{"messages":[{"a":1}],"x":2}'


@pytest.mark.parametrize(
    "body",
    [
        FIRST,  # nothing new
        b'{"messages":[{"a":2},{"b":1}],"x":2}',  # another message
        b'{"messages":[{"a":1} ,{"b":1],"x":2}',  # broken
        b'{"messages":[{"a":1},{"b":1}',  # torn
        b'{"messages":[{"a":1},{"b":NaN}],"x":2}',  # not JSON, though Python's reader takes it
        b'{"messages":[{"a":1},{"b":1}],"messages":[]}',  # which one counts is told by a whole reading
        b'{"messages":[{"a":1},' + b"[" * 100_000,
        b'{"messages":[{"a":1},"\xff"]}',
        b"",
    ],
)
def test_a_body_that_does_not_simply_go_on_is_read_whole(body):
    assert rest_of(body, mark_of(FIRST)) is None


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"messages":[]}', b'{"messages":{}}', b"\xff"])
def test_a_body_without_messages_has_no_mark(body):
    assert mark_of(body) is None


async def play(renderer, conversation, *, by_bytes):
    """Send each conversation; return what the engine was asked, what was recorded, and how often bytes were known."""
    engine, known = ScriptedEngine(["one", "two", "three", "four", "five"]), 0
    played = rollout(renderer, engine)
    for messages in conversation:
        raw = json.dumps({"messages": messages}).encode()
        request = chat.read_bytes(raw, played.known if by_bytes else None)
        known += request.known is not None
        await played.complete(request)
    asked = [(prompt, sampled) for prompt, sampled, _ in engine.calls]
    samples = [(sample.prompt_ids, sample.response_ids, sample.response_mask) for sample in played.samples()]
    return (asked, samples, played.messages, played.differences, played.chains), known


GOES_ON = [
    [user("a")],
    [user("a"), said("one"), user("b")],
    [user("a"), said("one"), user("b"), said("two"), user("c")],
]


@pytest.mark.parametrize(
    ("conversation", "known"),
    [
        (GOES_ON, 2),
        # A reply that is told otherwise: the bytes before it are known, and a further chain needs their messages.
        ([*GOES_ON[:2], [user("a"), said("one"), user("b"), said("else"), user("c")]], 2),
        ([*GOES_ON, [user("a"), said("one"), user("z")]], 2),
        ([*GOES_ON[:2], GOES_ON[1], GOES_ON[2]], 2),
        # One that repeats an earlier call's messages and goes on: after the fork, its own bytes are known.
        ([*GOES_ON, GOES_ON[1], GOES_ON[2]], 3),
    ],
)
async def test_known_bytes_change_nothing(renderer, conversation, known):
    whole, none = await play(renderer, conversation, by_bytes=False)
    assert none == 0
    assert await play(renderer, conversation, by_bytes=True) == (whole, known)


async def test_what_is_wrong_with_a_new_message_is_told_by_its_place(renderer):
    played = rollout(renderer)
    await played.complete(chat.read_bytes(json.dumps({"messages": GOES_ON[0]}).encode()))
    wrong = json.dumps({"messages": [user("a"), said("well"), {"role": "nobody"}]}).encode()
    with pytest.raises(RequestRefused, match=r"^messages\[2\]: messages of the role 'nobody'"):
        chat.read_bytes(wrong, played.known)
