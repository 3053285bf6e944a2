"""Every block of a result is the kind of part that it is, and nothing is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.frontends.a2a.task_view import parts_of
from isthmus.model.tasks import DataPart, FilePart, Part, TextPart
from tests.unit.core.doubles import raw

JSON_TYPE = "application/json"


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "text", "text": "hi"}, TextPart("hi")),
        ({"type": "image", "data": "aGk=", "mimeType": "image/png"}, FilePart("aGk=", media_type="image/png")),
        ({"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}, FilePart("aGk=", media_type="audio/wav")),
        (
            {"type": "resource_link", "uri": "https://a/b", "name": "b", "mimeType": "text/plain"},
            FilePart(url="https://a/b", name="b", media_type="text/plain"),
        ),
        (
            {"type": "resource", "resource": {"uri": "file:///a/b%20c.txt", "text": "x", "mimeType": "text/plain"}},
            TextPart("x", "text/plain", Raw(b'{"uri":"file:///a/b%20c.txt","mimeType":"text/plain"}')),
        ),
        (
            {"type": "resource", "resource": {"uri": "file:///a/b%20c.bin", "blob": "aGk="}},
            FilePart("aGk=", name="b c.bin", metadata=Raw(b'{"uri":"file:///a/b%20c.bin"}')),
        ),
    ],
)
def test_a_block_is_the_part_that_it_is(block: Any, part: Part) -> None:
    assert parts_of(raw({"content": [block]})) == (part,)


FOR_PEOPLE = {"annotations": {"audience": ["user"], "priority": 0.5}}


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"type": "text", "text": "hi", **FOR_PEOPLE}, FOR_PEOPLE),
        ({"type": "text", "text": "hi", "annotations": None, "_meta": {"a": 1}}, {"_meta": {"a": 1}}),
        ({"type": "image", "data": "aGk=", **FOR_PEOPLE}, FOR_PEOPLE),
        (
            {"type": "resource_link", "uri": "x:y", "title": "Y", "description": "d", "size": 5, **FOR_PEOPLE},
            {**FOR_PEOPLE, "title": "Y", "description": "d", "size": 5},
        ),
        (
            {"type": "resource", "resource": {"uri": "x:y", "blob": "aGk=", "_meta": {"b": 2}}, **FOR_PEOPLE},
            {**FOR_PEOPLE, "_meta": {"b": 2}, "uri": "x:y"},
        ),
        (
            {
                "type": "resource",
                "resource": {"uri": "x:y", "text": "hi", "_meta": {"b": 2, "c": 3}},
                "_meta": {"a": 1, "b": 9},
            },
            {"_meta": {"a": 1, "b": 2, "c": 3}, "uri": "x:y"},
        ),
        (
            {"type": "resource", "resource": {"uri": "x:y", "text": "hi", "_meta": None}, "_meta": {"a": 1}},
            {"_meta": {"a": 1}, "uri": "x:y"},
        ),
    ],
)
def test_what_a_server_says_of_a_block_is_the_part_s_metadata(block: Any, told: Any) -> None:
    (part,) = parts_of(raw({"content": [block]}))
    assert json.loads(bytes(part.metadata)) == told


@pytest.mark.parametrize("block", [{"type": "text"}, {"type": "odd"}, {"type": "image"}, {"type": "resource"}, 5, None])
def test_a_block_that_cannot_be_read_is_there_as_it_is(block: Any) -> None:
    assert parts_of(raw({"content": [block]})) == (DataPart(raw(block), JSON_TYPE),)


def test_structured_content_comes_first_and_is_not_said_twice() -> None:
    told = raw({"content": [{"type": "text", "text": '{"a": 1}'}], "structuredContent": {"a": 1}})
    assert parts_of(told) == (DataPart(raw({"a": 1}), JSON_TYPE),)
    both = raw({"content": [{"type": "text", "text": "one"}], "structuredContent": {"a": 1}})
    assert parts_of(both) == (DataPart(raw({"a": 1}), JSON_TYPE), TextPart("one"))


@pytest.mark.parametrize(
    ("text", "structured"),
    [
        ('{"on":1}', '{"on":true}'),
        ('{"on":0}', '{"on":false}'),
        ('{"n":1}', '{"n":1.0}'),
        ('{"n":1.0000000000000001}', '{"n":1.0000000000000002}'),
        ('{"n":1234567890123456789013}', '{"n":1234567890123456789012}'),
        ('{"n":"1.5"}', '{"n":1.5}'),
    ],
)
def test_a_text_that_only_looks_like_the_structured_content_is_kept(text: str, structured: str) -> None:
    content = json.dumps([{"type": "text", "text": text}])
    parts = parts_of(Raw(f'{{"content":{content},"structuredContent":{structured}}}'.encode()))
    assert parts == (DataPart(Raw(structured.encode()), JSON_TYPE), TextPart(text))


def test_a_text_that_repeats_the_structured_content_in_other_words_is_not_kept() -> None:
    content = json.dumps([{"type": "text", "text": '{ "b": [true, null], "a": 1.50 }'}])
    told = Raw(f'{{"content":{content},"structuredContent":{{"a":1.50,"b":[true,null]}}}}'.encode())
    assert parts_of(told) == (DataPart(Raw(b'{"a":1.50,"b":[true,null]}'), JSON_TYPE),)


@pytest.mark.parametrize("said", [FOR_PEOPLE, {"_meta": {"a": 1}}])
def test_a_repeated_text_of_which_something_is_said_is_kept(said: Any) -> None:
    told = raw({"content": [{"type": "text", "text": '{"a":1}', **said}], "structuredContent": {"a": 1}})
    data, text = parts_of(told)
    assert data == DataPart(raw({"a": 1}), JSON_TYPE)
    assert isinstance(text, TextPart)
    assert json.loads(bytes(text.metadata)) == said


def test_structured_content_that_is_null_is_none() -> None:
    told = raw({"content": [{"type": "text", "text": "one"}], "structuredContent": None})
    assert parts_of(told) == (TextPart("one"),)


def test_structured_content_keeps_its_numbers() -> None:
    (part,) = parts_of(Raw(b'{"content":[],"structuredContent":{"n":1234567890123456789012,"f":1.0}}'))
    assert part == DataPart(Raw(b'{"n":1234567890123456789012,"f":1.0}'), JSON_TYPE)


@pytest.mark.parametrize(
    "result", [{}, {"content": []}, {"tools": []}, {"content": 5}, {"messages": [{"role": "user"}]}]
)
def test_a_result_without_content_is_there_whole(result: Any) -> None:
    assert parts_of(raw(result)) == (DataPart(raw(result), JSON_TYPE),)


@pytest.mark.parametrize("depth", [500, 990, 5_000])
def test_what_is_nested_too_deeply_is_no_failure(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    told = f'{{"content":[{{"type":"text","text":"[{deep}]"}}],"structuredContent":{deep}}}'.encode()
    first = parts_of(Raw(told))[0]
    assert first in (DataPart(Raw(deep.encode()), JSON_TYPE), DataPart(Raw(told), JSON_TYPE))


@given(
    st.dictionaries(
        st.sampled_from(["content", "structuredContent", "isError"]),
        st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)),
    )
)
def test_whatever_a_server_answers_has_parts(result: Any) -> None:
    assert parts_of(raw(result))


@pytest.mark.parametrize("value", [7, None, [1], {"sum": 3}, {"content": "none"}])
def test_a_value_that_is_no_result_of_mcp_is_there_as_it_is(value: Any) -> None:
    assert parts_of(raw(value)) == (DataPart(raw(value), JSON_TYPE),)


def test_a_bare_text_is_text() -> None:
    assert parts_of(raw("hi")) == (TextPart("hi"),)


def test_members_that_mcp_does_not_have_are_there_beside_the_blocks() -> None:
    block = Raw(b'{"type":"code_output","stdout":"2"}')
    result = b'{"exit":1,"content":[{"type":"text","text":"hi"},%b],"isError":false,"ms":1.50}' % bytes(block)
    rest = Raw(b'{"exit":1,"ms":1.50}')
    assert parts_of(Raw(result)) == (TextPart("hi"), DataPart(block, JSON_TYPE), DataPart(rest, JSON_TYPE))
