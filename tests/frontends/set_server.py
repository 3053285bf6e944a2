"""An MCP server over its standard streams with things to put into sets; each answers with what it was sent.

`python set_server.py` speaks the modern era. What it answers is the very text that it was sent, so that a test sees
which arguments left the hub.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

ISSUE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "repo": {"$ref": "#/$defs/Repo"},
        "verbose": {"type": "boolean", "default": False},
        "options": {"type": "object", "properties": {"repo": {"type": "string", "default": "none"}}},
    },
    "required": ["title", "repo"],
    "examples": [{"title": "a", "repo": "secret/repo"}],
    "$defs": {"Repo": {"type": "string", "pattern": "^[a-z]+/[a-z]+$"}},
}
COMBINED = {"type": "object", "properties": {"repo": {"type": "string"}}, "allOf": [{"required": ["repo"]}]}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "create_issue",
        "description": "Create an issue. It may take a while. Use it sparingly, since people read every one of them.",
        "inputSchema": ISSUE,
        "annotations": {"destructiveHint": True},
    },
    {
        "name": "search",
        "description": "Search.",
        "inputSchema": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        "annotations": {"readOnlyHint": True},
    },
    {"name": "combined", "description": "Has a schema in two parts.", "inputSchema": COMBINED},
]
PROMPTS: list[dict[str, Any]] = [
    {"name": "brief", "arguments": [{"name": "subject"}]},
    {
        "name": "review",
        "title": "Review a change",
        "description": "Review a change. It reads the whole of it, and all that it refers to, which takes a while.",
        "arguments": [
            {"name": "change", "description": "Its number.", "required": True},
            {"name": "repo", "required": True},
            {"name": "tone"},
        ],
    },
    {"name": "doubled", "arguments": [{"name": "repo"}, {"name": "Repo"}]},
]
RESOURCES = [
    {"uri": "memo://one", "name": "one"},
    {"uri": "memo://two", "name": "two", "description": "The second memo. It is longer than the first one by far."},
]
TEMPLATES = [{"uriTemplate": "note://{id}", "name": "note"}]
LISTS: dict[str, dict[str, Any]] = {
    "tools/list": {"tools": TOOLS},
    "prompts/list": {"prompts": PROMPTS},
    "resources/list": {"resources": RESOURCES},
    "resources/templates/list": {"resourceTemplates": TEMPLATES},
}
ABILITIES = b'{"tools":{},"prompts":{},"resources":{},"completions":{}}'


class _Params(msgspec.Struct):
    name: str = ""
    uri: str = ""
    arguments: Raw = Raw(b"{}")
    ref: Raw = Raw(b"null")
    argument: Raw = Raw(b"null")
    context: Raw = Raw(b"null")


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
    params, arguments = request.params, bytes(request.params.arguments)
    match request.method:
        case "server/discover":
            return b'{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":%b}' % ABILITIES
        case listed if listed in LISTS:
            return msgspec.json.encode({"resultType": "complete", **LISTS[listed]})
        case "prompts/get":
            content = {"type": "text", "text": f"{params.name} {arguments.decode()}"}
            return msgspec.json.encode({"resultType": "complete", "messages": [{"role": "user", "content": content}]})
        case "resources/read":
            contents = [{"uri": params.uri, "text": params.uri}]
            return msgspec.json.encode({"resultType": "complete", "contents": contents})
        case "completion/complete":
            values = [bytes(each).decode() for each in (params.ref, params.argument, params.context)]
            return msgspec.json.encode({"resultType": "complete", "completion": {"values": values}})
        case _:
            text = msgspec.json.encode(f"{params.name} {arguments.decode()}")
            form = b'{"resultType":"complete","content":[{"type":"text","text":%b}],"structuredContent":%b}'
            return form % (text, arguments)


if __name__ == "__main__":
    main()
