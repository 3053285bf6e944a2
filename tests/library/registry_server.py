"""A stdio server for tests of the registry; it imports no SDK, so that it starts at once.

`python registry_server.py NAME…`: the names are those of more tools, each of which answers with its own name.
"""

from __future__ import annotations

import json
import sys
from typing import Any

LONG = 12_345
"""Characters of what `long` answers."""

OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

tools: dict[str, Any] = {
    "say": TEXT,
    "refuse": OBJECT,
    "crash": OBJECT,
    "hang": OBJECT,
    "leave": OBJECT,
    "long": OBJECT,
    "picture": OBJECT,
    "grow": TEXT,
    "shrink": TEXT,
    "misspelt": {"type": "object", "properties": {"a": {"type": "strin"}}},
    "schemaless": "none",
}


def send(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def change(name: str, *, is_there: bool) -> None:
    if is_there:
        tools[name] = OBJECT
    else:
        tools.pop(name, None)
    send({"method": "notifications/tools/list_changed"})


def called(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    text = arguments.get("text", name)
    content: list[dict[str, Any]] = [{"type": "text", "text": text}]
    match name:
        case "leave":
            sys.exit(1)
        case "grow" | "shrink":
            change(text, is_there=name == "grow")
        case "long":
            content = [{"type": "text", "text": "x" * LONG}]
        case "picture":
            content.append({"type": "image", "data": "AAAA", "mimeType": "image/png"})
        case _:
            pass
    return {"content": content, "isError": name == "refuse"}


def answer(request: dict[str, Any]) -> None:
    params = request.get("params", {})
    match request.get("method"):
        case "initialize":
            said = {"protocolVersion": "2025-06-18", "serverInfo": {"name": "bench", "version": "1"}}
            send({"id": request["id"], "result": {**said, "capabilities": {"tools": {"listChanged": True}}}})
        case "tools/list":
            listed = [{"name": name, "description": f"does {name}", "inputSchema": tools[name]} for name in tools]
            send({"id": request["id"], "result": {"tools": listed}})
        case "tools/call" if params["name"] == "hang":
            pass
        case "tools/call" if params["name"] != "crash":
            send({"id": request["id"], "result": called(params["name"], params.get("arguments", {}))})
        case method if "id" in request:
            send({"id": request["id"], "error": {"code": -32601, "message": f"no {method} here"}})
        case _:
            pass


if __name__ == "__main__":
    tools.update(dict.fromkeys(sys.argv[1:], OBJECT))
    for line in sys.stdin:
        answer(json.loads(line))
