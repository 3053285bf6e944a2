"""A server over standard streams with two of everything; it labels one of each as harmless.

Every call is answered with its own name, so that a test knows what ran; one that is told to `die` notes in that file
that it ran, and takes the server with it. Its argument is what it calls itself.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

SAFE = {"_meta": {"fastmcp": {"tags": ["safe"]}}}
READ_ONLY = {
    "annotations": {"readOnlyHint": True, "idempotentHint": True, "destructiveHint": False, "openWorldHint": False}
}
SCHEMA = {"inputSchema": {"type": "object"}}

TOOLS: list[dict[str, Any]] = [
    {"name": "look", **SCHEMA, **SAFE, **READ_ONLY},
    {"name": "drop", **SCHEMA},
    {"name": "tell", **SCHEMA, "annotations": {"destructiveHint": False, "openWorldHint": True}},
]
PROMPTS: list[dict[str, Any]] = [
    {"name": "greet", "arguments": [{"name": "who"}], **SAFE},
    {"name": "scold", "arguments": [{"name": "who"}]},
]


def resources(server: str) -> list[dict[str, Any]]:
    """Those that are listed."""
    return [{"uri": f"{server}:open", "name": "open", **SAFE}, {"uri": f"{server}:shut", "name": "shut"}]


def templates(server: str) -> list[dict[str, Any]]:
    """One family of resources that is open, and one that is not."""
    return [
        {"uriTemplate": f"{server}:open/{{n}}", "name": "open ones", **SAFE},
        {"uriTemplate": f"{server}:shut/{{n}}", "name": "shut ones"},
    ]


def text(said: str) -> dict[str, Any]:
    """The result of a tool."""
    return {"content": [{"type": "text", "text": said}]}


def answer(server: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """What the server answers."""
    match method:
        case "initialize":
            abilities = {"tools": {}, "prompts": {}, "resources": {"subscribe": True}, "completions": {}}
            me = {"name": server, "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": abilities, "serverInfo": me}
        case "tools/list":
            return {"tools": TOOLS}
        case "prompts/list":
            return {"prompts": PROMPTS}
        case "resources/list":
            return {"resources": resources(server)}
        case "resources/templates/list":
            return {"resourceTemplates": templates(server)}
        case "tools/call":
            if (ledger := params.get("arguments", {}).get("die")) is not None:
                with open(ledger, "a") as file:
                    file.write("ran\n")
                os._exit(1)
            return text(f"ran {server}.{params['name']}")
        case "prompts/get":
            said = {"type": "text", "text": f"wrote {server}.{params['name']}"}
            return {"messages": [{"role": "user", "content": said}]}
        case "resources/read":
            return {"contents": [{"uri": params["uri"], "text": f"{server} read {params['uri']}"}]}
        case "completion/complete":
            ref = params["ref"]
            return {"completion": {"values": [f"{server} completed {ref.get('name', ref.get('uri'))}"]}}
        case _:
            return {}


def main(server: str) -> None:
    """Answer until the hub leaves."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = answer(server, message["method"], message.get("params", {}))
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
