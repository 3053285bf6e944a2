"""A server of the earlier era over stdio that can announce a million changes at once.

`storm` tells `count` times of a kind (`updated` or `changed`) and then answers; `touch` tells once. It goes on
answering meanwhile, and after every portion of a storm its tools are described otherwise. With `silent`, it does not
answer who subscribes.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

URI = "storm://watched"
PORTION = 1_000
TELLS: dict[str, dict[str, Any]] = {
    "updated": {"method": "notifications/resources/updated", "params": {"uri": URI}},
    "changed": {"method": "notifications/tools/list_changed"},
}

out = sys.stdout.buffer
turn = threading.Lock()
portions: list[int] = []


def say(**message: Any) -> None:
    """Write one message."""
    with turn:
        out.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        out.flush()


def storm(id: Any, kind: str, count: int) -> None:
    """Tell so often, in portions, so that other answers come in between."""
    line = json.dumps({"jsonrpc": "2.0", **TELLS[kind]}).encode() + b"\n"
    for start in range(0, count, PORTION):
        portion = min(PORTION, count - start)
        with turn:
            portions.append(portion)
            out.write(line * portion)
            out.flush()
    say(id=id, result={"content": [{"type": "text", "text": f"told {count} times"}]})


def take(message: dict[str, Any]) -> None:
    """Answer a request."""
    if "id" not in message:
        return
    id, params = message["id"], message.get("params", {})
    match message["method"]:
        case "initialize":
            capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
            info = {"protocolVersion": "2025-06-18", "serverInfo": {"name": "storm", "version": "1"}}
            say(id=id, result={**info, "capabilities": capabilities})
        case "tools/list":
            schema = {"type": "object", "description": f"after {len(portions)}"}
            say(id=id, result={"tools": [{"name": name, "inputSchema": schema} for name in ("storm", "touch")]})
        case "resources/list":
            say(id=id, result={"resources": [{"uri": URI, "name": "watched"}]})
        case "tools/call":
            arguments = params.get("arguments", {})
            words = (id, arguments.get("kind", "updated"), arguments.get("count", 1))
            threading.Thread(target=storm, args=words, daemon=True).start()
        case "resources/subscribe" if "silent" in sys.argv:
            pass
        case "ping" | "resources/subscribe" | "resources/unsubscribe":
            say(id=id, result={})
        case _:
            say(id=id, error={"code": -32601, "message": "no such method"})


if __name__ == "__main__":
    for line in sys.stdin:
        take(json.loads(line))
