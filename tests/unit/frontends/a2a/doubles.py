"""The agent in a test's hands: behind a real listener, in front of a server that holds its calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from isthmus.core.calls.running_call import InFlight
from isthmus.core.journal import Journal
from isthmus.core.ports import PushReceipt
from isthmus.core.tasks.engine import TaskEngine
from isthmus.frontends.a2a.cards import AgentCards
from isthmus.frontends.a2a.http import A2aHttp
from isthmus.frontends.a2a.push_notifications import PushNotifications
from isthmus.frontends.a2a.service import A2aService
from isthmus.frontends.a2a.settings import A2aSettings
from isthmus.frontends.http.auth import Authenticator, Fields, OriginGuard
from isthmus.model.callers import Caller, Grants, Unprovable
from isthmus.model.calls import Result
from isthmus.storage.memory import MemoryJournal
from tests.unit.core.doubles import ANYONE, Stage, raw, ready, tool
from tests.unit.frontends.http.raw_client import PATIENCE_SECONDS, Answer, RawClient, connect_raw, opened, request

OTHER = Caller("other", "default", Grants(("*",)))
CALLERS = {b"me": ANYONE, b"other": OTHER, b"some": Caller("some", "default", Grants(("files.read",)))}

READ = tool("read", inputSchema={"type": "object", "properties": {"path": {"type": "string"}}})
OFFER = ready(READ, tool("write"), tool("hear"))


def identify(fields: Fields) -> Caller | Unprovable | None:
    """Everybody is one person, unless a key says otherwise."""
    key = fields.get(b"x-api-key", b"me")
    return Unprovable("Keys cannot be checked at the moment") if key == b"later" else CALLERS.get(key)


class Post:
    """A courier that goes nowhere, and refuses addresses in which there is a no."""

    async def refusal(self, url: str, *, is_trusted: bool) -> str | None:
        is_private = "private." in url and not is_trusted
        return f"{url} may not be dialled" if "no." in url or is_private else None

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, *, is_trusted: bool) -> PushReceipt:
        return PushReceipt(200)


class Office:
    """A hub with one server, its tasks, and the service for them. The clock is the test's."""

    def __init__(self, settings: A2aSettings | None = None, journal: Journal | None = None) -> None:
        self.stage = Stage.of(OFFER)
        self.hub = self.stage.hub
        self.journal = journal or MemoryJournal()
        self.seconds = 1_700_000_000.0
        self.engine = TaskEngine(self.hub, self.journal, self.now)
        self.settings = settings or A2aSettings()
        self.courier = Post()
        self.pushing = PushNotifications(self.engine, self.courier, lambda caller: caller.may_name_targets)
        self.a2a_service = A2aService(self.hub, self.engine, self.journal, self.settings, self.now, self.pushing)

    def now(self) -> float:
        self.seconds += 0.001
        return self.seconds

    @property
    def sent(self) -> list[InFlight]:
        """What reached the server."""
        return self.stage.link.sent

    def finish(self, at: int = -1, **members: Any) -> None:
        """Have the server answer a call."""
        self.sent[at].finish(Result(raw(members or {"content": [{"type": "text", "text": "done"}]})))

    def answer_at_once(self) -> None:
        """Have the server answer every call with its arguments."""
        self.stage.link.at_once = lambda inflight: inflight.finish(
            Result(raw({"content": [{"type": "text", "text": bytes(inflight.call.arguments).decode()}]}))
        )

    async def until_sent(self, count: int = 1) -> None:
        """Wait until so many calls have come."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.sent) < count:  # noqa: ASYNC110 - they arrive over a socket
                await asyncio.sleep(0)

    async def until_followed(self, count: int = 1) -> None:
        """Wait until so many callers listen to what happens."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while sum(len(live.listeners) for live in self.engine._store._running.values()) < count:  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def until_alone(self) -> None:
        """Wait until no listener is left."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any(live.listeners for live in self.engine._store._running.values()):  # noqa: ASYNC110
                await asyncio.sleep(0)


class Hall:
    """The frontend behind its listener."""

    def __init__(self, office: Office, frontend: A2aHttp, port: int) -> None:
        self.office = office
        self.frontend = frontend
        self.port = port

    async def ask(self, path: str, *lines: str, method: str = "GET", body: bytes = b"") -> Answer:
        """Ask something, on a connection of its own."""
        async with connect_raw(self.port) as raw_client:
            raw_client.say(request(path, body, *lines, method=method))
            return await raw_client.receive()

    async def post(self, body: Any, *lines: str, path: str = "/a2a") -> Answer:
        """Send JSON, or bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.ask(path, "Content-Type: application/json", *lines, method="POST", body=content)

    async def rpc(self, method: Any, params: Mapping[str, Any], *lines: str) -> Any:
        """The answer to a JSON-RPC request."""
        answer = await self.post(envelope(method, params), *lines)
        assert answer.status == 200
        response = json.loads(answer.body)
        assert response["id"] == 7
        return response

    async def task(self, method: str, params: Mapping[str, Any], *lines: str) -> Any:
        """The task that a request of 1.0 is answered with."""
        response = await self.rpc(method, params, *lines)
        result = response["result"]
        return result.get("task", result)

    @asynccontextmanager
    async def following(self, method: str, params: Mapping[str, Any], *lines: str) -> AsyncIterator[Events]:
        """The stream that answers a request, once it has begun."""
        async with connect_raw(self.port) as raw_client:
            body = json.dumps(envelope(method, params)).encode()
            raw_client.say(request("/a2a", body, "Content-Type: application/json", *lines))
            status, headers = await raw_client.receive_head()
            assert (status, dict(headers)[b"content-type"]) == (200, b"text/event-stream")
            yield Events(raw_client)


class Events:
    """The events of one stream, in their order."""

    def __init__(self, raw_client: RawClient) -> None:
        self.raw_client = raw_client
        self.place = ""
        """What the last event said of where it is."""
        self._chunks = raw_client.hear_chunks()
        self._text = b""

    async def next(self) -> tuple[str | None, Any]:
        """The name of the next event, and its data."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while b"\n\n" not in self._text:
                self._text += await anext(self._chunks)
        event, _, self._text = self._text.partition(b"\n\n")
        fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line)
        self.place = fields.get(b"id", b"").decode()
        name = fields.get(b"event")
        return None if name is None else name.decode(), json.loads(fields[b"data"])

    async def item(self) -> Any:
        """The next result of a JSON-RPC stream."""
        _, received = await self.next()
        return received["result"]

    async def rest(self) -> list[Any]:
        """All that is left, until the stream ends."""
        found: list[Any] = []
        try:
            while True:
                found.append(await self.next())
        except StopAsyncIteration:
            assert self._text == b""
            return found


def envelope(method: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON-RPC request."""
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


def message(data: Any, id: str = "m1", **more: Any) -> dict[str, Any]:
    """The parameters that send a message of 1.0: data, or text."""
    part = {"text": data} if isinstance(data, str) else {"data": data}
    said = {"messageId": id, "role": "ROLE_USER", "parts": [part], **more.pop("said", {})}
    return {"message": said, **more}


def run(name: str = "files.read", id: str = "m1", **more: Any) -> dict[str, Any]:
    """The parameters that have a tool run."""
    return message({"tool": name, "arguments": more.pop("arguments", {})}, id, **more)


NOW: dict[str, Any] = {"configuration": {"returnImmediately": True}}
"""Who sends it is answered at once."""


@asynccontextmanager
async def hall(
    settings: A2aSettings | None = None, journal: Journal | None = None, *, needs_key: bool = True
) -> AsyncIterator[Hall]:
    """The agent behind an open listener; with `needs_key`, requests need one."""
    office = Office(settings, journal)
    auth = Authenticator(OriginGuard(bind_host="127.0.0.1"), identify)
    address = "https://hub.example/"
    wants_keys = lambda: needs_key  # noqa: E731
    cards = AgentCards(office.hub, office.settings, "1.2.3", lambda: address, wants_keys, office.now, wants_keys)
    frontend = A2aHttp(office.a2a_service, auth, cards)
    async with opened(frontend.serve) as (_, port):
        yield Hall(office, frontend, port)
