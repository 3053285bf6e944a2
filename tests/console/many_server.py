"""An MCP server in plain Python with as many tools as its argument says."""

import json
import sys
from typing import Any

TOOLS = [
    {"name": f"tool-{number:05}", "description": f"Does thing {number}.", "inputSchema": {"type": "object"}}
    for number in range(int(sys.argv[1]))
]
ABOUT = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "many", "version": "1"},
}
for line in sys.stdin:
    message: dict[str, Any] = json.loads(line)
    if "id" in message:
        results: dict[str, dict[str, Any]] = {"initialize": ABOUT, "tools/list": {"tools": TOOLS}, "ping": {}}
        result = results.get(message["method"])
        unknown = {"error": {"code": -32601, "message": "unknown method"}}
        answer = unknown if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
