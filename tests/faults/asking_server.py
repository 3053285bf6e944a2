"""A server over stdio that asks thousands of questions before it reads, and then reports how many were answered."""

from __future__ import annotations

import json
import sys
from typing import Any

ASKED = 20_000
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
TOOLS = {"tools": [{"name": "answers", "inputSchema": {"type": "object"}}]}


def say(id: object, result: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)


def ask() -> None:
    for number in range(ASKED):
        print(json.dumps({"jsonrpc": "2.0", "id": number, "method": "sampling/createMessage"}))
    sys.stdout.flush()


def main() -> None:
    answers = 0
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                say(message["id"], HELLO)
            case "tools/list":
                # Asked before the list: a hub that has read the list has read every question.
                ask()
                say(message["id"], TOOLS)
            case "tools/call":
                say(message["id"], {"content": [{"type": "text", "text": str(answers)}]})
            case None:
                answers += 1
            case _:
                pass


if __name__ == "__main__":
    main()
