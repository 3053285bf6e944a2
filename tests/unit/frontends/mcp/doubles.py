"""Callers of the MCP frontend, small in a test's hands: a peer over HTTP, a conversation, and a server behind both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.running_call import InFlight
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.frontends.http.request_cycle import Message
from isthmus.frontends.mcp.duplex import DuplexSession
from isthmus.frontends.mcp.exchange import JsonRpcReply
from isthmus.frontends.mcp.methods import McpMethods
from isthmus.model.callers import Caller
from isthmus.model.calls import EVERYTHING, LogLevel, Result, Surface
from isthmus.model.fault_table import Fault
from isthmus.wire.jsonrpc import Text
from isthmus.wire.mcp.messages import Implementation
from tests.hubs import META, MODERN
from tests.unit.core.doubles import (
    ANYONE,
    SERVER,
    Stage,
    prompt,
    raw,
    ready,
    resource,
    template,
    tool,
)

SECONDS = 30.0
"""Longer than anything here takes: who waits for so long has found a hang."""

NOTES = "file:///notes"
TREE = "file:///{path}"
OFFER = ready(tool(), prompts=[prompt()], resources=[resource(NOTES)], templates=[template(TREE)])
LOG_KEY = "io.modelcontextprotocol/logLevel"
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"

__all__ = ["META", "MODERN"]


class Announcer:
    """A server that takes subscriptions, holds its answer back, or refuses."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.opened = asyncio.Event()
        self.opened.set()
        self.refusal: Fault | None = None

    async def subscribe(self, uri: str) -> None:
        self.asked.append(f"+{uri}")
        await self.opened.wait()
        if self.refusal is not None:
            raise self.refusal

    def unsubscribe(self, uri: str) -> None:
        self.asked.append(f"-{uri}")


class Hosted:
    """A hub with one server that offers everything and holds its calls, and the frontend's methods."""

    def __init__(self, server_status: ServerStatus = OFFER) -> None:
        self.stage = Stage.of(server_status)
        self.hub = self.stage.hub
        self.announcer = Announcer()
        self.hub.subscriptions.attach(SERVER, self.announcer)
        self.mcp_methods = McpMethods(self.hub, Implementation("isthmus", "1"))

    @property
    def last_call(self) -> InFlight:
        """The call that reached the server last."""
        return self.stage.link.sent[-1]

    def answer(self, **members: Any) -> None:
        """Have the server answer the latest call."""
        result = raw(members)
        self.last_call.finish(Result(result, is_typed="resultType" in members))

    def level(self) -> LogLevel | None:
        """What servers are asked to log."""
        return self.hub.levels.lowest

    def is_forgotten(self) -> bool:
        """Whether departed callers get no notifications."""
        hub = self.hub
        return (hub._watchers, hub.subscriptions.shared_uris(SERVER), hub.levels._wanted) == ({}, [], {})


class Talk:
    """A conversation, whatever carries it."""

    def __init__(self, hosted: Hosted, caller: Caller = ANYONE, surface: Surface = EVERYTHING) -> None:
        self.background = BackgroundTasks("talk")
        self.messages: list[Any] = []
        self.refused: list[JsonRpcReply] = []
        """Responses to unreadable messages."""
        self.is_crowded = False
        self._news = asyncio.Event()
        self.conversation = DuplexSession(
            hosted.mcp_methods, caller, surface, self.background, self._deliver, lambda: self.is_crowded
        )

    def _deliver(self, message: bytes) -> None:
        self.messages.append(json.loads(message))
        self._news.set()

    def say(self, method: str, params: Mapping[str, Any] | None = None, *, id: Any = None) -> None:
        """Send a request, or without an id a notification."""
        message = {"jsonrpc": "2.0", "method": method, "params": dict(params or {})}
        self.receive(json.dumps(message if id is None else {**message, "id": id}).encode())
        assert self.refused == []

    def receive(self, body: bytes) -> None:
        """Send a message as it is."""
        self.conversation.receive(body, lambda refused: self.refused.extend([refused] if refused else []))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not holds():
                self._news.clear()
                await self._news.wait()

    async def reply(self, id: Any) -> Any:
        """The answer to a request."""
        await self.until(lambda: any(message.get("id") == id for message in self.messages))
        (answer,) = [message for message in self.messages if message.get("id") == id]
        return answer

    async def ask(self, method: str, params: Mapping[str, Any] | None = None, *, id: Any = 1) -> Any:
        """Ask in the earlier era; returns the result, or the error's code."""
        self.say(method, params, id=id)
        return outcome(await self.reply(id))

    async def ask_modern(
        self, method: str, params: Mapping[str, Any] | None = None, *, id: Any = 1, **meta: Any
    ) -> Any:
        """Ask in the modern era; returns the result, or the error's code."""
        return await self.ask(method, {**(params or {}), "_meta": {**META, **meta}}, id=id)

    def notifications(self) -> list[Any]:
        """The notifications so far."""
        return [message for message in self.messages if "id" not in message]

    async def settle(self) -> None:
        """Wait until every request is done that waits for no other party."""
        async with asyncio.timeout(SECONDS):
            while len(self.background):  # noqa: ASYNC110 - background tasks have no notification
                await asyncio.sleep(0)


def outcome(answer: Any) -> Any:
    return answer["result"] if "result" in answer else answer["error"]["code"]


class Client:
    """A peer over HTTP that remembers what it was sent."""

    def __init__(self, body: bytes = b"") -> None:
        self.answers: list[tuple[int, bytes]] = []
        self.lines: list[bytes] = []
        self.begun: list[bytes] = []
        self.pushed: list[bytes] = []
        self.ended: list[bytes] = []
        self.unsent_bytes = 0
        self.has_news = asyncio.Event()
        self.scope: Message = {}
        self.body = body
        self._farewells: list[Callable[[], None]] = []

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        self._farewells.append(callback)

    def leave(self) -> None:
        for callback in self._farewells:
            callback()
        self._farewells.clear()

    def take_body(self) -> bytes | None:
        return self.body

    def abort(self) -> None:
        raise NotImplementedError

    def answer(self, status: int, lines: bytes, body: Text) -> None:
        assert not body or b"content-type: application/json" in lines
        self.lines.append(lines)
        self.answers.append((status, body if isinstance(body, bytes) else b"".join(body)))
        self.has_news.set()

    def begin(self, status: int, lines: bytes) -> None:
        assert status == 200
        self.begun.append(lines)

    def push(self, chunk: bytes) -> None:
        self.pushed.append(chunk)
        self.has_news.set()

    def end(self, chunk: bytes) -> None:
        self.ended.append(chunk)
        self.has_news.set()

    def buffered_bytes(self) -> int:
        return self.unsent_bytes

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not holds():
                self.has_news.clear()
                await self.has_news.wait()

    @property
    def json(self) -> Any:
        """The one answer's body."""
        ((_, body),) = self.answers
        return json.loads(body)

    @property
    def status(self) -> int:
        """The one answer's status."""
        ((status, _),) = self.answers
        return status

    @property
    def events(self) -> list[Any]:
        """The messages on a stream so far."""
        return events(self.pushed + self.ended)


def events(chunks: Iterable[bytes]) -> list[Any]:
    """The messages of an event stream's chunks."""
    lines = b"".join(chunks).split(b"\n")
    return [json.loads(line[5:]) for line in lines if line.startswith(b"data:") and line[5:].strip()]


def members(received: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
    """An object's members as text."""
    return {key: raw(value) for key, value in received.items()}
