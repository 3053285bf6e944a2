"""A legacy server over stdio with an app (a `ui://` resource that a tool names) and an argument for a header."""

from __future__ import annotations

import json
import sys
from typing import Any

UI = "io.modelcontextprotocol/ui"
PANEL = "ui://clock/panel"
MIME = "text/html;profile=mcp-app"
META = {"ui": {"resourceUri": PANEL, "visibility": ["model", "app"]}, "ui/resourceUri": PANEL}
REGION = {"type": "string", "x-mcp-header": "Region"}
TOOL = {"name": "clock", "inputSchema": {"type": "object", "properties": {"region": REGION}}, "_meta": META}
RESOURCE = {"uri": PANEL, "name": "panel", "mimeType": MIME, "_meta": {"ui": {"csp": {"connectDomains": []}}}}
CONTENTS = [{"uri": PANEL, "mimeType": MIME, "text": "<!doctype html>", "_meta": {"ui": {"prefersBorder": True}}}]
RESULT = {"content": [{"type": "text", "text": "noon"}], "_meta": {"ui": {"seen": True}}}
CAPABILITIES = {
    "tools": {},
    "resources": {},
    "tasks": {"requests": {"tools": {"call": {}}}},
    "experimental": {"com.example/odd": {}},
    "extensions": {UI: {}, "com.example/own": {}},
}
ANSWERS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": CAPABILITIES,
        "serverInfo": {"name": "app", "version": "1"},
    },
    "tools/list": {"tools": [TOOL]},
    "resources/list": {"resources": [RESOURCE]},
    "resources/templates/list": {"resourceTemplates": []},
    "resources/read": {"contents": CONTENTS},
    "ping": {},
}


CLIENT: dict[str, Any] = {}
"""What the client said it can do."""


def answer(message: dict[str, Any]) -> Any:
    """What is answered to a request; a tool says what it was sent, and who its client is."""
    if message["method"] == "initialize":
        CLIENT.update(message["params"]["capabilities"])
    if message["method"] == "tools/call":
        return {**RESULT, "structuredContent": {**message["params"], "client": CLIENT}}
    return ANSWERS.get(message["method"])


def main() -> None:
    """Answer until stdin ends."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = answer(message)
        refusal = {"error": {"code": -32601, "message": "no"}}
        end = refusal if result is None else {"result": result}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **end}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
