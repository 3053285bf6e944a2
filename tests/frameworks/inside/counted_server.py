"""An MCP server over stdio, in plain Python, that notes in the file which it is given whenever it is asked to list."""

import json
import sys
from pathlib import Path

ABOUT = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {"listChanged": True}},
    "serverInfo": {"name": "counted", "version": "1.0"},
}
TOOLS = [{"name": "tick", "inputSchema": {"type": "object"}}]
TICK = {"content": [{"type": "text", "text": "tock"}]}
RESULTS = {"initialize": ABOUT, "ping": {}, "tools/list": {"tools": TOOLS}, "tools/call": TICK}

for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "tools/list":
        with Path(sys.argv[1]).open("a") as ledger:
            ledger.write("listed\n")
    if "id" in message:
        known = {"result": RESULTS[method]} if method in RESULTS else {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **known}), flush=True)
