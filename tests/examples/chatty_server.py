"""The workshop's tools, of a server that logs while it works and reports progress in no words: both are its right."""

from __future__ import annotations

import json
import sys
from typing import Any

ABOUT = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "logging": {}},
    "serverInfo": {"name": "chatty", "version": "1.0"},
}
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("survey", "measure", "publish")]


def say(**message: Any) -> None:
    """Write one message."""
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def work(token: object) -> dict[str, Any]:
    """Do nothing but report progress."""
    say(method="notifications/message", params={"level": "info", "data": "a line of the log"})
    if token is not None:
        say(method="notifications/progress", params={"progressToken": token, "progress": 1})
    return {"content": [{"type": "text", "text": "worked"}], "structuredContent": {"words": 1}}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        token = asked.get("params", {}).get("_meta", {}).get("progressToken")
        match asked["method"]:
            case "initialize":
                say(id=asked["id"], result=ABOUT)
            case "tools/list":
                say(id=asked["id"], result={"tools": TOOLS})
            case "tools/call":
                say(id=asked["id"], result=work(token))
            case _:
                say(id=asked["id"], result={})
