"""An MCP server over stdio, in plain Python, whose only tool ends its process in the middle of the call."""

import json
import os
import sys

RESULTS = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "mortal", "version": "1.0"},
    },
    "ping": {},
    "tools/list": {"tools": [{"name": "die", "inputSchema": {"type": "object"}}]},
}

for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "tools/call":
        os._exit(1)
    if "id" in message:
        known = {"result": RESULTS[method]} if method in RESULTS else {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **known}), flush=True)
