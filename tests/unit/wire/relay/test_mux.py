"""The frames of several servers on one WebSocket: written frames are read back, and invalid ones are refused."""

from __future__ import annotations

import json
import random

import pytest

from isthmus.wire.relay import mux
from isthmus.wire.relay.mux import (
    BadFrame,
    ChannelClosed,
    ChannelLeaving,
    ChannelMessage,
    ChannelOpened,
    IgnoredControl,
    OpenChannel,
)


@pytest.mark.parametrize("number", [1, 9, 256, mux.NUMBER_MAX])
@pytest.mark.parametrize("message", [b'{"a": 1}', b"", b" 2 {}", b"0 x", "计算".encode(), b"\xff\x00"])
def test_a_message_comes_out_of_its_channel_as_it_went_in(number: int, message: bytes) -> None:
    assert mux.read(mux.write_message(number, message)) == ChannelMessage(number, message)


def test_words_on_the_connection_are_read_as_they_were_written() -> None:
    assert mux.read(mux.write_open(OpenChannel(3, "计算", "calc"))) == OpenChannel(3, "计算", "calc")
    assert mux.read(mux.write_open(OpenChannel(3))) == OpenChannel(3)
    assert mux.read(mux.write_opened(ChannelOpened(3))) == ChannelOpened(3)
    assert mux.read(mux.write_opened(ChannelOpened(3, "agent_calc"))) == ChannelOpened(3, "agent_calc")
    assert mux.read(mux.write_opened(ChannelOpened(3, limit=1000))) == ChannelOpened(3, None, 1000)
    assert mux.read(mux.write_opened(ChannelOpened(3, grace=0.0))) == ChannelOpened(3, grace=0.0)
    assert mux.read(mux.write_leaving(ChannelLeaving(3))) == ChannelLeaving(3)
    assert mux.read(mux.write_closed(ChannelClosed(3, 1008, "no"))) == ChannelClosed(3, 1008, "no")


def test_a_long_reason_is_cut() -> None:
    read = mux.read(mux.write_closed(ChannelClosed(1, 1008, "x" * 5000)))
    assert isinstance(read, ChannelClosed)
    assert read.reason == "x" * mux.REASON_LENGTH_MAX


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b" ",
        b"{}",
        b"1",
        b"1{}",
        b" 1 {}",
        b"-1 {}",
        b"+1 {}",
        b"01 {}",
        b"00 {}",
        b"1.0 {}",
        "１ {}".encode(),
        b"99999999999 {}",
        b"2147483648 {}",
        b"x" * 100_000,
    ],
)
def test_a_frame_must_begin_with_a_channel(frame: bytes) -> None:
    assert isinstance(mux.read(frame), BadFrame)


@pytest.mark.parametrize(
    "word",
    [
        "",
        "[]",
        "1",
        "{",
        '{"open": 1, "open": 2}',
        '{"open": 0}',
        '{"open": -1}',
        '{"open": true}',
        '{"open": 1.0}',
        '{"open": "1"}',
        '{"open": 99999999999999999999}',
        '{"open": 1e999}',
        '{"more": 1e999}',
        f'{{"open": {"9" * 5000}}}',
        '{"open": 1, "closed": 2}',
        '{"open": 1, "server_id": ""}',
        '{"open": 1, "server_id": 5}',
        '{"open": 1, "server_id": "a\\nb"}',
        '{"open": 1, "name": []}',
        '{"opened": 1, "server": {}}',
        '{"opened": 1, "limit": 0}',
        '{"opened": 1, "limit": true}',
        '{"opened": 1, "grace": "long"}',
        '{"opened": 1, "grace": -1}',
        '{"leaving": 0}',
        '{"closed": 1, "code": "x"}',
        '{"closed": 1, "code": 5}',
        '{"closed": 1, "reason": null}',
        "[" * 10_000,
    ],
)
def test_words_that_make_no_sense_are_refused(word: str) -> None:
    assert isinstance(mux.read(b"0 " + word.encode()), BadFrame)


def test_ids_that_are_too_long_are_refused() -> None:
    longest = "x" * mux.SERVER_ID_LENGTH_MAX
    assert mux.read(mux.write_open(OpenChannel(1, longest))) == OpenChannel(1, longest)
    assert isinstance(mux.read(mux.write_open(OpenChannel(1, longest + "x"))), BadFrame)


def test_a_word_as_long_as_a_message_is_refused() -> None:
    word = json.dumps({"open": 1, "more": "x" * mux.CONTROL_BYTES_MAX}).encode()
    assert isinstance(mux.read(b"0 " + word), BadFrame)


def test_members_and_words_of_a_later_version_are_passed_over() -> None:
    assert mux.read(b'0 {"pause": 1}') == IgnoredControl()
    assert mux.read(b"0 {}") == IgnoredControl()
    assert mux.read(b'0 {"open": 1, "weight": 5}') == OpenChannel(1)


def test_no_bytes_at_all_raise() -> None:
    chance = random.Random(7)
    seeds = [
        mux.write_open(OpenChannel(3, "calc")),
        mux.write_message(4, b'{"id": 1}'),
        mux.write_closed(ChannelClosed(1, 1000, "x")),
    ]
    for _ in range(3000):
        frame = bytearray(chance.choice(seeds))
        for _ in range(chance.randrange(1, 4)):
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        mux.read(bytes(frame[: chance.randrange(len(frame) + 1)]))
