"""Headers and bodies as every frontend over HTTP takes them."""

from __future__ import annotations

import pytest

from isthmus.frontends.http.request_cycle import Message, is_json, join_headers, read_body


def test_a_header_given_twice_is_one_list() -> None:
    assert join_headers([(b"a", b"1"), (b"b", b"2")]) == {b"a": b"1", b"b": b"2"}
    assert join_headers([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]) == {b"a": b"1, 3", b"b": b"2"}


@pytest.mark.parametrize(
    ("value", "is_so"),
    [
        (b"application/json", True),
        (b"Application/JSON; charset=utf-8", True),
        (b"application/json, text/plain", False),
        (b"text/plain", False),
        (b"", False),
    ],
)
def test_only_json_is_taken_for_json(value: bytes, *, is_so: bool) -> None:
    assert is_json({b"content-type": value}) == is_so


async def test_a_body_is_read_to_its_end() -> None:
    pieces: list[Message] = [
        {"type": "http.request", "body": b"a", "more_body": True},
        {"type": "http.request", "body": b"b"},
    ]

    async def receive() -> Message:
        return pieces.pop(0)

    assert await read_body(receive) == b"ab"


async def test_a_body_of_a_client_that_left_is_dropped() -> None:
    pieces: list[Message] = [{"type": "http.request", "body": b"a", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Message:
        return pieces.pop(0)

    assert await read_body(receive) is None
