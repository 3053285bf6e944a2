"""What the model is told of an execution: a dictionary with a status, whatever happened.

An exception would end the whole invocation, so there is none: each way of failing has its own `status`, and `error`
says why. Called by `HubTool`.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from google.adk.version import __version__ as adk_version
from google.genai import types

from isthmus.library.contracts import ErrorPayload, ToolResult, text_of

MEDIA = frozenset({"image", "audio"})
TAKES_MEDIA = tuple(int(part) for part in adk_version.split(".")[:2]) >= (2, 8)
"""Before, ADK has no way to give a model what a tool has drawn, and the blocks stay among the text."""


def answer_of(result: ToolResult) -> dict[str, Any]:
    """`{status, result, tool_name, namespace, execution_time}`, or `{status, error, …, error_payload}`.

    Pictures and sound go beside it as `media`, which ADK takes out and hands to the model as what they are.
    """
    answer: dict[str, Any] = {"status": result.status.value}
    media = _media_of(result)
    if not result.is_success:
        answer["error"] = result.error_message or result.status.value
    elif media and not result.metadata.get("structured"):
        answer["result"] = _without_media(result.metadata["content"])
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
    parts = [_media_part(block) for block in content if block.get("type") in MEDIA]
    return [part for part in parts if part is not None]


def _without_media(content: list[dict[str, Any]]) -> Any:
    rest = [block for block in content if block.get("type") not in MEDIA or _media_part(block) is None]
    return text_of(rest) if all(block.get("type") == "text" for block in rest) else rest


def _media_part(block: dict[str, Any]) -> types.Part | None:
    data, kind = block.get("data"), block.get("mimeType")
    if not isinstance(data, str) or not isinstance(kind, str):
        return None
    try:
        return types.Part.from_bytes(data=base64.b64decode(data, validate=True), mime_type=kind)
    except (binascii.Error, ValueError):  # what a server sends is not to be trusted
        return None
