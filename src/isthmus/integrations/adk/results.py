"""What the model is told of an execution: a dictionary with a status, whatever happened.

An exception would end the whole invocation, so there is none: each way of failing has its own `status`, and `error`
says why. Called by `HubTool`.
"""

from __future__ import annotations

import base64
from typing import Any

from google.adk.version import __version__ as adk_version
from google.genai import types

from isthmus.library.contracts import ErrorPayload, ToolResult, text_of
from isthmus.library.forms import block_text
from isthmus.library.parts import image_of

TAKES_MEDIA = tuple(int(part) for part in adk_version.split(".")[:2]) >= (2, 8)
"""Before, ADK has no way to give a model what a tool has drawn, and the blocks stay among the text."""


def answer_of(result: ToolResult) -> dict[str, Any]:
    """`{status, result, tool_name, namespace, execution_time}`, or `{status, error, …, error_payload}`.

    Pictures and sound go beside it as `media`, which ADK takes out and hands to the model as what they are.
    """
    answer: dict[str, Any] = {"status": result.status.value}
    content, media = result.metadata.get("content") or [], _media_of(result)
    if not result.is_success:
        answer["error"] = result.error_message or result.status.value
    elif TAKES_MEDIA and any(map(_is_media, content)) and not result.metadata.get("structured"):
        answer["result"] = _without_media(content)
    else:
        answer["result"] = result.result_data
    answer |= {
        "tool_name": result.tool_name,
        "namespace": result.tool_namespace,
        "execution_time": result.execution_time,
    }
    if result.error is not None:
        answer["error_payload"] = payload_of(result.error)
    if media:
        answer["media"] = media
    return answer


def payload_of(error: ErrorPayload) -> dict[str, Any]:
    """An error for programs, without what is not known."""
    known = {
        "code": error.code.value,
        "message": error.message,
        "executed": error.executed,
        "reason": error.reason,
        "server": error.server,
        "retry_after": error.retry_after,
        "details": error.details,
    }
    return {key: value for key, value in known.items() if value not in (None, "", {})}


def _media_of(result: ToolResult) -> list[types.Part]:
    content = result.metadata.get("content") or [] if TAKES_MEDIA else []
    parts = [_media_part(block) for block in content if _is_media(block)]
    return [part for part in parts if part is not None]


def _without_media(content: list[dict[str, Any]]) -> Any:
    """What is left to say; of what cannot be shown, what it is."""
    rest = [_in_words(block) for block in content if not _is_media(block) or _media_part(block) is None]
    return text_of(rest) if all(block.get("type") == "text" for block in rest) else rest


def _in_words(block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "text", "text": block_text(block)} if _is_media(block) else block


def _is_media(block: dict[str, Any]) -> bool:
    return block.get("type") in ("image", "audio")


def _media_part(block: dict[str, Any]) -> types.Part | None:
    if (image := image_of(block)) is not None:
        return types.Part.from_bytes(data=base64.b64decode(image.data), mime_type=image.mime)
    match block:
        case {"type": "audio", "data": str(data), "mimeType": str(kind)}:
            try:
                return types.Part.from_bytes(data=base64.b64decode(data, validate=True), mime_type=kind)
            except ValueError:  # what a server sends is not to be trusted
                return None
        case _:
            return None
