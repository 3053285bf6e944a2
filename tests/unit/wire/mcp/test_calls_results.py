"""Plain values as results, byte for byte."""

from __future__ import annotations

import json

import msgspec
import pytest

from isthmus.wire.mcp.calls import (
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
def test_what_is_a_result_already_stays_as_it_is(value: bytes) -> None:
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
def test_what_only_looks_like_one_is_a_value(value: bytes) -> None:
    result = tool_result(value)
    assert json.loads(bytes(result.payload))["structuredContent"] == json.loads(value)
    assert not result.is_error
    assert not result.is_typed


@pytest.mark.parametrize("value", [b"7", b'"x"', b"[1]", b"null", b"true"])
def test_structured_content_is_always_an_object(value: bytes) -> None:
    shown = json.loads(bytes(json_tool_result(value).payload))
    assert shown["structuredContent"] == {"result": json.loads(value)}
    assert isinstance(shown["content"][0]["text"], str)


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
