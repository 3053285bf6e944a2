"""A result as a person reads it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from isthmus.cli.results import readable, readable_contents, readable_messages


def shown(**result: Any) -> str:
    return readable(msgspec.Raw(json.dumps(result).encode()))


def test_texts_are_shown_as_they_are_one_below_the_other() -> None:
    assert shown(content=[{"type": "text", "text": "a\x1b"}, {"type": "text", "text": "b"}]) == "a\x1b\nb"


@pytest.mark.parametrize(
    ("block", "line"),
    [
        (
            {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"},
            "[image image/png, 5 bytes: --json shows it]",
        ),
        ({"type": "audio", "data": ""}, "[audio, 0 bytes: --json shows it]"),
        ({"type": "resource_link", "uri": "file:///a", "name": "a"}, "[link a file:///a]"),
        ({"type": "resource", "resource": {"uri": "x:", "text": "inside"}}, "inside"),
        (
            {"type": "resource", "resource": {"uri": "x:", "blob": "aGVs"}},
            "[resource x:, 3 bytes: --json shows it]",
        ),
        ({"type": "hologram"}, "[hologram: --json shows it]"),
        ({"type": "text", "text": 3}, "[text: --json shows it]"),
        (3, "[something without a type: --json shows it]"),
    ],
)
def test_everything_else_is_a_line(block: object, line: str) -> None:
    assert shown(content=[block]) == line


def test_structured_content_is_shown_where_there_is_no_other() -> None:
    payload = msgspec.Raw(b'{"content":[],"structuredContent":{"n":1.10}}')
    assert readable(payload) == '{\n  "n": 1.10\n}'
    assert shown(content=[{"type": "text", "text": "a"}], structuredContent={"n": 1}) == "a"


@pytest.mark.parametrize("result", [{}, {"content": 3}, {"content": None}])
def test_a_result_without_content_shows_nothing(result: dict[str, Any]) -> None:
    assert shown(**result) == ""


def test_a_prompt_is_shown_as_who_says_what() -> None:
    messages = [{"role": "user", "content": {"type": "text", "text": "hi"}}, {"role": "user"}]
    payload = msgspec.Raw(msgspec.json.encode({"messages": messages}))
    assert readable_messages(payload) == "user: hi\n\n[something that is no message: --json shows it]"


def test_a_resource_is_shown_part_by_part() -> None:
    parts = [{"uri": "x:", "text": "a"}, {"uri": "y:", "blob": "aGVs", "mimeType": "a/b"}]
    payload = msgspec.Raw(msgspec.json.encode({"contents": parts}))
    assert readable_contents(payload) == "a\n[resource y: a/b, 3 bytes: --json shows it]"
