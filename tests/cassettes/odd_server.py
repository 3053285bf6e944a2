"""A legacy server over stdio with tools that are hard to record: run it with a secret in API_KEY."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

BIG_BYTES = 1_000_000
COLOURS = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
LOGIN = {
    "type": "object",
    "properties": {
        "user": {"type": "string"},
        "password": {"anyOf": [{"type": "string", "format": "password"}, {"type": "null"}]},
        "pin": {"type": "integer", "writeOnly": True},
    },
}
OBJECT = {"type": "object"}
SQUARE = {"type": "object", "properties": {"n": {"type": "integer"}, "ms": {"type": "number"}}}
TOOLS = {
    "big": OBJECT, "unicode": OBJECT, "fails": OBJECT, "refuses": OBJECT, "exits": OBJECT, "waits": OBJECT,
    "square": SQUARE, "login": LOGIN, "tells": OBJECT, "asks": OBJECT,
}  # fmt: skip

_lock = threading.Lock()
_answers: dict[str, Any] = {}
_answered = threading.Condition()


def send(message: dict[str, Any]) -> None:
    """Write one message."""
    with _lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False) + "\n")
        sys.stdout.flush()


def text(words: str, **more: Any) -> dict[str, Any]:
    """A result with one text."""
    return {"content": [{"type": "text", "text": words}], **more}


def report(request: dict[str, Any], done: int, message: str) -> None:
    """Send progress, if it is wanted."""
    token = request["params"].get("_meta", {}).get("progressToken")
    if token is not None:
        params = {"progressToken": token, "progress": done, "total": 2, "message": message}
        send({"method": "notifications/progress", "params": params})


def ask(request: dict[str, Any]) -> Any:
    """Ask for a colour and wait for the answer."""
    id = f"q{request['id']}"
    params = {"message": "Which colour?", "requestedSchema": COLOURS}
    send({"id": id, "method": "elicitation/create", "params": params})
    with _answered:
        _answered.wait_for(lambda: id in _answers, 20)
        return _answers.get(id)


def call(request: dict[str, Any]) -> None:
    """Do what a tool does."""
    name, given = request["params"]["name"], request["params"].get("arguments", {})
    result: dict[str, Any]
    match name:
        case "big":
            result = text("x" * BIG_BYTES)
        case "unicode":
            result = text('Grüße 日本 🎉 \u2028 \\ " \x01', structuredContent={"n": 12345678901234567890, "f": 1.0})
        case "fails":
            result = text("it failed", isError=True)
        case "refuses":
            error = {"code": -32050, "message": "no: é", "data": {"why": ["a", {"b": None}]}}
            send({"id": request["id"], "error": error})
            return
        case "exits":
            os._exit(3)
        case "waits":
            report(request, 1, "waiting")
            return
        case "square":
            report(request, 1, "half")
            time.sleep(given["ms"] / 1000)
            result = text(str(given["n"] ** 2))
        case "login":
            result = text(f"{given.get('user')} logged in with {given.get('password')} and {given.get('pin')}")
        case "tells":
            params = {"level": "info", "logger": "odd", "data": {"key": os.environ.get("API_KEY")}}
            send({"method": "notifications/message", "params": params})
            result = text(json.dumps({"key": os.environ.get("API_KEY")}))
        case _:
            result = text(json.dumps(ask(request)))
    send({"id": request["id"], "result": result})


def main() -> None:
    """Answer until the hub leaves."""
    for line in sys.stdin:
        message = json.loads(line)
        method = message.get("method")
        if method == "initialize":
            info = {"name": "odd", "version": "1"}
            capabilities: dict[str, Any] = {"tools": {}, "logging": {}}
            result = {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}
            send({"id": message["id"], "result": result})
        elif method == "tools/list":
            tools = [{"name": name, "inputSchema": schema} for name, schema in TOOLS.items()]
            send({"id": message["id"], "result": {"tools": tools}})
        elif method == "tools/call":
            threading.Thread(target=call, args=(message,), daemon=True).start()
        elif method is None:
            with _answered:
                _answers[message["id"]] = message.get("result", message.get("error"))
                _answered.notify_all()
        elif "id" in message:
            known = method in ("ping", "logging/setLevel")
            ending: dict[str, Any] = {"result": {}} if known else {"error": {"code": -32601, "message": "unknown"}}
            send({"id": message["id"], **ending})


if __name__ == "__main__":
    main()
