"""The neighbours of the relay's frontend, small in a test's hands: servers in their seats, and a device's socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.catalog.view import ServerState
from isthmus.core.ports import ConnectingServer
from isthmus.core.settings import Limits
from isthmus.frontends.relay.agents import RelayAgent
from isthmus.frontends.relay.device_connection import DeviceConnection
from isthmus.frontends.relay.server_arrivals import ArrivalPatience
from isthmus.frontends.relay.settings import RelaySettings
from isthmus.model.calls import Result
from isthmus.model.features import Tool
from isthmus.model.names import ServerName
from isthmus.model.relay import Claim
from isthmus.wire.mcp.messages import Implementation
from tests.unit.core.doubles import ABLE, HeldLink, Notes, raw, tool

KITCHEN = "kitchen"
CLAIM = Claim(KITCHEN)
ME = Implementation("isthmus", "1.2.3")
SECONDS = 30.0
"""Longer than anything here takes: who waits for so long has found a hang."""


class MethodLink(HeldLink):
    """A link that also takes methods of any name."""

    takes_methods = True


class Seated:
    """A server in its seat, on a link that holds its calls."""

    def __init__(self, server_id: str, server: str, welcome: bytes) -> None:
        self.server_id = server_id
        self.server = ServerName(server)
        self.is_here = True
        self.welcome = welcome
        self.link = MethodLink()

    @property
    def call(self) -> InFlight:
        """The one call that it holds."""
        (inflight,) = self.link.sent
        return inflight


class Room:
    """The servers of one agent in a hub of their own."""

    def __init__(self, agent: str = KITCHEN) -> None:
        self.agent = agent
        self.hub = Hub(Limits(), Notes())
        self._servers: tuple[Seated, ...] = ()
        self._arriving: dict[str, asyncio.Future[None]] = {}
        self._watchers: dict[Callable[[], None], None] = {}

    def servers(self) -> Sequence[Seated]:
        return self._servers

    def arriving(self) -> Sequence[ConnectingServer]:
        return [ConnectingServer(label, True, ended) for label, ended in self._arriving.items()]

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._watchers[callback] = None
        return lambda: self._watchers.pop(callback, None)

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def announce(self) -> None:
        for callback in list(self._watchers):
            callback()

    def sit(self, server_id: str, *tools: str | Tool, is_own: bool = True) -> Seated:
        """A server comes, with tools of these names."""
        server = f"{self.agent}_{server_id}" if is_own else server_id
        welcome = json.dumps({"protocolVersion": "2024-11-05", "serverInfo": {"name": server_id}}).encode()
        agent_server = Seated(server_id, server, welcome)
        named = tuple(each if isinstance(each, Tool) else tool(each, server) for each in tools)
        server_queue = ServerQueue(agent_server.server, self.hub.limits)
        server_queue.attach(agent_server.link)
        agent = self.agent if is_own else None
        server_status = ServerStatus(
            agent_server.server, "ready", tools=named, abilities=ABLE, is_settled=True, agent=agent
        )
        self.hub.open_server_queue(server_queue, server_status)
        if is_own:
            self._servers = (*self._servers, agent_server)
            self.announce()
        return agent_server

    def expect(self, server_id: str) -> None:
        """A server is connected and has not been listed."""
        self._arriving[server_id] = asyncio.get_running_loop().create_future()

    def arrive(self, server_id: str, *tools: str) -> Seated:
        """It has."""
        agent_server = self.sit(server_id, *tools)
        self._arriving.pop(server_id).set_result(None)
        return agent_server

    def go_away(self, agent_server: Seated, why: str = "it is not connected") -> None:
        """A server's connection goes; its tools are kept."""
        agent_server.is_here = False
        server_status = self.hub.snapshot.server_statuses[agent_server.server]
        state: ServerState = "retrying" if server_status.agent is None else "away"
        self.hub.server_queues[agent_server.server].detach(why, is_failure=False)
        self.hub.publish(msgspec.structs.replace(server_status, state=state, reason=why))
        self.announce()

    def come_back(self, agent_server: Seated) -> None:
        """It is connected again."""
        agent_server.is_here = True
        server_status = self.hub.snapshot.server_statuses[agent_server.server]
        self.hub.server_queues[agent_server.server].attach(agent_server.link)
        self.hub.publish(msgspec.structs.replace(server_status, state="ready", reason=None))
        self.announce()

    def get_up(self, server_id: str) -> None:
        """Its seat is no longer this agent's, though the hub still knows it."""
        self._servers = tuple(agent_server for agent_server in self._servers if agent_server.server_id != server_id)
        self.announce()

    def relist(self, agent_server: Seated, *tools: str) -> None:
        """It lists other tools."""
        named = tuple(tool(each, agent_server.server) for each in tools)
        self.hub.publish(msgspec.structs.replace(self.hub.snapshot.server_statuses[agent_server.server], tools=named))
        self.announce()


class Wire:
    """A device's socket that keeps what is sent."""

    def __init__(self) -> None:
        self.client: str | None = "192.0.2.7:4711"
        self.on_binary: Callable[[bytes], None] | None = None
        self.frames: list[bytes] = []
        self.closed: tuple[int, str] | None = None
        self.unread_bytes = 0

    def send(self, message: bytes) -> None:
        assert self.closed is None, "nothing is sent after a goodbye"
        self.frames.append(message)

    def buffered_bytes(self) -> int:
        return self.unread_bytes

    def close(self, code: int, reason: str = "") -> None:
        assert self.closed is None, "one goodbye is enough"
        self.closed = (code, reason)


class ConnectedDevice:
    """A device in a room, by its socket."""

    def __init__(self, room: Room, settings: RelaySettings | None = None) -> None:
        self.room = room
        self.wire = Wire()
        self.left: list[DeviceConnection] = []
        settling: asyncio.Future[None] | None = None
        settings = settings or RelaySettings(wait=SECONDS)
        self.agent = RelayAgent(room.hub, room, CLAIM, settings, lambda: settling, ArrivalPatience())
        self.line = DeviceConnection(self.wire, self.agent, CLAIM, ME, 100.0, self.left.append)
        self.agent.join(self.line)

    @property
    def said(self) -> list[Any]:
        """All messages that it received, in order."""
        return [json.loads(frame) for frame in self.wire.frames]

    @property
    def last(self) -> Any:
        """The message that it received last."""
        return self.said[-1]

    def send(self, method: str, params: Any = None, *, id: Any = None) -> None:
        """Send a request, or without an id a notification."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if id is not None:
            message["id"] = id
        if params is not None:
            message["params"] = params
        self.line.read(json.dumps(message).encode())

    def call(self, name: str, *, id: Any = 1, **arguments: Any) -> None:
        """Call a tool."""
        self.send("tools/call", {"name": name, "arguments": arguments}, id=id)

    def list_tools(self) -> dict[str, Any]:
        """List, and check that this was answered at once."""
        self.send("tools/list", id=2)
        assert self.last["id"] == 2
        result: dict[str, Any] = self.last["result"]
        return result


def answer(text: str = "well", **members: Any) -> Result:
    """A tool's result."""
    whole = {"content": [{"type": "text", "text": text}], **members}
    return Result(raw(whole), is_error=bool(members.get("isError")), is_typed="resultType" in members)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that an earlier turn of the loop, or a short timer, brings about."""
    async with asyncio.timeout(SECONDS):
        while not is_so():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)
