"""A hub at which servers dial in, and servers that are as a test wants them, without sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.journal import Journal
from isthmus.core.settings import Limits
from isthmus.model.callers import Caller
from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities
from isthmus.model.names import ServerName
from isthmus.model.relay import Claim
from isthmus.transport.websocket import MessageReceiver
from isthmus.upstream.dialin.link import DialInLink
from isthmus.upstream.dialin.registry import DialInRegistry
from isthmus.upstream.dialin.settings import DialInSettings
from isthmus.wire.mcp.messages import Implementation
from tests.unit.core.doubles import ANYONE, Listener, Notes, call

ME = Implementation("hub", "1")
CLAIM = Claim("kitchen")
SECONDS = 10.0

Json = dict[str, Any]


class Dialler:
    """A server and the channel that it dialled in on. What it is asked it answers, unless a test says otherwise."""

    def __init__(self, name: str | None = "clock", tools: Sequence[str] = ("now",)) -> None:
        self.name = name
        self.tools = list(tools)
        self.page = 50
        self.capabilities: Json = {"tools": {"listChanged": True}}
        self.is_modern = False
        self.is_mute = False
        self.is_there = True
        """Whether it gives a sign of life."""
        self.holds_calls = False
        self.answers_pings = True
        self.acknowledges = True
        """Whether it acknowledges subscriptions, as a modern server."""
        self.client: str | None = "192.0.2.7"
        self.asked: list[Json] = []
        """Everything that it was sent."""
        self.closed: list[tuple[int, str]] = []
        self.receiver: MessageReceiver
        self.unread_bytes = 0
        self._written = 0

    # -- what a channel is asked -------------------------------------------------------------------------------------

    def frame(self, message: bytes) -> bytes:
        return message + b"\n"

    def write(self, data: bytes) -> int:
        self._written += len(data)
        for line in data.splitlines():
            message = json.loads(line)
            self.asked.append(message)
            if not self.is_mute:
                asyncio.get_running_loop().call_soon(self._serve, message)
        return self._written

    def has_left(self, offset: int) -> bool:
        return offset <= self._written - self.unread_bytes

    def buffered_bytes(self) -> int:
        return self.unread_bytes

    async def is_alive(self, within: float) -> bool:
        await asyncio.sleep(0)
        return self.is_there

    def kill(self) -> None:
        self.close(1006, "killed")

    def close(self, code: int, reason: str) -> None:
        if not self.closed:
            self.closed.append((code, reason))

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        self.close(code, reason)

    # -- what a server does ------------------------------------------------------------------------------------------

    def _serve(self, message: Json) -> None:
        id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
        if id is None or method is None or self.closed:
            return
        if method == "initialize" and self.is_modern:
            self.say(id=id, error={"code": -32601, "message": "what is that?"})
        elif method == "initialize":
            info = {"serverInfo": {"name": self.name, "version": "1"}} if self.name is not None else {}
            self.say(id=id, result={"protocolVersion": "2024-11-05", "capabilities": self.capabilities, **info})
        elif method == "server/discover" and self.is_modern:
            meta = {"io.modelcontextprotocol/serverInfo": {"name": self.name, "version": "2"}}
            self.say(
                id=id,
                result={"supportedVersions": ["2026-07-28"], "capabilities": self.capabilities, "_meta": meta},
            )
        elif method == "subscriptions/listen" and self.acknowledges:
            self.acknowledge()
        elif method == "tools/list":
            start = int(params.get("cursor", 0))
            end = start + self.page
            listed = [{"name": tool, "inputSchema": {"type": "object"}} for tool in self.tools[start:end]]
            more = {"nextCursor": str(end)} if end < len(self.tools) else {}
            self.say(id=id, result={"tools": listed, **more})
        elif method == "tools/call" and not self.holds_calls:
            self.answer(id, f"{self.name}: {params['name']}")
        elif method == "ping" and self.answers_pings:
            self.say(id=id, result={})

    def say(self, **members: Any) -> None:
        """Send the hub a message."""
        self.receiver.read(json.dumps({"jsonrpc": "2.0", **members}).encode())

    def answer(self, id: Any, text: str = "done") -> None:
        """Answer a call."""
        self.say(id=id, result={"content": [{"type": "text", "text": text}]})

    def acknowledge(self) -> None:
        """Acknowledge subscriptions from now on."""
        self.say(method="notifications/subscriptions/acknowledged", params={})

    def calls(self) -> list[Json]:
        """The calls that it was sent."""
        return [message for message in self.asked if message.get("method") == "tools/call"]

    def change(self, *tools: str) -> None:
        """Have other tools, and say so."""
        self.tools = list(tools)
        self.say(method="notifications/tools/list_changed")

    def say_goodbye(self) -> None:
        """Say that it is about to leave."""
        assert isinstance(self.receiver, DialInLink)
        self.receiver.leaves()

    def leave(self, reason: str = "it closed the WebSocket") -> None:
        """Break the connection."""
        self.receiver.connection_ended(reason)


class Scene:
    """A hub, those who dial in at it, and a clock that a test can set."""

    def __init__(self, settings: DialInSettings | None = None, journal: Journal | None = None) -> None:
        self.background = BackgroundTasks("test")
        self.hub = Hub(Limits(), Notes())
        self.time = 1_000_000.0
        self.book = DialInRegistry(
            self.hub, self.background, ME, settings or DialInSettings(), lambda: self.time, journal
        )

    def dial(self, server: Dialler, server_id: str | None = None, claim: Claim = CLAIM, *, muxed: bool = False) -> None:
        """Connect a server."""
        server.receiver = self.book.accept_channel(server, claim, server_id, is_muxed=muxed)

    async def agent_server(self, server: Dialler, server_id: str | None = None, claim: Claim = CLAIM) -> Dialler:
        """Connect a server and wait until it has its seat, or was sent away."""
        self.dial(server, server_id, claim)
        await self.quiet(claim)
        return server

    async def quiet(self, claim: Claim = CLAIM) -> None:
        """Wait until nobody is arriving."""
        await until(lambda: not self.book.roster(claim.key).arriving())

    def server_status(self, server: str) -> ServerStatus:
        """How a server stands."""
        return self.hub.snapshot.server_statuses[ServerName(server)]

    def servers(self) -> dict[str, str]:
        """Everybody, and how they stand."""
        return {name: server_status.state for name, server_status in self.hub.snapshot.server_statuses.items()}

    def tools(self, server: str) -> list[str]:
        """What a server lists."""
        return [tool.name for tool in self.server_status(server).tools]

    def start(
        self,
        name: str,
        *,
        caller: Caller = ANYONE,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
        timeout: float | None = None,
    ) -> tuple[InFlight, Listener]:
        """Start a call."""
        listener = Listener()
        return self.hub.start(call(name, caller=caller, client_caps=client_caps, timeout=timeout), listener), listener

    async def call(self, name: str) -> Listener:
        """Make a call and wait for its end."""
        _, listener = self.start(name)
        async with asyncio.timeout(SECONDS):
            await listener.ended.wait()
        return listener


@asynccontextmanager
async def scene(settings: DialInSettings | None = None, journal: Journal | None = None) -> AsyncIterator[Scene]:
    """A hub that is closed at the end."""
    made = Scene(settings, journal)
    try:
        yield made
    finally:
        await made.book.aclose()
        await made.background.aclose()


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop turn until it holds."""
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110 - of most of it nobody tells
            await asyncio.sleep(0)
