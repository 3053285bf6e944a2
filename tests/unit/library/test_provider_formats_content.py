from __future__ import annotations

from typing import Any

import pytest

from isthmus.library.provider_formats import (
    ModelImage,
    ModelText,
    model_parts,
    result_record,
    result_text,
    result_value,
)
from isthmus.library.public_types import ErrorCode, ErrorPayload, ToolResult, ToolStatus


def answered(*content: dict[str, Any], structured: Any = None, status: ToolStatus = ToolStatus.SUCCESS) -> ToolResult:
    metadata = {"content": list(content), "structured": structured is not None}
    return ToolResult("docs.read", status, "docs", structured, metadata=metadata)


def test_text_and_images_stay_in_their_order() -> None:
    image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    result = answered({"type": "text", "text": "before"}, image, {"type": "text", "text": "after"})
    assert model_parts(result) == [ModelText("before"), ModelImage("AAAA", "image/png"), ModelText("after")]
    assert ModelImage("AAAA", "image/png").url == "data:image/png;base64,AAAA"
    assert result_text(result) == "before\n[image image/png, 3 bytes]\nafter"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "data": "AAAA", "mimeType": "text/html"},
        {"type": "image", "data": 7, "mimeType": "image/png"},
        {"type": "image", "data": "AAAA", "mimeType": "image/svg+xml"},
        {"type": "image", "data": "not base64!", "mimeType": "image/png"},
        {"type": "image", "data": "AAAAA", "mimeType": "image/png"},
        {"type": "image", "data": "é", "mimeType": "image/png"},
        {"type": "image", "data": "", "mimeType": "image/png"},
        {"type": "image"},
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
        {"type": "text"},
        {"type": ["text"]},
        {},
    ],
)
def test_a_block_with_a_wrong_type_becomes_text(block: dict[str, Any]) -> None:
    (part,) = model_parts(answered(block))
    assert isinstance(part, ModelText)


@pytest.mark.parametrize("kind", ["image/jpg", "IMAGE/JPEG", "image/jpeg; q=1"])
def test_a_picture_has_the_name_of_its_kind_that_providers_know(kind: str) -> None:
    assert model_parts(answered({"type": "image", "data": "AAAA", "mimeType": kind})) == [
        ModelImage("AAAA", "image/jpeg")
    ]


def test_a_picture_in_lines_as_python_writes_them_is_one() -> None:
    block = {"type": "image", "data": "AAAA\nAAAA\r\n", "mimeType": "image/png"}
    assert model_parts(answered(block)) == [ModelImage("AAAAAAAA", "image/png")]


def test_empty_texts_are_left_out() -> None:
    nothing, image = {"type": "text", "text": ""}, {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    assert model_parts(answered(nothing, image, {"type": "text", "text": " \n"})) == [ModelImage("AAAA", "image/png")]
    assert model_parts(answered(nothing)) == [ModelText("")]
    one, other = {"type": "text", "text": "one"}, {"type": "text", "text": "other"}
    assert result_text(answered(one, nothing, other)) == "one\n\nother"
    failed = answered(nothing, status=ToolStatus.ERROR)
    failed.error_message = "docs.read failed without a message"
    assert result_text(failed) == "docs.read failed without a message"


def test_structured_content_without_words_is_shown_as_json() -> None:
    assert result_text(answered(structured={"found": [1, 2]})) == '{"found":[1,2]}'
    assert result_text(answered({"type": "text", "text": "two"}, structured={"found": [1, 2]})) == "two"
    assert result_text(answered()) == ""


def test_of_a_failure_the_reason_is_shown() -> None:
    said = answered({"type": "text", "text": "it is closed"}, status=ToolStatus.ERROR)
    late = ToolResult("docs.read", ToolStatus.TIMEOUT, error_message="docs.read took longer than 1 s")
    mute = ToolResult("docs.read", ToolStatus.TIMEOUT)
    assert result_text(said) == "it is closed"
    assert result_text(late) == "docs.read took longer than 1 s"
    assert result_text(mute) == "docs.read failed: timeout"


def test_the_record_is_plain_json_with_how_it_ended() -> None:
    record = result_record(answered(structured=[1]))
    assert (record["status"], record["tool"], record["server"]) == ("success", "docs.read", "docs")
    assert record["structured_content"] == [1]
    assert type(record["status"]) is str
    error = ErrorPayload(ErrorCode.TOOL_TIMEOUT, "too late", "unknown", "timed_out", "docs")
    failed = result_record(ToolResult("docs.read", ToolStatus.TIMEOUT, error=error))
    assert (failed["error"]["code"], failed["error"]["executed"]) == ("tool.timeout", "unknown")
    assert type(failed["error"]["code"]) is str
    assert "structured_content" not in failed


def test_the_value_is_the_tools_result() -> None:
    assert result_value(answered(structured={"result": [1]})) == [1]
    assert result_value(answered(structured={"result": [1], "more": 2})) == {"result": [1], "more": 2}
    assert result_value(answered({"type": "text", "text": "words"})) == "words"
