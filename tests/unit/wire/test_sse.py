from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from isthmus.wire import jsonrpc
from isthmus.wire.lines import Oversized
from isthmus.wire.sse import SseDecoder, SseEvent, comment, frame, mark, prime, retry

MIB = 1024 * 1024


def feed_all(chunks: list[bytes], *, limit_bytes: int = MIB) -> list[SseEvent | Oversized]:
    decoder = SseDecoder(limit_bytes)
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def cut(stream: bytes, size_bytes: int) -> list[bytes]:
    return [stream[start : start + size_bytes] for start in range(0, len(stream), size_bytes)]


def test_an_event_comes_out_with_all_its_fields() -> None:
    stream = b"event: note\nid: 7\nretry: 3000\ndata: {}\n\n"
    assert feed_all([stream]) == [SseEvent(event="note", data=b"{}", id="7", retry=3000)]


def test_an_event_without_a_name_is_a_message() -> None:
    assert feed_all([b"data: {}\n\nevent:\ndata: []\n\n"]) == [SseEvent(data=b"{}"), SseEvent(data=b"[]")]


def test_several_data_lines_are_joined_by_newlines() -> None:
    assert feed_all([b"data: a\ndata\ndata:  b\n\n"]) == [SseEvent(data=b"a\n\n b")]


def test_empty_data_is_an_event() -> None:
    assert feed_all([b"id: 1\ndata:\n\n"]) == [SseEvent(data=b"", id="1")]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_lines_may_end_in_three_ways(end: bytes) -> None:
    stream = end.join([b"data: a", b"data: b", b"", b": comment", b"data: c", b"", b""])
    expected = [SseEvent(data=b"a\nb"), SseEvent(data=b"c")]
    assert feed_all([stream]) == expected
    assert feed_all(cut(stream, 1)) == expected


def test_an_event_that_ends_in_cr_does_not_wait_for_lf() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\r\r") == [SseEvent(data=b"a")]
    assert decoder.feed(b"") == []
    assert decoder.feed(b"\n") == []
    assert decoder.feed(b"data: b\n\n") == [SseEvent(data=b"b")]


def test_a_byte_order_mark_counts_only_at_the_start() -> None:
    bom = b"\xef\xbb\xbf"
    stream = bom + b"data: a\n\n" + bom + b"data: b\n\n"
    assert feed_all([stream]) == [SseEvent(data=b"a")]
    assert feed_all(cut(stream, 1)) == [SseEvent(data=b"a")]


def test_unknown_fields_and_comments_are_ignored() -> None:
    assert feed_all([b":\n: x\nfoo: 1\nDATA: 2\n data: 3\ndata: 4\n\n"]) == [SseEvent(data=b"4")]


def test_an_id_without_data_is_remembered_and_not_dispatched() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"id: 1\nretry: 50\nevent: x\n\n") == []
    assert (decoder.last_event_id, decoder.retry) == ("1", 50)
    assert decoder.feed(b"data: a\n\n") == [SseEvent(data=b"a")]
    assert decoder.feed(b"id: 2") == []
    assert decoder.last_event_id == "1"
    assert decoder.feed(b"\n\nid\n\n") == []
    assert decoder.last_event_id == ""


@pytest.mark.parametrize("field", [b"id: a\0b", b"retry: 1s", b"retry: -1", b"retry:", b"retry: " + b"9" * 5000])
def test_a_field_with_an_impossible_value_is_ignored(field: bytes) -> None:
    assert feed_all([field + b"\ndata: a\n\n"]) == [SseEvent(data=b"a")]


def test_an_unfinished_event_is_not_dispatched() -> None:
    assert feed_all([b"data: a\n"]) == []


def test_an_event_over_the_limit_costs_only_itself() -> None:
    decoder = SseDecoder(16)
    assert decoder.feed(b"id: 1\ndata: 123456789") == [Oversized(16)]
    assert decoder.feed(b"0" * 100 + b"\nid: 2\n") == []
    assert decoder.feed(b"\ndata: a\n\n") == [SseEvent(data=b"a")]
    assert decoder.last_event_id is None


def test_many_small_fields_of_one_event_are_bounded_together() -> None:
    assert feed_all([b"event: abc\n" * 3 + b"\ndata: a\n\n"], limit_bytes=25) == [
        Oversized(25),
        SseEvent(data=b"a"),
    ]


def test_comments_are_bounded_one_by_one() -> None:
    flood = b": keep\n" * 1000
    assert feed_all([flood + b"data: a\n\n"], limit_bytes=16) == [SseEvent(data=b"a")]
    assert feed_all([b":" * 17, b"\n\ndata: a\n\n"], limit_bytes=16) == [Oversized(16), SseEvent(data=b"a")]


PARTS = [
    b"data: a",
    b"data",
    b"id: 1",
    b"event: e",
    b":c",
    b"\r",
    b"\n",
    b"\r\n",
    b"\n\n",
    b"x" * 9,
    b"\xef\xbb\xbf",
]


@given(st.lists(st.sampled_from(PARTS), max_size=14))
@example([b"\xef\xbb\xbf", *[b"data: a"] * 3, b"\r", *[b"data: a"] * 3])
@settings(deadline=None)
def test_events_cut_at_every_byte_are_the_events_uncut(parts: list[bytes]) -> None:
    stream = b"".join(parts)
    whole = feed_all([stream], limit_bytes=20)
    assert feed_all(cut(stream, 1), limit_bytes=20) == whole
    for place in range(len(stream)):
        assert feed_all([stream[:place], stream[place:]], limit_bytes=20) == whole


@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3), max_size=5),
    st.integers(1, 9),
)
def test_framed_messages_come_back_as_they_were(messages: list[dict[str, str]], size_bytes: int) -> None:
    texts = [json.dumps(message, ensure_ascii=False).encode() for message in messages]
    stream = b"".join(frame(text, id=str(number)) + comment("alive") for number, text in enumerate(texts))
    assert feed_all(cut(stream, size_bytes)) == [
        SseEvent(data=text, id=str(number)) for number, text in enumerate(texts)
    ]


def test_an_event_is_written_as_other_readers_expect_it() -> None:
    assert frame(b"{}") == b"event: message\ndata: {}\n\n"
    assert frame(b"{}", id="3") == b"id: 3\nevent: message\ndata: {}\n\n"
    assert comment() == b": \n\n"
    assert comment("alive") == b": alive\n\n"


def test_a_place_to_come_back_to_is_an_event_without_content_or_only_a_mark() -> None:
    assert feed_all([prime("3", 500)]) == [SseEvent(data=b"", id="3", retry=500)]
    decoder = SseDecoder()
    assert decoder.feed(mark("3", 500) + retry(250)) == []
    assert (decoder.last_event_id, decoder.retry) == ("3", 250)


def test_a_newline_in_arguments_does_not_become_a_second_event() -> None:
    inner = b'{"a":\n\ndata: {"jsonrpc":"2.0","id":9,"result":{}}\n\n}'
    assert isinstance(jsonrpc.decode(jsonrpc.result(b"1", inner)), jsonrpc.Malformed)
    answer = jsonrpc.decode(jsonrpc.result(b"1", b'{"a":\r\r[\n\n"data: {}"\r\n\r\n]}'))
    assert isinstance(answer, jsonrpc.Response)
    sent = jsonrpc.result(answer.id, answer.result)
    (event,) = feed_all([frame(sent)])
    assert isinstance(event, SseEvent)
    assert json.loads(event.data) == json.loads(sent) == {"jsonrpc": "2.0", "id": 1, "result": {"a": ["data: {}"]}}


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\0b"])
def test_an_id_or_comment_cannot_hold_a_line_break(text: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        frame(b"{}", id=text)
    with pytest.raises(ValueError, match="one line"):
        comment(text)
    with pytest.raises(ValueError, match="one line"):
        prime(text, 1)
    with pytest.raises(ValueError, match="one line"):
        mark(text, 1)


@pytest.mark.parametrize("size_bytes", [7, 65536])
def test_a_flood_without_an_end_holds_no_more_than_the_limit(size_bytes: int) -> None:
    decoder = SseDecoder(MIB)
    chunk = b"x" * size_bytes
    found = [event for _ in range(2 * MIB // size_bytes + 1) for event in decoder.feed(chunk)]
    assert found == [Oversized(MIB)]
    assert decoder.feed(b"\n\ndata: {}\n\n") == [SseEvent(data=b"{}")]


def test_an_event_can_have_a_name_of_its_own() -> None:
    framed = frame(b'{"a":\n1}', event="progress")
    assert feed_all([framed]) == [SseEvent(event="progress", data=b'{"a":1}')]
    with pytest.raises(ValueError, match="one line"):
        frame(b"{}", event="a\ndata: b")
