"""An MCP server over standard streams, as small as it can be; the three servers beside it are made of this."""

import json
import sys
from collections.abc import Callable
from typing import Any

Tools = dict[str, tuple[Callable[..., object], str, dict[str, str]]]
"""By name: the function, what it does, and the JSON type of each argument."""


def serve(name: str, tools: Tools) -> None:
    """Answer requests until standard input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            reply = {"jsonrpc": "2.0", "id": request["id"], **answer(name, tools, request)}
            print(json.dumps(reply), flush=True)


def answer(name: str, tools: Tools, request: dict[str, Any]) -> dict[str, Any]:
    """What a request is answered with: a result, or an error."""
    match request["method"]:
        case "initialize":
            about = {"name": name, "version": "1.0"}
            version = request["params"]["protocolVersion"]
            return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}}
        case "ping":
            return {"result": {}}
        case "tools/list":
            return {"result": {"tools": [described(tool, *tools[tool]) for tool in tools]}}
        case "tools/call":
            return {"result": called(tools[request["params"]["name"]][0], request["params"].get("arguments", {}))}
        case method:
            return {"error": {"code": -32601, "message": f"there is no method {method}"}}


def described(name: str, _: object, description: str, types: dict[str, str]) -> dict[str, Any]:
    """A tool as it is listed."""
    properties = {argument: {"type": kind} for argument, kind in types.items()}
    schema = {"type": "object", "properties": properties, "required": list(types)}
    return {"name": name, "description": description, "inputSchema": schema}


def called(function: Callable[..., object], arguments: dict[str, Any]) -> dict[str, Any]:
    """What a tool returns; what it raises is for whoever called it to read."""
    try:
        return {"content": [{"type": "text", "text": str(function(**arguments))}]}
    except (ArithmeticError, LookupError, SyntaxError, TypeError, ValueError) as error:
        return {"content": [{"type": "text", "text": f"{type(error).__name__}: {error}"}], "isError": True}
