"""A complete MCP server over standard streams in a page of plain Python: it keeps notes while it runs.

`isthmus call --config examples/mcp.json notes.add text="buy milk"` starts it and calls it.
"""

import json
import sys

NOTES: list[str] = []
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = [
    {"name": "add", "description": "Keep a note.", "inputSchema": TEXT},
    {"name": "list", "description": "Return every note.", "inputSchema": {"type": "object"}},
]


def answer(method: str, params: dict) -> dict | None:
    """The result of a request; None if there is no such method."""
    match method:
        case "initialize":
            about = {"name": "notes", "version": "1.0"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": about}
        case "ping":
            return {}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            return {"content": [{"type": "text", "text": call(params["name"], params.get("arguments", {}))}]}
    return None


def call(tool: str, arguments: dict) -> str:
    """Run a tool."""
    if tool == "add":
        NOTES.append(arguments["text"])
        return f"kept as number {len(NOTES)}"
    return "\n".join(NOTES) or "no notes yet"


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    result = answer(message["method"], message.get("params") or {})
    reply |= {"error": {"code": -32601, "message": "no such method"}} if result is None else {"result": result}
    print(json.dumps(reply), flush=True)
