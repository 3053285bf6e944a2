"""A server over stdio, of the earlier era, that asks a question in every call and returns the answer.

It works on many calls at once and does not say which call a question belongs to: on a pipe no server does.
"""

from __future__ import annotations

import json
import sys
from typing import Any

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
TOOLS = {"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]}
FORM = {"type": "object", "properties": {"said": {"type": "string"}}}


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def tool_result(nonce: str, answer: dict[str, Any]) -> dict[str, Any]:
    """The result of a call: its nonce, and the answer to its question."""
    said = answer.get("result", {}).get("content", {}).get("said", json.dumps(answer))
    return {"content": [{"type": "text", "text": f"{nonce} {said}"}]}


def main() -> None:
    asked: dict[int, tuple[object, str]] = {}
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                send({"id": message["id"], "result": HELLO})
            case "tools/list":
                send({"id": message["id"], "result": TOOLS})
            case "tools/call":
                nonce = message["params"]["arguments"]["nonce"]
                number = len(asked) + 1
                asked[number] = message["id"], nonce
                params = {"message": nonce, "requestedSchema": FORM}
                send({"id": number, "method": "elicitation/create", "params": params})
            case None if message["id"] in asked:
                call, nonce = asked[message["id"]]
                send({"id": call, "result": tool_result(nonce, message)})
            case _ if "id" in message:
                send({"id": message["id"], "error": {"code": -32601, "message": "unknown"}})
            case _:
                pass


if __name__ == "__main__":
    main()
