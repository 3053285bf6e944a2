"""An MCP server over its standard streams whose tool answers with the very text of its arguments.

`python echo_server.py` speaks the modern era. No number is ever made of what it is given, so that whatever comes back
different was changed on the way.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
from msgspec import Raw

TOOL = {"name": "echo", "inputSchema": {"type": "object"}}


class _Params(msgspec.Struct):
    arguments: Raw = Raw(b"{}")


class _Request(msgspec.Struct):
    method: str
    id: Raw = Raw()
    params: _Params = msgspec.field(default_factory=_Params)


def command() -> list[str]:
    """The words that start it."""
    return [sys.executable, str(Path(__file__).resolve())]


def main() -> None:
    """Answer lines until the end of input."""
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=_Request)
        if request.id:
            answer = b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (bytes(request.id), respond(request))
            os.write(1, answer)


def respond(request: _Request) -> bytes:
    """The result of a request."""
    match request.method:
        case "server/discover":
            return b'{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}'
        case "tools/list":
            return b'{"resultType":"complete","tools":[%b]}' % msgspec.json.encode(TOOL)
        case _:
            echoed = bytes(request.params.arguments)
            return b'{"resultType":"complete","content":[],"structuredContent":%b}' % echoed


if __name__ == "__main__":
    main()
