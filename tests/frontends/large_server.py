"""An MCP server over its standard streams with answers of any requested size.

`text` has a text of that many bytes, `image` an image, and `rows` structured content that its output schema describes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
from msgspec import Raw

SIZED = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
ROWS = {"type": "object", "properties": {"rows": {"type": "array"}}, "required": ["rows"]}
TOOLS = [
    {"name": "text", "inputSchema": SIZED},
    {"name": "image", "inputSchema": SIZED},
    {"name": "rows", "inputSchema": SIZED, "outputSchema": ROWS},
]


class _Arguments(msgspec.Struct):
    size: int = 0


class _Params(msgspec.Struct):
    name: str = ""
    arguments: _Arguments = msgspec.field(default_factory=_Arguments)


class _Request(msgspec.Struct):
    method: str
    id: Raw = Raw()
    params: _Params = msgspec.field(default_factory=_Params)


def command() -> list[str]:
    """The words that start it."""
    return [sys.executable, str(Path(__file__).resolve())]


def text(size: int) -> str:
    """The text of the tool `text`."""
    return ('Zeile "é" 😀\n' * (size // 16 + 1))[:size]


def image(size: int) -> str:
    """The data of the tool `image`."""
    return "QUJD" * (size // 4)


def rows(size: int) -> dict[str, object]:
    """The structured content of the tool `rows`."""
    return {"rows": list(range(size // 8))}


def result_of(name: str, size: int) -> dict[str, object]:
    """The result of a tool."""
    match name:
        case "text":
            return {"content": [{"type": "text", "text": text(size)}]}
        case "image":
            return {"content": [{"type": "image", "data": image(size), "mimeType": "image/png"}]}
        case _:
            found = rows(size)
            written = msgspec.json.encode(found).decode()
            return {"content": [{"type": "text", "text": written}], "structuredContent": found}


def respond(request: _Request) -> dict[str, object]:
    """The result of a request."""
    match request.method:
        case "server/discover":
            return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        case "tools/list":
            return {"tools": TOOLS}
        case _:
            return result_of(request.params.name, request.params.arguments.size)


def main() -> None:
    """Answer lines until the end of input."""
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=_Request)
        if request.id:
            result = {"resultType": "complete", **respond(request)}
            answer = memoryview(msgspec.json.encode({"jsonrpc": "2.0", "id": request.id, "result": result}) + b"\n")
            while answer:
                answer = answer[os.write(1, answer) :]


if __name__ == "__main__":
    main()
