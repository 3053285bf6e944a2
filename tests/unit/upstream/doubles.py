"""Shared by tests of links: a hub with one caller on a link, and messages of servers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from isthmus.core.calls.running_call import InFlight
from isthmus.core.settings import Limits
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Call, LogMessage, Result
from isthmus.upstream.base_link import BaseLink
from isthmus.wire.mcp.messages import Implementation
from tests.unit.core.doubles import ANYONE, Listener, Stage, call, tool
from tests.unit.transport.doubles import Peer

ME = Implementation("test", "1")
SOMEBODY = Caller("somebody", "default", Grants(("*",)))
ACCEPTED = b"HTTP/1.1 202 Accepted\r\nconnection: close\r\ncontent-length: 8\r\n\r\nAccepted"
"""Closing, so that a test finds every message on a connection of its own."""
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
WELCOME = {
    "protocolVersion": "2024-11-05",
    "capabilities": {"tools": {"listChanged": True}, "logging": {}},
    "serverInfo": {"name": "x", "version": "1"},
}
DISCOVERY = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {"listChanged": True}, "resources": {"subscribe": True}},
}


def message(**members: Any) -> bytes:
    """A JSON-RPC message."""
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


def answer(id: int, text: str = "done") -> bytes:
    """The answer to a call."""
    return message(id=id, result={"content": [{"type": "text", "text": text}]})


def event(data: bytes, name: str = "message") -> bytes:
    """One event of a stream."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def reply(status: str, body: bytes = b"", *headers: str) -> bytes:
    """A whole HTTP reply."""
    lines = "".join(f"{header}\r\n" for header in headers).encode()
    return b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status.encode(), lines, len(body), body)


async def posted(peer: Peer) -> dict[str, Any]:
    """The message of the next POST on a connection."""
    body: dict[str, Any] = json.loads((await peer.request()).partition(b"\r\n\r\n")[2])
    return body


async def over(listener: Listener) -> Listener:
    """Wait for a call's end."""
    async with asyncio.timeout(10):
        await listener.ended.wait()
    return listener


def text_of(listener: Listener) -> str:
    """The text of the result in which a call ended."""
    (outcome,) = listener.ends
    assert isinstance(outcome, Result), outcome
    text: str = json.loads(bytes(outcome.payload))["content"][0]["text"]
    return text


class Scene:
    """A link under a hub's server queue, and its callbacks to its owner, in order."""

    def __init__(self, link: BaseLink, limits: Limits | None = None) -> None:
        self.callbacks: list[str] = []
        self.logs: list[LogMessage] = []
        self._stage = Stage(tool("read"), tool("echo"), tool("pay"), tool("slow"), limits=limits)
        self.watch(link)

    def watch(self, link: BaseLink) -> None:
        """Put calls on this link from now on."""
        self.link = link
        link.on_doubt = lambda: self.callbacks.append("doubt")
        link.on_lost = lambda reason: self.callbacks.append(f"lost: {reason}")
        link.on_changed = lambda topic: self.callbacks.append(f"changed: {topic}")
        link.on_updated = lambda uri: self.callbacks.append(f"updated: {uri}")
        link.on_log = self.logs.append
        self._stage.server_queue.attach(link)

    def start(
        self, name: str = "read", arguments: dict[str, Any] | None = None, *, caller: Caller = ANYONE
    ) -> tuple[InFlight, Listener]:
        """Put a call on the link."""
        return self.put(call(f"files.{name}", arguments, caller=caller))

    def put(self, asked: Call) -> tuple[InFlight, Listener]:
        """Put a call of any kind on the link."""
        return self._stage.start(asked)

    async def call(self, name: str, **arguments: Any) -> Listener:
        """Make a call and wait for its end."""
        return await over(self.start(name, arguments)[1])
