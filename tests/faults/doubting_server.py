"""A server of the earlier era that asks in the middle of a call and retracts the question; over any transport.

`doubt` asks, and takes the question back as soon as the file `back` is in the folder that it was given (not if it is to
`leave` it open); when `end` is there it answers, and tells how many answers it got. If it is to be `silent`,
it asks nothing, and the file of that name is there until it is cancelled. Over HTTP it asks on the stream of
the call, or (`--asks get`) on the one that all calls share. It says on which port it listens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from websockets.asyncio.server import ServerConnection, serve

Say = Callable[[dict[str, Any]], Awaitable[None]]

HELLO = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
TOOLS = {"tools": [{"name": "doubt", "inputSchema": {"type": "object"}}]}
FORM = {"type": "object", "properties": {"said": {"type": "string"}}}
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
POLL_SECONDS = 0.01


class Mind:
    """What is thought in one session."""

    def __init__(self) -> None:
        self.questions = 0
        self.answers = 0
        self.silent: Path | None = None

    async def take(self, message: dict[str, Any], say: Say, ask: Say) -> None:
        """Do what a message wants; `say` is where its answer goes and `ask` where questions do."""
        match message.get("method"):
            case "initialize":
                await say(_result(message, HELLO))
            case "tools/list":
                await say(_result(message, TOOLS))
            case "tools/call":
                await self._doubt(message, say, ask)
            case None:
                self.answers += 1
            case "notifications/cancelled" if self.silent is not None:
                self.silent.unlink(missing_ok=True)
            case _ if "id" in message:
                error = {"code": -32601, "message": "unknown"}
                await say({"jsonrpc": "2.0", "id": message["id"], "error": error})
            case _:
                pass

    async def _doubt(self, message: dict[str, Any], say: Say, ask: Say) -> None:
        words = message["params"]["arguments"]
        if words.get("silent"):
            self.silent = Path(words["folder"]) / "silent"
            self.silent.touch()
            await asyncio.Event().wait()
        folder, question = Path(words["folder"]), f"q{self.questions}"
        self.questions += 1
        params = {"message": words["nonce"], "requestedSchema": FORM}
        await ask({"jsonrpc": "2.0", "id": question, "method": "elicitation/create", "params": params})
        if not words.get("leave"):
            await _appeared(folder / "back")
            received = {"requestId": question, "reason": "never mind"}
            await ask({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": received})
        await _appeared(folder / "end")
        text = f"{words['nonce']} went on after {self.answers} answers"
        await say(_result(message, {"content": [{"type": "text", "text": text}]}))


def _result(message: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


async def _appeared(file: Path) -> None:
    while not file.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it, and has no other way to tell
        await asyncio.sleep(POLL_SECONDS)


# -- on a stream of both directions ------------------------------------------------------------------------------------


async def over_stdio() -> None:
    """One session, until standard input ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), flush=True)

    mind, tasks = Mind(), set[asyncio.Task[None]]()
    while line := await reader.readline():
        tasks.add(asyncio.create_task(mind.take(json.loads(line), say, say)))
    for task in tasks:
        task.cancel()


async def over_websocket() -> None:
    """A session a socket."""

    async def talk(socket: ServerConnection) -> None:
        async def say(message: dict[str, Any]) -> None:
            await socket.send(json.dumps(message))

        mind, tasks = Mind(), set[asyncio.Task[None]]()
        async for text in socket:
            tasks.add(asyncio.create_task(mind.take(json.loads(text), say, say)))
        for task in tasks:
            task.cancel()

    async with serve(talk, "127.0.0.1", 0) as server:
        print("PORT", next(iter(server.sockets)).getsockname()[1], flush=True)
        await asyncio.Event().wait()


# -- over HTTP ---------------------------------------------------------------------------------------------------------


class Over:
    """Both transports over HTTP: `/sse` with `/messages`, and `/mcp`."""

    def __init__(self, *, asks_on_get: bool) -> None:
        self._asks_on_get = asks_on_get
        self._minds: dict[str, Mind] = {}
        self._streams: dict[str, Say] = {}
        self._tasks = set[asyncio.Task[None]]()

    async def serve(self) -> None:
        """Listen for ever."""
        server = await asyncio.start_server(self._converse, "127.0.0.1", 0)
        print("PORT", server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def _converse(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                verb, path, _ = first.split()
                await self._answer(verb, path, headers.get("mcp-session-id"), json.loads(body or b"null"), out)
        out.close()

    async def _answer(self, verb: str, path: str, session: str | None, body: Any, out: asyncio.StreamWriter) -> None:
        match verb, path.partition("?")[0]:
            case "GET", "/sse":
                session = self._open()
                out.write(STREAM + _event(f"/messages?{session}", "endpoint"))
                await self._listen(session, out)
            case "GET", _ if session is not None:
                out.write(STREAM)
                await self._listen(session, out)
            case "POST", "/messages":
                session = path.partition("?")[2]
                out.write(_reply(202))
                say = self._streams[session]
                self._tasks.add(asyncio.create_task(self._minds[session].take(body, say, say)))
            case "POST", "/mcp":
                await self._post(session or self._open(), body, out)
            case _:
                out.write(_reply(404))

    def _open(self) -> str:
        session = f"s{len(self._minds)}"
        self._minds[session] = Mind()
        return session

    async def _listen(self, session: str, out: asyncio.StreamWriter) -> None:
        self._streams[session] = _writes(out)
        await asyncio.Event().wait()

    async def _shared(self, session: str) -> Say:
        """The stream of all calls, once the client has opened it."""
        while session not in self._streams:  # noqa: ASYNC110 - it comes on another connection
            await asyncio.sleep(POLL_SECONDS)
        return self._streams[session]

    async def _post(self, session: str, message: Any, out: asyncio.StreamWriter) -> None:
        if message.get("method") == "tools/call":
            out.write(STREAM)
            say = _writes(out)
            await self._minds[session].take(message, say, await self._shared(session) if self._asks_on_get else say)
            out.write(b"0\r\n\r\n")
        elif "method" in message and "id" in message:

            async def say_whole(answer: dict[str, Any]) -> None:
                out.write(_reply(200, json.dumps(answer).encode(), f"mcp-session-id: {session}"))

            await self._minds[session].take(message, say_whole, say_whole)
        else:
            await self._minds[session].take(message, _unsaid, _unsaid)
            out.write(_reply(202))


async def _unsaid(message: dict[str, Any]) -> None:
    raise AssertionError(message)


def _writes(out: asyncio.StreamWriter) -> Say:
    async def say(message: dict[str, Any]) -> None:
        out.write(_event(json.dumps(message), "message"))
        await out.drain()

    return say


def _event(data: str, kind: str) -> bytes:
    text = f"event: {kind}\ndata: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(text), text)


def _reply(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    kind = "content-type: application/json\r\n" if body else ""
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{kind}{lines}\r\n".encode() + body


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", choices=("stdio", "websocket", "http"), default="stdio")
    parser.add_argument("--asks", choices=("post", "get"), default="post")
    options = parser.parse_args()
    match options.transport:
        case "stdio":
            await over_stdio()
        case "websocket":
            await over_websocket()
        case _:
            await Over(asks_on_get=options.asks == "get").serve()


if __name__ == "__main__":
    asyncio.run(main())
