"""A hostile server over stdio or HTTP: it lists one tool, and once that is called it never stops talking nonsense."""

from __future__ import annotations

import json
import socket
import sys
import threading

NONSENSE = b"{}\n" * 20_000
EVENTS = b"data: {}\n\n" * 6_000


def answer(message: dict[str, object]) -> dict[str, object] | None:
    """The result of what a server has to answer; None for the rest."""
    match message.get("method"):
        case "initialize":
            return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {}}
        case "tools/list":
            return {"tools": [{"name": "flood", "inputSchema": {"type": "object"}}]}
        case _:
            return None


def reply_to(message: dict[str, object]) -> bytes:
    """The JSON-RPC reply."""
    result = answer(message)
    body = {"error": {"code": -32601, "message": "no"}} if result is None else {"result": result}
    return json.dumps({"jsonrpc": "2.0", "id": message.get("id"), **body}).encode()


def over_stdio() -> None:
    """Answer lines, until the tool is called."""
    out = sys.stdout.buffer
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("method") == "tools/call":
            while True:
                out.write(NONSENSE)
        if "id" in message:
            out.write(reply_to(message) + b"\n")
            out.flush()


def over_http() -> None:
    """Answer POSTs, until the tool is called."""
    listener = socket.create_server(("127.0.0.1", 0))
    print("PORT", listener.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


def serve(connection: socket.socket) -> None:
    """Serve one connection."""
    reader = connection.makefile("rb")
    while (line := reader.readline()).strip():
        headers = {}
        while (header := reader.readline()).strip():
            name, _, value = header.decode().partition(":")
            headers[name.lower()] = value.strip()
        if not line.startswith(b"POST"):
            connection.sendall(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
            continue
        message = json.loads(reader.read(int(headers["content-length"])))
        if message.get("method") == "tools/call":
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            while True:
                connection.sendall(EVENTS)
        body = reply_to(message) if "id" in message else b""
        status = b"200 OK" if body else b"202 Accepted"
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        connection.sendall(head % (status, len(body)) + body)


if __name__ == "__main__":
    over_http() if "http" in sys.argv else over_stdio()
