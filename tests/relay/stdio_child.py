"""A small MCP server on stdin and stdout that starts at once, because it imports only fast modules.

`stdio_child.py NAME TOOL…`: every tool gives its `text` back, but `hold` never answers, `die` ends the process without
a word, and `fail` fails. What comes before `initialize` is refused, and a second `initialize` too: one session is all.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def answer(message: dict[str, Any], name: str, tools: list[str], state: dict[str, int]) -> dict[str, Any] | None:
    """What it says to a request; None for nothing."""
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        state["greeted"] += 1
        if state["greeted"] > 1:
            return {"error": {"code": -32600, "message": "initialised already"}}
        info = {"name": name, "version": "1.0"}
        version = params["protocolVersion"]
        return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
    if not state["greeted"]:
        return {"error": {"code": -32602, "message": "not initialised"}}
    if method == "tools/list":
        return {"result": {"tools": [{"name": tool, "inputSchema": {"type": "object"}} for tool in tools]}}
    if method == "tools/call":
        return called(params)
    return {"result": {}}


def called(params: dict[str, Any]) -> dict[str, Any] | None:
    """What a tool says."""
    tool, text = params["name"], str(params.get("arguments", {}).get("text", ""))
    if tool == "die":
        os._exit(3)
    if tool == "hold":
        return None
    result = {"content": [{"type": "text", "text": text}]}
    return {"result": result | ({"isError": True} if tool == "fail" else {})}


def main() -> None:
    """Serve until stdin ends."""
    name, tools = sys.argv[1], sys.argv[2:] or ["echo"]
    state = {"greeted": 0}
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and (said := answer(message, name, tools, state)) is not None:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)


main()
