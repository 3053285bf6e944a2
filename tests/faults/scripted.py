"""A server over HTTP whose every answer a test writes itself, and a hub in the same process that speaks to it.

For faults that need an exact order of messages: both sides share one loop, so a test can hold one of them still. What
can be seen from outside belongs to a hub of its own process (`tests.hubs`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from isthmus.app.caller_identity import LiveCallers
from isthmus.app.hub import LOCAL, RunningHub
from isthmus.app.routes import Routes
from isthmus.config.load import load
from isthmus.core.calls.running_call import InFlight
from isthmus.frontends.http.listener import HttpListener, HttpListenerSettings
from isthmus.frontends.mcp.http import McpHttp
from isthmus.frontends.rest.http import RestHttp
from isthmus.model.calls import NOT_ASKED, Call, Event, OnReply, Outcome, Question
from isthmus.model.names import ServerName
from tests.faults.watching import eventually
from tests.hubs import write_config

ANSWER_SECONDS = 30.0
"""Who waits for so long has found a hang."""
SESSION = "mcp-session-id"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class HangUp(Exception):
    """The server closes the connection instead of going on."""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One request as the server heard it; every header with all its values."""

    verb: str
    headers: dict[str, list[str]]
    message: dict[str, Any]
    path: str = "/"

    @property
    def method(self) -> str:
        """The JSON-RPC method; empty for an answer, and for a request without a body."""
        return str(self.message.get("method", ""))

    @property
    def arguments(self) -> dict[str, Any]:
        """What a tool is called with."""
        return dict(self.message["params"].get("arguments", {}))

    @property
    def session(self) -> str | None:
        """The session it names."""
        return self.headers.get(SESSION, [None])[0]

    def result(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to it."""
        return {"jsonrpc": "2.0", "id": self.message["id"], "result": result}


def reply(body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole answer; None is an empty one."""
    content = b"" if body is None else json.dumps(body).encode()
    named = {"content-type": "application/json", "content-length": str(len(content)), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + content


def events(*messages: object) -> bytes:
    """One chunk of a stream of events."""
    data = b"".join(b"data: " + json.dumps(message).encode() + b"\n\n" for message in messages)
    return b"%x\r\n%s\r\n" % (len(data), data)


def tool(name: str, **more: Any) -> dict[str, Any]:
    """A tool that takes anything."""
    return {"name": name, "inputSchema": {"type": "object"}, **more}


class Scripted:
    """Answers as an honest server of the earlier era, with sessions; a test overrides what is to be odd."""

    def __init__(self) -> None:
        self.heard: list[ReceivedRequest] = []
        self.tools = [tool("t")]
        self.greetings = 0
        self.hung = 0
        """Calls that got to `hang`."""
        self._conversations: set[asyncio.Task[None]] = set()

    @property
    def session(self) -> str:
        """The latest session."""
        return f"s{self.greetings}"

    def count(self, method: str) -> int:
        """How many requests of a method were heard."""
        return sum(request.method == method for request in self.heard)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._converse, "127.0.0.1", 0, limit=1 << 24)
        port = self._server.sockets[0].getsockname()[1]
        self.entry = {"url": f"http://127.0.0.1:{port}/mcp", "era": "legacy"}
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for conversation in self._conversations:
            conversation.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._conversations.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError, HangUp, asyncio.CancelledError):
            while True:
                request = await _read(reader)
                self.heard.append(request)
                await self.on(request, out)
        out.close()

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        """Answer one request."""
        match request.verb, request.method:
            case "GET", _:
                await self.on_get(request, out)
            case "DELETE", _:
                out.write(reply(None))
            case _, "initialize":
                await self.on_initialize(request, out)
            case _, "tools/list":
                out.write(reply(request.result({"tools": self.tools})))
            case _, "tools/call":
                await self.on_call(request, out)
            case _, "ping":
                out.write(reply(request.result({})))
            case _:
                await self.on_refused(request, out)

    async def on_get(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        """Refuse the stream of changes."""
        out.write(reply(None, status=405))

    async def on_initialize(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        """Open a session."""
        self.greetings += 1
        received = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "x", "version": "1"},
        }
        out.write(reply(request.result(received), headers={SESSION: self.session}))

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        """Answer a call, or never with the argument `hang`."""
        if request.arguments.get("hang"):
            self.hung += 1
            await asyncio.Event().wait()
        out.write(reply(request.result({"content": []})))

    async def on_refused(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        """Take a notification, or an answer to what the server asked."""
        out.write(reply(None, status=202))


async def _read(reader: asyncio.StreamReader) -> ReceivedRequest:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    verb, path, _ = first.split()
    headers: dict[str, list[str]] = {}
    for name, _, value in (line.partition(": ") for line in lines):
        headers.setdefault(name.lower(), []).append(value)
    body = await reader.readexactly(int(headers.get("content-length", ["0"])[0]))
    return ReceivedRequest(verb, headers, json.loads(body) if body else {}, path)


class Ending:
    """The caller's side of a call."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def ask(self, question: Question, reply: OnReply) -> None:
        reply(NOT_ASKED)

    def end(self, outcome: Outcome) -> None:
        self.outcome.set_result(outcome)


class InProcess:
    """A hub in this process."""

    def __init__(self, running: RunningHub) -> None:
        self.running = running

    def state(self, server: str) -> str:
        """How a server stands."""
        return self.running.hub.snapshot.server_statuses[ServerName(server)].state

    async def ready(self, *servers: str) -> None:
        """Wait until these servers are there."""
        for server in servers:
            await eventually(lambda: self.state(server) == "ready", f"{server} is ready", within=20.0)  # noqa: B023

    def start(self, name: str, *, wants_progress: bool = False, **arguments: Any) -> tuple[InFlight, Ending]:
        """Start a call."""
        ending = Ending()
        raw = msgspec.Raw(json.dumps(arguments).encode())
        call = Call(LOCAL, self.running.surface, name, raw, wants_progress=wants_progress)
        return self.running.hub.start(call, ending), ending

    async def call(self, name: str, **arguments: Any) -> Outcome:
        """Make a call and wait for its end."""
        return await asyncio.wait_for(self.start(name, **arguments)[1].outcome, ANSWER_SECONDS)


@asynccontextmanager
async def hub_of(folder: Path, servers: Mapping[str, Any], **tables: Any) -> AsyncIterator[InProcess]:
    """Run a hub without a listener."""
    running = RunningHub(load(write_config(folder, servers, **tables), {}, folder, folder, port=0), {})
    try:
        yield InProcess(running)
    finally:
        await running.aclose()


@asynccontextmanager
async def listening(hub: InProcess) -> AsyncIterator[int]:
    """Open a hub's listener as `serve` does; yields its port."""
    auth = LiveCallers(hub.running.configuration).open()
    mcp, rest = McpHttp(hub.running.mcp_methods(), auth), RestHttp(hub.running.hub, auth)
    routes = Routes(hub.running.surface, mcp, rest, {})
    http_listener = HttpListener(routes, HttpListenerSettings(port=0))
    http_listener.offer(routes.take)
    try:
        yield await http_listener.open()
    finally:
        await http_listener.close()
