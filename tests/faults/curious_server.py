"""A server over stdio, of the earlier era, that asks back in every call and tells what it was answered.

It works on many calls at once and does not say which one a question is about: on a pipe nobody does.
"""

from __future__ import annotations

import json
import sys
from typing import Any

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
TOOLS = {"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]}
FORM = {"type": "object", "properties": {"said": {"type": "string"}}}


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def verdict(nonce: str, answer: dict[str, Any]) -> dict[str, Any]:
    """What a call is told: what it wanted to know, and what it was answered."""
    said = answer.get("result", {}).get("content", {}).get("said", json.dumps(answer))
    return {"content": [{"type": "text", "text": f"{nonce} {said}"}]}


def main() -> None:
    asked: dict[int, tuple[object, str]] = {}
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                say({"id": message["id"], "result": HELLO})
            case "tools/list":
                say({"id": message["id"], "result": TOOLS})
            case "tools/call":
                nonce = message["params"]["arguments"]["nonce"]
                number = len(asked) + 1
                asked[number] = message["id"], nonce
                params = {"message": nonce, "requestedSchema": FORM}
                say({"id": number, "method": "elicitation/create", "params": params})
            case None if message["id"] in asked:
                call, nonce = asked[message["id"]]
                say({"id": call, "result": verdict(nonce, message)})
            case _ if "id" in message:
                say({"id": message["id"], "error": {"code": -32601, "message": "unknown"}})
            case _:
                pass


if __name__ == "__main__":
    main()
