"""A stdio server that answers nothing until its gate opens: a file that the test creates.

The second argument is a JSON file with what it lists: `tools` by name with their descriptions, and `prompts`. If it
says `"dies": true`, the server ends instead, with a word on standard error.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

LOOK_SECONDS = 0.01


def entry(folder: Path, name: str = "late", **more: Any) -> dict[str, Any]:
    """A server entry; its gate is `folder/NAME.gate` and its lists are in `folder/NAME.json`."""
    gate, lists = str(folder / f"{name}.gate"), str(folder / f"{name}.json")
    return {"command": sys.executable, "args": [__file__, gate, lists], **more}


def main(gate: Path, lists: Path) -> None:
    """Serve an earlier caller, line by line."""
    while not gate.exists():  # the test that opens it cannot notify this process
        time.sleep(LOOK_SECONDS)
    offered = json.loads(lists.read_text())
    if offered.get("dies"):
        sys.exit("it will not do")
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            answer = _answer(message["method"], message.get("params", {}), offered)
            said = (
                {"result": answer} if answer is not None else {"error": {"code": -32601, "message": "no such method"}}
            )
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)


def _answer(method: str, params: dict[str, Any], offered: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            capabilities: dict[str, Any] = {kind: {} for kind in ("tools", "prompts") if kind in offered}
            me = {"name": "late", "version": "1"}
            return {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": me}
        case "tools/list":
            schema = {"type": "object"}
            tools = offered["tools"].items()
            return {"tools": [{"name": name, "description": text, "inputSchema": schema} for name, text in tools]}
        case "prompts/list":
            return {"prompts": [{"name": name} for name in offered["prompts"]]}
        case "tools/call":
            return {"content": [{"type": "text", "text": params["name"]}]}
        case "ping":
            return {}
        case _:
            return None


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
