"""A tool result as content for a language model: text and images.

`dispatcher` and the integrations convert these to their framework's form. Servers are not trusted: a content block with
invalid data becomes text.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import msgspec

from isthmus.library.contracts import ToolResult, ToolStatus

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Image types that providers accept. With any other, such as SVG, they reject the whole conversation."""


@dataclass(frozen=True, slots=True)
class ModelText:
    """Text."""

    text: str


@dataclass(frozen=True, slots=True)
class ModelImage:
    """An image, in base64."""

    data: str
    mime: str

    @property
    def url(self) -> str:
        """The image as a data URL."""
        return f"data:{self.mime};base64,{self.data}"


ModelPart: TypeAlias = ModelText | ModelImage


def model_parts(result: ToolResult) -> list[ModelPart]:
    """The content of a result in order, or the error message of a failure; never an empty list.

    Blank texts are left out, since providers reject them; a result without content is one empty text.
    """
    return [part for part in _all_parts(result) if not _is_blank(part)] or [ModelText("")]


def result_text(result: ToolResult) -> str:
    """The content of a result as text; an image is only named."""
    return "\n".join(
        part.text
        if isinstance(part, ModelText)
        else block_text({"type": "image", "data": part.data, "mimeType": part.mime})
        for part in _all_parts(result)
    )


def result_value(result: ToolResult) -> Any:
    """The structured content of a result if there is any, otherwise its text.

    Servers wrap values that are not objects as `{"result": value}`; they are unwrapped.
    """
    if not _is_structured(result):
        return result_text(result)
    match result.result_data:
        case {"result": value, **others} if not others:
            return value
        case value:
            return value


def result_record(result: ToolResult) -> dict[str, Any]:
    """A result as plain JSON for programs: status, structured content and error."""
    record: dict[str, Any] = {
        "status": str(result.status),
        "tool": result.tool_name,
        "server": result.tool_namespace,
        "execution_time": result.execution_time,
        "session_id": result.session_id,
    }
    if _is_structured(result):
        record["structured_content"] = result.result_data
    if result.error is not None:
        record["error"] = {**asdict(result.error), "code": str(result.error.code)}
    return record


def to_json(value: Any) -> str:
    """A value as JSON; other types as their `str`."""
    return msgspec.json.encode(value, enc_hook=str).decode()


def _all_parts(result: ToolResult) -> list[ModelPart]:
    content: list[dict[str, Any]] = result.metadata.get("content") or []
    parts = [image_from_block(block) or ModelText(block_text(block)) for block in content]
    has_content = bool(parts) and (
        result.status is ToolStatus.SUCCESS
        or (result.status is ToolStatus.ERROR and not all(_is_blank(part) for part in parts))
    )
    if has_content:
        return parts
    if result.status is not ToolStatus.SUCCESS:
        return [ModelText(result.error_message or f"{result.tool_name} failed: {result.status}")]
    return [ModelText(to_json(result.result_data) if _is_structured(result) else "")]


def _is_structured(result: ToolResult) -> bool:
    return bool(result.metadata.get("structured"))


def image_from_block(block: dict[str, Any]) -> ModelImage | None:
    """A content block as an image that models accept; None if it is not one."""
    match block:
        case {"type": "image", "data": str(data), "mimeType": str(mime)}:
            kind = mime.partition(";")[0].strip().lower().replace("image/jpg", "image/jpeg")
            joined = "".join(data.split())  # e-mail and Python's `encodebytes` split base64 into lines
            try:
                is_valid = kind in IMAGE_TYPES and bool(binascii.a2b_base64(joined, strict_mode=True))
            except ValueError:
                is_valid = False
            return ModelImage(joined, kind) if is_valid else None
        case _:
            return None


def _is_blank(part: ModelPart) -> bool:
    return isinstance(part, ModelText) and not part.text.strip()


def block_text(block: Mapping[str, Any]) -> str:
    """A content block as text; other content is named, with its size."""
    match block:
        case {"type": "text", "text": str(text)} | {"type": "resource", "resource": {"text": str(text)}}:
            return text
        case {"type": "resource_link", "uri": str(uri)}:
            return f"[resource {uri}]"
        case {"type": "resource", "resource": {"uri": str(uri), "blob": str(data)}}:
            return f"[resource {uri}, {_bytes_in(data)} bytes]"
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return f"[{kind} {block.get('mimeType', 'of unknown type')}, {_bytes_in(data)} bytes]"
        case _:
            return to_json(block)


def _bytes_in(base64: str) -> str:
    return f"{len(base64.rstrip('=')) * 3 // 4:,}"
