"""Plain values as results, byte for byte."""

from __future__ import annotations

import json

import msgspec
import pytest

from isthmus.wire.jsonrpc import Response
from isthmus.wire.mcp.forwarded_methods import (
    decode_untouched,
    failed_tool_result,
    json_tool_result,
    tool_result,
    untouched_result,
    wrap_bare_result,
)


def test_a_value_keeps_its_exact_text() -> None:
    result = tool_result(msgspec.Raw(b'{"n": 1.50, "s": "\\u00e9"}'))
    assert bytes(result.payload) == (
        b'{"content":[{"type":"text","text":"{\\"n\\": 1.50, \\"s\\": \\"\\\\u00e9\\"}"}],'
        b'"structuredContent":{"n": 1.50, "s": "\\u00e9"},"isError":false}'
    )


@pytest.mark.parametrize(
    "value",
    [
        b'{"content":[]}',
        b'{"content":[{"type":"image","data":"","mimeType":"image/png"}],"isError":null}',
        b'{"content":[{"type":"text","text":""}],"resultType":"complete"}',
    ],
)
def test_a_tool_result_stays_unchanged(value: bytes) -> None:
    assert bytes(tool_result(value).payload) == value


def test_a_typed_result_is_known_as_one() -> None:
    assert tool_result(b'{"content":[],"resultType":"complete"}').is_typed
    assert not tool_result(b'{"content":[]}').is_typed


@pytest.mark.parametrize(
    "value",
    [
        b"{}",
        b'{"content":7}',
        b'{"content":["x"]}',
        b'{"content":[{"type":"video"}]}',
        b'{"content":[],"isError":"no"}',
        b'{"content":[],"resultType":"input_required"}',
        b'{"isError":"yes"}',
    ],
)
def test_a_value_that_resembles_a_tool_result_stays_a_value(value: bytes) -> None:
    result = tool_result(value)
    assert json.loads(bytes(result.payload))["structuredContent"] == json.loads(value)
    assert not result.is_error
    assert not result.is_typed


@pytest.mark.parametrize("value", [b"7", b'"x"', b"[1]", b"null", b"true"])
def test_structured_content_is_always_an_object(value: bytes) -> None:
    shown = json.loads(bytes(json_tool_result(value).payload))
    assert shown["structuredContent"] == {"result": json.loads(value)}
    assert isinstance(shown["content"][0]["text"], str)


@pytest.mark.parametrize("text", ["é中😀" * 60_000, '\\"' * 100_000, "a\n\x00" * 50_000])
def test_a_long_value_is_written_in_pieces_and_reads_the_same(text: str) -> None:
    value = json.dumps({"a": text}, ensure_ascii=False).encode()
    shown = json.loads(bytes(json_tool_result(value).payload))
    assert shown["content"] == [{"type": "text", "text": value.decode()}]
    assert shown["structuredContent"] == {"a": text}


def test_a_failure_is_its_words() -> None:
    result = failed_tool_result('it said "no"')
    assert result.is_error
    assert json.loads(bytes(result.payload)) == {
        "content": [{"type": "text", "text": 'it said "no"'}],
        "isError": True,
    }


@pytest.mark.parametrize(
    "value", [b"7", b'"hi"', b"null", b"[1]", b'{"sum":3}', b'{"content":[{"type":"code_output"}]}']
)
def test_a_bare_value_stays_as_it_is_until_mcp_must_carry_it(value: bytes) -> None:
    result = untouched_result(value)
    assert (bytes(result.payload), result.is_bare, result.is_error) == (value, True, False)
    assert wrap_bare_result(result).payload == json_tool_result(value).payload


def test_a_bare_value_that_says_that_it_is_an_error_is_one() -> None:
    result = untouched_result(b'{"isError":true,"content":[{"type":"odd"}]}')
    assert (result.is_bare, result.is_error, wrap_bare_result(result).is_error) == (True, True, True)


def test_a_result_of_mcp_is_not_bare() -> None:
    assert not untouched_result(b'{"content":[{"type":"text","text":"x"}],"more":1}').is_bare


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ('"content":[{"type":"text","text":"%s"}]', (False, False, False)),
        ('"content":[{"type":"text","text":"%s"}],"isError":true', (False, True, False)),
        ('"content":[{"type":"text","text":"%s"}],"resultType":"complete"', (False, False, True)),
        ('"content":[{"type":"odd","text":"%s"}],"isError":true', (True, True, False)),
        ('"content":[{"type":"text","text":"%s"}],"isError":"no"', (True, False, False)),
        ('"sum":"%s"', (True, False, False)),
    ],
)
def test_a_long_result_is_judged_like_a_short_one(members: str, expected: tuple[bool, bool, bool]) -> None:
    for length in (1, 300_000):
        text = '{"jsonrpc":"2.0","id":1,"result":{' + members % ("x" * length) + "}}"
        message, result = decode_untouched(text.encode(), max_depth=64)
        assert isinstance(message, Response)
        assert result is not None
        assert (result.is_bare, result.is_error, result.is_typed) == expected
        assert bytes(result.payload) == bytes(message.result)
