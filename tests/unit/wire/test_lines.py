from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.wire import jsonrpc
from isthmus.wire.lines import LineDecoder, Oversized, frame

MIB = 1024 * 1024


def feed_all(chunks: list[bytes], *, limit_bytes: int = MIB) -> list[bytes | memoryview | Oversized]:
    decoder = LineDecoder(limit_bytes)
    return [line for chunk in chunks for line in decoder.feed(chunk)]


def cut(stream: bytes, size_bytes: int) -> list[bytes]:
    return [stream[start : start + size_bytes] for start in range(0, len(stream), size_bytes)]


def test_whole_lines_come_out_at_once() -> None:
    assert LineDecoder().feed(b'{"a":1}\n{"b":2}\n') == [b'{"a":1}', b'{"b":2}']


def test_a_line_waits_for_its_end() -> None:
    decoder = LineDecoder()
    assert decoder.feed(b'{"a"') == []
    assert decoder.feed(b":1}") == []
    assert decoder.feed(b"\n{}\n{") == [b'{"a":1}', b"{}"]
    assert decoder.feed(b"}\n") == [b"{}"]


def test_carriage_returns_and_blank_lines_are_forgiven() -> None:
    assert feed_all([b"{}\r\n\r\n \t\n\n[]\n"]) == [b"{}", b"[]"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_long_line_comes_out_whole_however_it_was_cut(end: bytes) -> None:
    text = b'"' + b"abcdefg" * 40_000 + b'"'
    stream = b"{}\n" + text + end + b" " * 300_000 + end + b"[]\n"
    for size_bytes in (16 * 1024, 100_001, len(stream)):
        assert feed_all(cut(stream, size_bytes)) == [b"{}", text, b"[]"]


def test_a_line_of_exactly_the_limit_passes() -> None:
    assert feed_all([b"12345678\n123456789\n1\n"], limit_bytes=8) == [b"12345678", Oversized(8), b"1"]


def test_an_endless_line_is_reported_once_and_before_it_ends() -> None:
    decoder = LineDecoder(8)
    assert decoder.feed(b"123456789") == [Oversized(8)]
    assert decoder.feed(b"0" * 100) == []
    assert decoder.feed(b"0\n{}\n") == [b"{}"]


@given(st.lists(st.sampled_from([b"{}", b"\r", b"\n", b"\r\n", b" ", b"123456", b"1" * 9]), max_size=12))
def test_lines_cut_at_every_byte_are_the_lines_uncut(parts: list[bytes]) -> None:
    stream = b"".join(parts)
    whole = feed_all([stream], limit_bytes=8)
    assert feed_all(cut(stream, 1), limit_bytes=8) == whole
    for place in range(len(stream)):
        assert feed_all([stream[:place], stream[place:]], limit_bytes=8) == whole


@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3), max_size=5),
    st.integers(1, 9),
)
def test_framed_messages_come_back_as_they_were(messages: list[dict[str, str]], size_bytes: int) -> None:
    texts = [json.dumps(message).encode() for message in messages]
    assert feed_all(cut(b"".join(map(frame, texts)), size_bytes)) == texts


def test_a_newline_in_arguments_does_not_become_a_second_message() -> None:
    inner = b'{"a":\n{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"rm"}}\r\n}'
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":%b}}' % inner
    call = jsonrpc.decode(body)
    assert isinstance(call, jsonrpc.Request)
    sent = frame(jsonrpc.request(1, call.method, jsonrpc.render(call.params)))
    (line,) = feed_all([sent])
    assert isinstance(line, bytes)
    assert sent == line + b"\n"
    assert json.loads(line) == json.loads(body)


def test_invalid_json_with_a_newline_is_not_framed() -> None:
    with pytest.raises(msgspec.DecodeError):
        frame(b'{"a":"\n"}')


@pytest.mark.parametrize("size_bytes", [7, 65536])
def test_a_flood_without_a_newline_holds_no_more_than_the_limit(size_bytes: int) -> None:
    decoder = LineDecoder(MIB)
    chunk = b"x" * size_bytes
    found = [line for _ in range(2 * MIB // size_bytes + 1) for line in decoder.feed(chunk)]
    assert found == [Oversized(MIB)]
    assert decoder.feed(b"\n{}\n") == [b"{}"]
