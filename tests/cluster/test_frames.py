"""Frames, cut wherever a stream may be cut."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.cluster.frames import (
    FRAME_BYTES_MAX,
    HEADER,
    LENGTH,
    FrameDecoder,
    FrameTooLong,
    Hello,
    decode_hello,
    decode_reason,
    encode_hello,
    one_shot_head,
    split_one_shot,
)


def decoded(pieces: list[bytes]) -> list[bytes]:
    found: list[bytes] = []
    decoder = FrameDecoder(lambda frame: found.append(bytes(frame)))
    for piece in pieces:
        decoder.feed(piece)
    return found


def test_frames_come_out_whole_wherever_the_stream_is_cut() -> None:
    frames = [HEADER.pack(13, 0, n, n) + bytes(n) for n in (0, 1, 5, 40)]
    stream = b"".join(LENGTH.pack(len(frame)) + frame for frame in frames)
    for cut in range(len(stream) + 1):
        assert decoded([stream[:cut], stream[cut:]]) == frames
    assert decoded([stream[at : at + 1] for at in range(len(stream))]) == frames


@given(st.lists(st.binary(max_size=200), max_size=20), st.lists(st.integers(0, 3000), max_size=5))
def test_frames_come_out_whole_for_any_pieces(payloads: list[bytes], cuts: list[int]) -> None:
    frames = [HEADER.pack(1, 2, 3, 4) + payload for payload in payloads]
    stream = b"".join(LENGTH.pack(len(frame)) + frame for frame in frames)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    assert decoded([stream[a:b] for a, b in pairwise(edges)]) == frames


@pytest.mark.parametrize("length", [0, HEADER.size - 1, FRAME_BYTES_MAX + 1, 2**32 - 1])
def test_a_length_that_no_node_sends_ends_the_stream(length: int) -> None:
    with pytest.raises(FrameTooLong):
        decoded([LENGTH.pack(length) + bytes(100)])


@given(st.binary(max_size=300))
def test_no_payload_raises(payload: bytes) -> None:
    decode_hello(payload)
    split_one_shot(payload)
    assert decode_reason(payload).isprintable()


def test_encoded_frames_are_decoded() -> None:
    hello = Hello("ä", 5, "boot", {"a": "b"}, wants_reply=True)
    assert decode_hello(encode_hello(hello)) == hello
    content = os.urandom(50)
    assert split_one_shot(one_shot_head("süd", 1.5) + content) == ("süd", 1.5, content)
