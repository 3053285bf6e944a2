"""A server with heavy answers over every transport: `heavy_server.py stdio` or `heavy_server.py net`.

The tool `give(shape, size)` answers with a shape of `heavy_shapes`, `blocks` with many blocks of content, `flood(kind,
count)` sends notifications first, and `relist(what, count, size)` changes a list and says so. Over the network it is
an MCP server at `/json`, `/stream`, `/sse` and as WebSocket, a plain JSON-RPC endpoint at `/rpc` and an agent of A2A
at `/agent`; its first line is `PORT n` with the port of HTTP, its second that of WebSockets.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.security import heavy_shapes

Json = dict[str, Any]
Say = Callable[[bytes], Awaitable[None]]

LISTS = {"tools": "tools", "prompts": "prompts", "resources": "resources", "templates": "resourceTemplates"}
LOOSE = {"type": "object"}
TOOLS = [{"name": name, "inputSchema": LOOSE} for name in ("give", "blocks", "flood", "relist", "take")]


def entry(what: str, name: str, size: int) -> Json:
    """An entry of a list, of about so many bytes."""
    text = "x" * 40
    many = {f"p{at}": {"type": "string", "description": text} for at in range(max(1, size // 90))}
    match what:
        case "tools":
            return {"name": name, "description": text, "inputSchema": {"type": "object", "properties": many}}
        case "prompts":
            arguments = [{"name": key, "description": text} for key in many]
            return {"name": name, "description": text, "arguments": arguments}
        case "resources":
            return {"name": name, "uri": f"heavy://{name}", "description": text, "_meta": many}
        case _:
            return {"name": name, "uriTemplate": f"heavy://{name}/{{x}}", "description": text, "_meta": many}


class Heavy:
    """What one connection of the server says; lists are all connections'."""

    lists: dict[str, bytes]

    def __init__(self) -> None:
        own = {"tools": TOOLS, "prompts": [], "resources": [], "templates": []}
        self.lists = {what: self._listing(what, own[what]) for what in LISTS}

    def _listing(self, what: str, entries: list[Json]) -> bytes:
        return json.dumps({LISTS[what]: entries}).encode()

    async def take(self, message: Json, say: Say) -> None:
        """Answer a message."""
        if "id" not in message or "method" not in message:
            return
        id = json.dumps(message["id"]).encode()
        answer = await self._answer(message["method"], message.get("params") or {}, say)
        if answer is None:
            await say(b'{"jsonrpc":"2.0","id":%b,"error":{"code":-32601,"message":"no such method"}}' % id)
        else:
            await say(b"".join((b'{"jsonrpc":"2.0","id":', id, b',"result":', answer, b"}")))

    async def _answer(self, method: str, params: Json, say: Say) -> bytes | None:
        match method:
            case "initialize":
                able = {key: {"listChanged": True} for key in ("tools", "prompts", "resources")}
                me = {"name": "heavy", "version": "1"}
                version = params["protocolVersion"]
                return json.dumps({"protocolVersion": version, "capabilities": able, "serverInfo": me}).encode()
            case "tools/list" | "prompts/list" | "resources/list":
                return self.lists[method.partition("/")[0]]
            case "resources/templates/list":
                return self.lists["templates"]
            case "resources/read":
                shape, _, size = params["uri"].removeprefix("heavy://").replace("%20", " ").rpartition("/")
                return heavy_shapes.resource(shape, int(size))
            case "prompts/get":
                text = heavy_shapes.value("ascii", 2_000_000)
                return f'{{"messages":[{{"role":"user","content":{{"type":"text","text":{text}}}}}]}}'.encode()
            case "tools/call":
                return await self.call(params["name"], params.get("arguments") or {}, params.get("_meta") or {}, say)
            case "ping":
                return b"{}"
            case _ if method in {"give", "blocks", "take"}:  # as a plain endpoint has it
                return await self.call(method, params, {}, say)
            case _:
                return None

    async def call(self, name: str, given: Json, meta: Json, say: Say) -> bytes:
        """The result of a tool."""
        match name:
            case "give":
                return heavy_shapes.result(given["shape"], given["size"])
            case "blocks":
                return heavy_shapes.blocks(given["size"], given.get("text", "hi"))
            case "flood":
                await self._flood(given, meta.get("progressToken"), say)
            case "relist":
                what, name = given["what"], given["name"]
                entries = [entry(what, f"{name}{at}", given["size"]) for at in range(given["count"])]
                self.lists[what] = self._listing(what, [*(TOOLS if what == "tools" else ()), *entries])
                kind = "resources" if what == "templates" else what
                await say(b'{"jsonrpc":"2.0","method":"notifications/%b/list_changed"}' % kind.encode())
            case _:
                pass  # it takes whatever it is given
        return b'{"content":[{"type":"text","text":"done"}]}'

    async def _flood(self, given: Json, token: object, say: Say) -> None:
        texts: dict[str, Json] = {
            "progress": {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}},
            "logs": {"method": "notifications/message", "params": {"level": "info", "data": "x" * given["size"]}},
            "changes": {"method": "notifications/tools/list_changed"},
            "updates": {"method": "notifications/resources/updated", "params": {"uri": "heavy://x"}},
            "unknown": {"method": "notifications/nothing", "params": {"x": "y" * given["size"]}},
            "answers": {"id": 987_654_321, "result": {}},
        }
        text = json.dumps({"jsonrpc": "2.0", **texts[given["kind"]]}).encode()
        for _ in range(given["count"]):
            await say(text)


async def over_stdio() -> None:
    """Serve on stdin and stdout."""
    heavy, loop = Heavy(), asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=64 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    out = sys.stdout.buffer

    async def say(text: bytes) -> None:
        out.write(text.replace(b"\n", b" ") + b"\n")

    while line := await reader.readline():
        await heavy.take(json.loads(line), say)
        out.flush()


class Net:
    """The server over HTTP."""

    def __init__(self) -> None:
        self._heavy = Heavy()
        self._stream: asyncio.StreamWriter | None = None
        """The stream of HTTP+SSE, of which there is one."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode("latin-1").split("\r\n")
                method, path, _ = lines[0].split(" ")
                fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                await self._respond(method, path, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _respond(self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        match (method, path):
            case ("GET", "/sse"):
                self._stream = writer
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
                writer.write(b"event: endpoint\ndata: /messages\n\n")
            case ("GET", "/agent/.well-known/agent-card.json"):
                port = writer.get_extra_info("sockname")[1]
                self._send(writer, json.dumps(_card(f"http://127.0.0.1:{port}/agent")).encode())
            case ("GET" | "DELETE", _):
                self._send(writer, b"", "405 Method Not Allowed")
            case (_, "/agent"):
                self._send(writer, self._as_agent(json.loads(body)))
            case _:
                await self._message(path, json.loads(body), writer)
        await writer.drain()

    async def _message(self, path: str, message: Json, writer: asyncio.StreamWriter) -> None:
        said: list[bytes] = []

        async def say(text: bytes) -> None:
            said.append(text)

        await self._heavy.take(message, say)
        if path == "/messages" and self._stream is not None:
            self._send(writer, b"", "202 Accepted")
            for text in said:
                self._stream.write(_event(text))
            await self._stream.drain()
        elif not said:
            self._send(writer, b"", "202 Accepted")
        elif path == "/stream":
            self._send(writer, b"".join(map(_event, said)), kind="text/event-stream")
        else:
            self._send(writer, said[-1])

    def _as_agent(self, message: Json) -> bytes:
        """A task that is done, with what the message asks for as its artifact."""
        params = message.get("params") or {}
        texts = [part["text"] for part in params.get("message", {}).get("parts", []) if "text" in part]
        kind, shape, size = (texts[0] if texts else "text ascii 10").split(" ", 2)[0:3] if texts else ("text", "a", "1")
        shape, _, size = f"{shape} {size}".rpartition(" ")
        text = heavy_shapes.value(shape, int(size))
        part = f'{{"text":{text}}}' if kind == "text" else f'{{"data":{{"value":{text}}}}}'
        part = f'{{"raw":{text},"mediaType":"image/png"}}' if kind == "raw" else part
        task = (
            '{"id":"t1","contextId":"c1","status":{"state":"TASK_STATE_COMPLETED"},'
            f'"artifacts":[{{"artifactId":"a1","parts":[{part}]}}]}}'
        )
        return f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},"result":{{"task":{task}}}}}'.encode()

    def _send(
        self, writer: asyncio.StreamWriter, body: bytes, status: str = "200 OK", kind: str = "application/json"
    ) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)


def _event(text: bytes) -> bytes:
    return b"event: message\n" + b"\n".join(b"data: " + line for line in text.split(b"\n")) + b"\n\n"


def _card(url: str) -> Json:
    skill = {"id": "give", "name": "give", "description": "Gives.", "tags": []}
    return {
        "name": "heavy",
        "description": "Gives heavy things.",
        "version": "1",
        "supportedInterfaces": [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
        "capabilities": {},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [skill],
    }


async def over_net() -> None:
    """Serve on two free ports until the process is ended."""
    from websockets.asyncio.server import ServerConnection, serve  # noqa: PLC0415 - stdio loads no library

    async def socket(connection: ServerConnection) -> None:
        heavy = Heavy()

        async def say(text: bytes) -> None:
            await connection.send(text, text=True)

        async for frame in connection:
            await heavy.take(json.loads(frame), say)

    http = await asyncio.start_server(Net().serve, "127.0.0.1", 0, limit=64 << 20)
    async with serve(socket, "127.0.0.1", 0, max_size=None, compression=None) as sockets:
        print("PORT", http.sockets[0].getsockname()[1], flush=True)
        print("SOCKETS", next(iter(sockets.sockets)).getsockname()[1], flush=True)
        await http.serve_forever()


if __name__ == "__main__":
    asyncio.run(over_stdio() if sys.argv[1:] == ["stdio"] else over_net())
