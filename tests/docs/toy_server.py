"""Stands in for the servers that pages name: lists the tools in its arguments and echoes their text."""

from __future__ import annotations

import json
import sys
from typing import Any

READ_ONLY = {"read", "fetch"}


def answer(request: dict[str, Any], tools: list[str]) -> dict[str, Any]:
    match request["method"]:
        case "initialize":
            version = request["params"]["protocolVersion"]
            about = {"name": "toy", "version": "1"}
            return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}}
        case "tools/list":
            return {"result": {"tools": [described(name) for name in tools]}}
        case "tools/call":
            return {"result": {"content": [{"type": "text", "text": json.dumps(request["params"]["arguments"])}]}}
        case method:
            return {"error": {"code": -32601, "message": f"Method not found: {method}"}}


def described(name: str) -> dict[str, Any]:
    annotations = {"readOnlyHint": name in READ_ONLY, "destructiveHint": name == "delete"}
    return {"name": name, "inputSchema": {"type": "object"}, "annotations": annotations}


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer(message, sys.argv[1:])}), flush=True)
