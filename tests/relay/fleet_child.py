"""A small MCP server on stdin and stdout, one of several alike; it imports nothing that takes time.

`fleet_child.py NAME [ODD]`: `read` and `write` return its name and their arguments. Their arguments name the members
that do something else: `hang` never answers, `fail` answers with an error, `exit` ends the process. `count` says how
many calls hang and how many were cancelled, `ask` asks the caller for a colour, `steps` reports progress. With ODD,
`write` has another input schema.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME, IS_ODD = sys.argv[1], len(sys.argv) > 2
NAMES = {"type": "array", "items": {"type": "string"}}
BEHAVIOUR = {"type": "object", "properties": {"hang": NAMES, "fail": NAMES, "exit": NAMES, "text": {"type": "string"}}}
OPEN = {"type": "object"}
TAKEN = {"type": "object", "properties": {"fleet_member": {"type": "string"}}, "additionalProperties": False}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "read",
        "description": "Read a value.",
        "inputSchema": {**BEHAVIOUR, "additionalProperties": False},
        "outputSchema": {"type": "object", "properties": {"from": {"type": "string"}}, "required": ["from"]},
        "annotations": {"readOnlyHint": True},
    },
    {"name": "write", "inputSchema": {**BEHAVIOUR, "required": ["text"] if IS_ODD else []}},
    *({"name": name, "inputSchema": OPEN} for name in ("count", "ask", "steps")),
    {"name": "own", "inputSchema": TAKEN},
]
counted = {"hanging": 0, "cancelled": 0}
asked: dict[str, Any] = {}


def call(id: Any, params: dict[str, Any]) -> dict[str, Any] | None:
    """Run a tool; None for no answer now."""
    name, arguments = params["name"], params.get("arguments", {})
    if name == "count":
        return structured(counted)
    if name == "ask":
        asked[f"q{id}"] = id
        schema = {"type": "object", "properties": {"colour": {"type": "string"}}}
        question = {"message": f"Which colour for {NAME}?", "requestedSchema": schema}
        say({"id": f"q{id}", "method": "elicitation/create", "params": question})
        return None
    if name == "steps":
        for done in (1, 2):
            report = {"progressToken": params["_meta"]["progressToken"], "progress": done, "total": 4}
            say({"method": "notifications/progress", "params": report})
    if NAME in arguments.get("hang", ()):
        counted["hanging"] += 1
        return None
    if NAME in arguments.get("exit", ()):
        os._exit(3)
    if NAME in arguments.get("fail", ()):
        return {"content": [{"type": "text", "text": "out of order"}], "isError": True}
    return structured({"from": NAME, "arguments": arguments})


def structured(content: dict[str, Any]) -> dict[str, Any]:
    """A result with this content."""
    return {"content": [{"type": "text", "text": json.dumps(content)}], "structuredContent": content}


def say(message: dict[str, Any]) -> None:
    """Write one message."""
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def take(message: dict[str, Any]) -> None:
    """Answer a message, if it needs one."""
    method, params, id = message.get("method"), message.get("params") or {}, message.get("id")
    if method is None:
        said = message.get("result", message.get("error"))
        say({"id": asked.pop(message["id"]), "result": structured({"from": NAME, "said": said})})
    elif method == "notifications/cancelled":
        counted["cancelled"] += 1
    elif method == "initialize":
        info = {"name": NAME, "version": "1.0"}
        version = params["protocolVersion"]
        say({"id": id, "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}})
    elif method == "tools/list":
        say({"id": id, "result": {"tools": TOOLS}})
    elif method == "tools/call":
        if (result := call(id, params)) is not None:
            say({"id": id, "result": result})
    elif id is not None:
        say({"id": id, "error": {"code": -32601, "message": f"no {method}"}})


for line in sys.stdin:
    take(json.loads(line))
