"""A plain JSON value as the result of a tool, for what answers in values and not in MCP's words.

Built as text around text: a value of megabytes is neither parsed nor rendered again. Called by the links to Python
functions and to plain JSON-RPC servers, and by frontends that must convert what the latter return.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from isthmus.model.outcomes import Result
from isthmus.wire.jsonrpc import Payload

_encode = msgspec.json.Encoder().encode


class _Block(msgspec.Struct):
    type: Literal["text", "image", "audio", "resource", "resource_link"]


class _ToolResult(msgspec.Struct):
    content: list[_Block]
    isError: bool | None = False
    resultType: Literal["complete"] | None = None


class _Flag(msgspec.Struct):
    isError: bool | None = False


_TOOL_RESULT = msgspec.json.Decoder(_ToolResult)
_FLAG = msgspec.json.Decoder(_Flag)


def result_of(value: Payload) -> Result:
    """The result that says `value`: itself if it is one already, otherwise the value as text and as structure."""
    if bytes(memoryview(value)[:1]) != b"{":
        return plain(value)
    try:
        known = _TOOL_RESULT.decode(value)
    except msgspec.MsgspecError:
        # Content of kinds that MCP does not have would make clients refuse the whole answer.
        return plain(value, is_error=_says_error(value))
    return Result(msgspec.Raw(value), bool(known.isError), known.resultType is not None)


def verbatim(value: Payload) -> Result:
    """What a plain JSON-RPC server returned, unchanged; it is bare unless it happens to be a tool result of MCP."""
    try:
        known = _TOOL_RESULT.decode(value)
    except msgspec.MsgspecError:
        return Result(msgspec.Raw(value), _says_error(value), is_bare=True)
    return Result(msgspec.Raw(value), bool(known.isError), known.resultType is not None)


def as_tool_result(result: Result) -> Result:
    """A bare result for a protocol that carries only tool results of MCP: the same JSON as text and as structure."""
    return plain(result.payload, is_error=result.is_error)


def _says_error(value: Payload) -> bool:
    try:
        return bool(_FLAG.decode(value).isError)
    except msgspec.MsgspecError:
        return False


def plain(value: Payload, *, is_error: bool = False) -> Result:
    """A result with the value as text, and as structured content, which must be an object."""
    start = bytes(memoryview(value)[:1])
    text = value if start == b'"' else _encode(str(memoryview(value), "utf-8"))
    parts = (value,) if start == b"{" else (b'{"result":', value, b"}")
    return Result(msgspec.Raw(b"".join((_HEAD, text, _MIDDLE, *parts, _TAILS[is_error]))), is_error, is_untyped=True)


def failure(words: str) -> Result:
    """The result of a tool that ran and failed."""
    return Result(msgspec.Raw(b"".join((_HEAD, _encode(words), b"}]", _TAILS[True]))), is_error=True)


_HEAD = b'{"content":[{"type":"text","text":'
_MIDDLE = b'}],"structuredContent":'
_TAILS = {False: b',"isError":false}', True: b',"isError":true}'}
