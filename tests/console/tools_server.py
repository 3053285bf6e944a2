"""An MCP server in plain Python with the tools that the console's tests call: forms, progress, questions, pictures."""

import base64
import io
import json
import os
import struct
import sys
import threading
import wave
import zlib
from pathlib import Path
from queue import Queue
from typing import Any


def png() -> str:
    """A red square, as base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\xc8\x41\x2f" * 24 for _ in range(24))
    image = chunk(b"IHDR", struct.pack(">IIBBBBB", 24, 24, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + image + chunk(b"IEND", b"")).decode()


def wav() -> str:
    """A tenth of a second of silence, as base64."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8000)
        sound.writeframes(b"\x80" * 800)
    return base64.b64encode(file.getvalue()).decode()


NESTED = {
    "type": "object",
    "properties": {
        "room": {"type": "string", "enum": ["small", "large"], "description": "Which room"},
        "guests": {"type": "array", "items": {"$ref": "#/$defs/Guest"}},
        "quiet": {"type": "boolean"},
        "extra": {"anyOf": [{"type": "string"}, {"type": "object"}]},
    },
    "required": ["room"],
    "$defs": {
        "Guest": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name"],
        }
    },
}
QUESTION = {
    "message": "Who signs?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}
TOOLS: list[dict[str, Any]] = [
    {"name": "add", "description": "Adds two numbers.", "inputSchema": {
        "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}},
    {"name": "book", "description": "Books a room.", "inputSchema": NESTED},
    {"name": "steps", "description": "Takes two steps, each when its file exists.", "inputSchema": {
        "type": "object", "properties": {"gate": {"type": "string"}}, "required": ["gate"]}},
    {"name": "sign", "description": "Asks who signs.", "inputSchema": {"type": "object"}},
    {"name": "picture", "description": "Draws.", "inputSchema": {"type": "object"}},
    {"name": "look", "description": "Repeats what it is given.", "annotations": {"readOnlyHint": True}, "inputSchema": {
        "type": "object", "properties": {
            "text": {"type": "string"}, "count": {"type": "integer"}, "deep": {"type": "object", "properties": {
                "flags": {"type": "array", "items": {"type": "boolean"}}}}}}},
    {"name": "upload", "description": "Says how long a file is.", "inputSchema": {"type": "object", "properties": {
        "scan": {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}},
        "required": ["scan"]}},
    {"name": "sound", "description": "Makes a sound.", "inputSchema": {"type": "object"}},
    {"name": "papers", "description": "Hands out papers.", "inputSchema": {"type": "object"}},
    {"name": "fail", "description": "Fails.", "inputSchema": {"type": "object"}},
    {"name": "die", "description": "Ends the server.", "inputSchema": {"type": "object"}},
    {"name": "a_long_name_" + "of_one_word" * 8, "description": "Has a long name.", "inputSchema": {"type": "object"}},
]  # fmt: skip
CAN: dict[str, Any] = {"tools": {}, "resources": {}}
waiting: dict[str, Queue[dict[str, Any]]] = {}
pen = threading.Lock()


def say(**message: Any) -> None:
    with pen:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def run(id: Any, params: dict[str, Any]) -> None:
    given, token = params.get("arguments", {}), params.get("_meta", {}).get("progressToken")
    match params["name"]:
        case "add":
            result = text(str(given["a"] + given["b"]))
        case "steps":
            with open(given["gate"], "rb") as gate:  # a pipe: each byte lets one step pass
                for number in (1, 2):
                    progress = {"progressToken": token, "progress": number, "total": 2, "message": f"step {number}"}
                    say(method="notifications/progress", params=progress)
                    gate.read(1)
            result = text("two steps")
        case "sign":
            answer = waiting["q"] = Queue()
            say(id="q", method="elicitation/create", params=QUESTION)
            result = text(json.dumps(answer.get()))
        case "picture":
            result = {"content": [{"type": "image", "mimeType": "image/png", "data": png()}]}
        case "upload":
            result = text(f"{len(base64.b64decode(given['scan'], validate=True))} bytes")
        case "sound":
            result = {"content": [{"type": "audio", "mimeType": "audio/wav", "data": wav()}]}
        case "papers":
            blob = base64.b64encode(b"%PDF-1.4").decode()
            result = {
                "content": [
                    {
                        "type": "resource",
                        "resource": {"uri": "desk://memo", "mimeType": "text/plain", "text": "Buy ink."},
                    },
                    {
                        "type": "resource",
                        "resource": {"uri": "desk://scan", "mimeType": "application/pdf", "blob": blob},
                    },
                    {
                        "type": "resource_link",
                        "uri": "desk://letter",
                        "name": "letter",
                        "description": "The last letter",
                    },
                ],
                "structuredContent": {"papers": [{"kind": "memo"}, {"kind": "scan"}]},
            }
        case "fail":
            result = {**text("out of paper"), "isError": True}
        case "die":
            print("the tool ended the server", file=sys.stderr, flush=True)
            os._exit(1)
        case _:
            result = text(json.dumps(given))
    say(id=id, result=result)


def respond(id: Any, method: str, params: dict[str, Any]) -> None:
    match method:
        case "initialize":
            about = {"name": "desk", "version": "1"}
            say(id=id, result={"protocolVersion": "2025-11-25", "capabilities": CAN, "serverInfo": about})
        case "tools/list":
            say(id=id, result={"tools": TOOLS})
        case "tools/call":
            threading.Thread(target=run, args=(id, params), daemon=True).start()
        case "resources/list":
            say(id=id, result={"resources": [{"uri": "desk://letter", "name": "letter"}]})
        case "resources/read":
            letter = {"uri": params["uri"], "mimeType": "text/plain", "text": "Dear Ada"}
            say(id=id, result={"contents": [letter]})
        case "ping":
            say(id=id, result={})
        case _:
            say(id=id, error={"code": -32601, "message": "unknown method"})


if len(sys.argv) > 1:  # the description of a tool, which a restart may change; the first one, if no other is named
    TOOLS[int(sys.argv[2]) if len(sys.argv) > 2 else 0]["description"] = Path(sys.argv[1]).read_text()
for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message:
        waiting.pop(message["id"]).put(message.get("result", {}))
    elif "id" in message:
        respond(message["id"], message["method"], message.get("params") or {})
