"""An MCP server in plain Python that asks, reports progress, and returns long results and images."""

import base64
import json
import sys
import threading
import time
from queue import Queue
from typing import Any

DATA = base64.b64encode(b"picture").decode()
FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name", "minLength": 2},
        "guests": {"type": "integer", "maximum": 8, "default": 2},
        "room": {"oneOf": [{"const": "s", "title": "Small room"}, {"const": "l", "title": "Large room"}]},
        "extras": {"type": "array", "items": {"type": "string", "enum": ["breakfast", "parking"]}},
        "letters": {"type": "boolean"},
    },
    "required": ["name"],
}
QUESTIONS: dict[str, dict[str, Any]] = {
    "book": {"message": "Complete the booking.", "requestedSchema": FORM},
    "confirm": {"message": "Delete 3 files?", "requestedSchema": {"type": "object", "properties": {}}},
    "login": {"mode": "url", "elicitationId": "1", "message": "Log in.", "url": "https://login.example/go"},
}
waiting: dict[str, Queue[dict[str, Any]]] = {}
pen = threading.Lock()


def say(**message: Any) -> None:
    with pen:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def ask(params: dict[str, Any]) -> dict[str, Any]:
    id = f"q{time.monotonic_ns()}"
    answer = waiting[id] = Queue()
    say(id=id, method="elicitation/create", params=params)
    return answer.get()


def run(name: str, token: Any) -> list[dict[str, Any]]:
    match name:
        case "long":
            return [{"type": "text", "text": "\n".join(f"line {number}" for number in range(100))}]
        case "chart":
            file = {"uri": "file:///x/../a report.pdf", "mimeType": "application/pdf", "blob": DATA}
            image = {"type": "image", "mimeType": "image/png", "data": DATA}
            return [image, image, {"type": "resource", "resource": file}]
        case "steps":
            for number in (1, 2):
                progress = {"progressToken": token, "progress": number, "total": 2, "message": f"step {number}"}
                say(method="notifications/progress", params=progress)
            return [{"type": "text", "text": "done"}]
        case _:
            return [{"type": "text", "text": json.dumps(ask(QUESTIONS[name]))}]


def call(id: Any, params: dict[str, Any]) -> None:
    content = run(params["name"], params.get("_meta", {}).get("progressToken"))
    say(id=id, result={"content": content})


def respond(id: Any, method: str, params: dict[str, Any]) -> None:
    match method:
        case "initialize":
            about = {"name": "asking", "version": "1"}
            say(id=id, result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": about})
        case "tools/list":
            names = [*QUESTIONS, "long", "chart", "steps"]
            say(id=id, result={"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]})
        case "tools/call":
            threading.Thread(target=call, args=(id, params), daemon=True).start()
        case "ping":
            say(id=id, result={})
        case _:
            say(id=id, error={"code": -32601, "message": "unknown method"})


for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message:
        waiting.pop(message["id"]).put(message.get("result", {}))
    elif "id" in message:
        respond(message["id"], message["method"], message.get("params") or {})
