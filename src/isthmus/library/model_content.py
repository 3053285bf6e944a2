"""What a language model is shown of a result: pieces of text and images, whatever the tool returned.

Every framework has its own words for the two; `dispatch` and the integrations put them into these. Servers are not
trusted here: a block that is not what it says is shown as text.
"""

from __future__ import annotations

import binascii
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import msgspec

from isthmus.library.contracts import ToolResult, ToolStatus
from isthmus.library.forms import block_text

SHOWN = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What providers take for a picture. Of another kind, such as SVG, they refuse the conversation from then on."""


@dataclass(frozen=True, slots=True)
class Text:
    """Words."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """A picture, in base64."""

    data: str
    mime: str

    @property
    def url(self) -> str:
        """The same as an address that holds all of it."""
        return f"data:{self.mime};base64,{self.data}"


Part: TypeAlias = Text | Image


def parts_of(result: ToolResult) -> list[Part]:
    """What a model is shown, in the order of the tool's answer; of a failure, why. Never empty.

    Words that are none are left out, which providers refuse; where nothing was said, there is one part without any.
    """
    return [part for part in _told(result) if not _is_blank(part)] or [Text("")]


def said_by(result: ToolResult) -> str:
    """The same in words only: an image is named, not shown."""
    return "\n".join(_in_words(part) for part in _told(result))


def value_of(result: ToolResult) -> Any:
    """What a tool returned, as a value where it gave one, and in words otherwise.

    Servers put what is no object into one of a single member `result`; it is taken out again.
    """
    if not _has_structure(result):
        return said_by(result)
    match result.result_data:
        case {"result": value, **others} if not others:
            return value
        case value:
            return value


def record_of(result: ToolResult) -> dict[str, Any]:
    """A result as plain JSON, for programs: how it ended, its structured content, and what went wrong."""
    record: dict[str, Any] = {
        "status": str(result.status),
        "tool": result.tool_name,
        "server": result.tool_namespace,
        "execution_time": result.execution_time,
        "session_id": result.session_id,
    }
    if _has_structure(result):
        record["structured_content"] = result.result_data
    if result.error is not None:
        record["error"] = {**asdict(result.error), "code": str(result.error.code)}
    return record


def json_of(value: Any) -> str:
    """A value as JSON; of what JSON has no word for, its text."""
    return msgspec.json.encode(value, enc_hook=str).decode()


def _told(result: ToolResult) -> list[Part]:
    if parts := [_part_of(block) for block in _content_of(result)]:
        return parts
    if result.status is not ToolStatus.SUCCESS:
        return [Text(result.error_message or f"{result.tool_name} failed: {result.status}")]
    return [Text(json_of(result.result_data) if _has_structure(result) else "")]


def _content_of(result: ToolResult) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = result.metadata.get("content") or []
    match result.status:
        case ToolStatus.SUCCESS:
            return content
        case ToolStatus.ERROR if not all(_is_blank(_part_of(block)) for block in content):
            return content
        case _:
            return []


def _has_structure(result: ToolResult) -> bool:
    return bool(result.metadata.get("structured"))


def image_of(block: dict[str, Any]) -> Image | None:
    """A block as a picture that a model can be shown; None if it is none."""
    match block:
        case {"type": "image", "data": str(data), "mimeType": str(mime)}:
            kind = mime.partition(";")[0].strip().lower().replace("image/jpg", "image/jpeg")
            whole = "".join(data.split())  # mail has lines, and so has what Python's `encodebytes` writes
            return Image(whole, kind) if kind in SHOWN and _is_base64(whole) else None
        case _:
            return None


def _is_base64(data: str) -> bool:
    try:
        return bool(binascii.a2b_base64(data, strict_mode=True))
    except ValueError:  # also what is no ASCII
        return False


def _part_of(block: dict[str, Any]) -> Part:
    return image_of(block) or Text(block_text(block))


def _is_blank(part: Part) -> bool:
    return isinstance(part, Text) and not part.text.strip()


def _in_words(part: Part) -> str:
    if isinstance(part, Text):
        return part.text
    return block_text({"type": "image", "data": part.data, "mimeType": part.mime})
