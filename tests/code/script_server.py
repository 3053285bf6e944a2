"""A stdio server for scripts: `python -S -E script_server.py LEDGER` speaks the modern era only.

Every call is written to the ledger. `hold` never answers; `meet` answers once as many calls of it wait as it is told;
`ask` asks its caller for a colour and returns it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

VERSION = "2026-07-28"


def schema(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
ORDER = {
    "type": "object",
    "properties": {"item": TEXT, "amount": NUMBER, "tags": {"type": "array", "items": TEXT}},
    "required": ["item"],
}
COLOUR = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "Which colour?", "requestedSchema": schema(("colour",), colour=TEXT)},
}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "add",
        "description": "Add two numbers.\nMore is not said.",
        "inputSchema": schema(("a", "b"), a=NUMBER, b=NUMBER),
        "outputSchema": {"type": "object", "properties": {"sum": NUMBER}, "required": ["sum"]},
    },
    {
        "name": "order",
        "description": "Order things.",
        "inputSchema": schema(("orders",), orders={"type": "array", "items": ORDER}, speed={"enum": ["slow", "fast"]}),
    },
    {"name": "pay", "inputSchema": schema(nonce=TEXT)},
    {"name": "mark", "inputSchema": schema(("its-id",), **{"its-id": TEXT}, level=NUMBER)},
    {"name": "hold", "inputSchema": schema(nonce=TEXT)},
    {"name": "fail", "inputSchema": schema(why=TEXT)},
    {"name": "large", "inputSchema": schema(bytes=NUMBER)},
    {"name": "meet", "inputSchema": schema(("count",), count=NUMBER)},
    {"name": "report", "inputSchema": schema()},
    {"name": "ask", "inputSchema": schema()},
    {"name": "same-name", "inputSchema": schema()},
    {"name": "same_name", "inputSchema": schema()},
    {"name": "secret", "inputSchema": schema()},
]
WAITING: list[Any] = []


def command(ledger: Path) -> list[str]:
    """The words that start it."""
    return [sys.executable, "-S", "-E", str(Path(__file__).resolve()), str(ledger)]


def say(message: dict[str, Any]) -> None:
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def answer(id: Any, result: dict[str, Any]) -> None:
    say({"id": id, "result": {"resultType": "complete", **result}})


def text(words: str, *, is_error: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], "isError": is_error}


def main() -> None:
    """Answer lines until there are no more."""
    ledger = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "id" not in request:
            continue
        match request["method"]:
            case "server/discover":
                answer(request["id"], {"supportedVersions": [VERSION], "capabilities": {"tools": {}}})
            case "tools/list":
                answer(request["id"], {"tools": TOOLS})
            case "tools/call":
                call(request["id"], request["params"], ledger)
            case _:
                pass


def call(id: Any, params: dict[str, Any], ledger: int) -> None:
    name, given = params["name"], params.get("arguments", {})
    nonce = given.get("nonce", name)
    os.write(ledger, json.dumps({"nonce": nonce, "pid": os.getpid()}).encode() + b"\n")
    match name:
        case "add":
            total = {"sum": given["a"] + given["b"]}
            answer(id, {**text(json.dumps(total)), "structuredContent": total})
        case "fail":
            answer(id, text(given.get("why", "it failed"), is_error=True))
        case "large":
            answer(id, text("x" * given["bytes"]))
        case "meet":
            WAITING.append(id)
            if len(WAITING) >= given["count"]:
                for each in WAITING:
                    answer(each, text("met"))
                WAITING.clear()
        case "report":
            token = params.get("_meta", {}).get("progressToken")
            if token is not None:
                report = {"progressToken": token, "progress": 1, "message": "half way"}
                say({"method": "notifications/progress", "params": report})
            answer(id, text("reported"))
        case "ask" if "inputResponses" not in params:
            say({"id": id, "result": {"resultType": "input_required", "inputRequests": {"colour": COLOUR}}})
        case "ask":
            answer(id, text(params["inputResponses"]["colour"]["content"]["colour"]))
        case "hold":
            return
        case _:
            answer(id, text(json.dumps(given) if name in ("order", "mark") else nonce))


if __name__ == "__main__":
    main()
