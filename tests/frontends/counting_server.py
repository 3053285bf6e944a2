"""An MCP server over stdio that keeps state: it counts its calls, says which process it is, and can ask its caller.

Plain JSON-RPC of the earlier era on the standard library alone, so that it starts at once and a process can be counted.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from typing import Any

TOOLS = [
    {"name": name, "description": name, "inputSchema": {"type": "object"}} for name in ("count", "confirm", "meet")
]
"""`count` counts. `confirm` asks the user first. `meet` answers once as many calls of it wait here as it was given."""

counter = itertools.count(1)
asked: dict[str, Any] = {}
"""Calls that wait for an answer, by the id of their question."""
waiting: list[Any] = []
"""Calls of `meet`."""


def main() -> None:
    """Serve until the input ends."""
    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message:
            confirmed(message)
        elif "id" in message:
            request(message["id"], message["method"], message.get("params") or {})


def request(id: Any, method: str, params: dict[str, Any]) -> None:
    """Take a request."""
    if method == "initialize":
        information = {"name": "counting", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": information}
        say(id=id, result=result)
    elif method == "tools/list":
        say(id=id, result={"tools": TOOLS})
    elif method == "tools/call":
        call(id, params["name"], params.get("arguments") or {})
    elif method == "ping":
        say(id=id, result={})
    else:
        say(id=id, error={"code": -32601, "message": f"{method} is not known"})


def call(id: Any, name: str, arguments: dict[str, Any]) -> None:
    """Run a tool."""
    if name == "count":
        answer(id)
    elif name == "confirm":
        question = f"q{next(counter)}"
        asked[question] = id
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
        params = {"message": str(arguments.get("message", "Sure?")), "requestedSchema": schema}
        say(id=question, method="elicitation/create", params=params)
    else:
        waiting.append(id)
        if len(waiting) >= arguments["calls"]:
            for each in waiting:
                answer(each)
            waiting.clear()


def confirmed(message: dict[str, Any]) -> None:
    """Take an answer to a question."""
    answer(asked.pop(message["id"]), answered=message.get("result") or message.get("error"))


def answer(id: Any, **more: Any) -> None:
    """Say which process this is, and how often it was called."""
    received = {"pid": os.getpid(), "count": next(counter), **more}
    say(id=id, result={"content": [{"type": "text", "text": json.dumps(received)}], "structuredContent": received})


def say(**members: Any) -> None:
    """Write one message."""
    print(json.dumps({"jsonrpc": "2.0", **members}), flush=True)


if __name__ == "__main__":
    main()
