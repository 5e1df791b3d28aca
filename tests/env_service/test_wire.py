"""Frames survive any cutting of the stream, and nothing that is not a frame is interpreted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env_service.hosting import wire
from env_service.hosting.wire import HEADER, MAX_FRAME_BYTES, Frame, FrameKind, WireDecoder, WireError, encode, unpack

FRAMES = st.lists(
    st.builds(Frame, st.integers(0, 2**64 - 1), st.sampled_from(list(FrameKind)), st.binary(max_size=300)), max_size=8
)


@settings(max_examples=50, deadline=None)
@given(FRAMES, st.lists(st.integers(1, 97), min_size=1))
def test_frames_survive_any_cutting_of_the_stream(frames: list[Frame], sizes: list[int]) -> None:
    stream = b"".join(encode(*frame) for frame in frames)
    decoder, received, position, turn = WireDecoder(), [], 0, 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        received += decoder.feed(stream[position : position + size])
        position, turn = position + size, turn + 1
    assert received == frames


def test_a_length_above_the_limit_is_refused_before_its_bytes_arrive() -> None:
    with pytest.raises(WireError, match="more than the limit"):
        list(WireDecoder().feed(HEADER.pack(MAX_FRAME_BYTES + 1, 1, FrameKind.OK)))
    with pytest.raises(WireError, match="exceeds the limit"):
        encode(1, FrameKind.OK, bytes(MAX_FRAME_BYTES + 1))


def test_an_unknown_kind_and_broken_json_are_wire_errors() -> None:
    with pytest.raises(WireError, match="unknown kind 99"):
        list(WireDecoder().feed(HEADER.pack(0, 1, 99)))
    with pytest.raises(WireError, match="not JSON"):
        unpack(b"{")


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("a\ud83db", "a\ufffdb"),
        ("\udcff", "\ufffd"),
        ("\ud83d\ude00", "\N{GRINNING FACE}"),
        ({"\ud83d": ["\ude00"]}, {"\ufffd": ["\ufffd"]}),
        ({1: {2.5: None}}, {"1": {"2.5": None}}),
        ({"n": 2**70}, {"n": float(2**70)}),
    ],
)
def test_what_json_does_not_hold_travels_in_its_nearest_form(value: object, seen: object) -> None:
    assert unpack(wire.pack(value)) == seen
