"""A hub in this process with its real frontends, called without sockets by callers of three tenants.

Every caller has a namesake in each other tenant. `World.request` is one request; everything that one writes into the
hub is marked with a word of its own, so that a leak is found by looking for others' words in an answer.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from isthmus.app.hub import RunningHub
from isthmus.config.settings import Configuration, HubSettings
from isthmus.frontends.a2a.cards import AgentCards
from isthmus.frontends.a2a.http import A2aHttp
from isthmus.frontends.a2a.push_notifications import PushNotifications
from isthmus.frontends.a2a.service import A2aService
from isthmus.frontends.http.auth import Authenticator, Fields, OriginGuard
from isthmus.frontends.http.request_cycle import PEER
from isthmus.frontends.mcp.http import McpHttp
from isthmus.frontends.mcp.sse import McpSse
from isthmus.frontends.rest.http import RestHttp
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING
from isthmus.wire.jsonrpc import Text
from tests.unit.frontends.a2a.doubles import Post
from tests.unit.frontends.mcp.doubles import Client

T = TypeVar("T")

SECONDS = 20.0
WORD = re.compile(r"word-\d+-x")
ALL = Grants(("*",))


class Peer(Client):
    """A client that takes whatever it is answered."""

    def answer(self, status: int, lines: bytes, body: Text) -> None:
        """See `Client`; an empty body has no type."""
        self.lines.append(lines)
        self.answers.append((status, body if isinstance(body, bytes) else b"".join(body)))
        self.has_news.set()

    def begin(self, status: int, lines: bytes) -> None:
        """See `Client`."""
        self.begun.append(lines)

    def on_taken(self, callback: Any) -> None:
        """All that is written has left at once."""
        callback()

    def abort(self) -> None:
        """No connection is cut."""

    @property
    def has_begun(self) -> bool:
        """Whether it was told anything."""
        return bool(self.answers or self.pushed or self.ended)


@dataclass(frozen=True, slots=True)
class Said:
    """An answer, as far as it came."""

    status: int
    lines: bytes
    body: bytes

    @property
    def json(self) -> Any:
        """The body; of a stream, its first message."""
        text = self.body
        if text.lstrip().startswith(b"{"):
            return json.loads(text)
        data = next(line[5:] for line in text.split(b"\n") if line.startswith(b"data:") and line[5:].strip())
        return json.loads(data)

    @property
    def result(self) -> Any:
        """What JSON-RPC has as the result; None if it is an error."""
        return self.json.get("result") if self.body else None

    def without(self, *words: str) -> tuple[int, bytes, bytes]:
        """What a caller can tell of it, but for what it wrote itself."""
        body = self.body
        for word in words:
            body = body.replace(word.encode(), b"*")
        return self.status, self.lines, body


class World:
    """The hub. It is used from outside of its loop, a step at a time."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._callers: dict[bytes, Caller] = {}
        self.words: dict[str, str] = {}
        """Every word that was written, by whose it is."""
        self.run(self._open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Let the hub do something, to its end."""
        return self.loop.run_until_complete(asyncio.wait_for(work, SECONDS))

    async def _open(self) -> None:
        self.running = RunningHub(Configuration(None, HubSettings()), {})
        running = self.running
        auth = Authenticator(OriginGuard(bind_host="127.0.0.1"), self._identify)
        self.mcp = McpHttp(running.mcp_methods(), auth)
        self.sse = McpSse(running.mcp_methods(), auth, running.background, EVERYTHING, "")
        self.rest = RestHttp(running.hub, auth)
        pushing = PushNotifications(running.tasks, Post(), lambda _: False)
        settings = running.configuration.a2a
        a2a_service = A2aService(running.hub, running.tasks, running.journal, settings, self.loop.time, pushing)
        cards = AgentCards(
            running.hub, settings, "1", lambda: "http://hub/", lambda: True, self.loop.time, lambda: False
        )
        self.agent = A2aHttp(a2a_service, auth, cards)
        await running.hub.wait_connected(EVERYTHING)

    def _identify(self, fields: Fields) -> Caller | None:
        key = fields.get(b"x-api-key", b"")
        if key not in self._callers:
            tenant, _, name = key.decode().partition("/")
            self._callers[key] = Caller(name, tenant, ALL)
        return self._callers[key]

    def close(self) -> None:
        """End everything."""
        self.mcp.end_streams()
        self.run(self.running.aclose())
        self.loop.close()

    def word(self, whose: str) -> str:
        """A word that only its owner may ever receive."""
        word = f"word-{len(self.words)}-x"
        self.words[word] = whose
        return word

    def request(
        self, who: str, path: str, body: Any = None, *, method: str = "POST", headers: Mapping[str, str] | None = None
    ) -> Said:
        """One request of a caller, up to the first of its answer; who is then told more has left.

        Raises:
            AssertionError: the answer has a word of somebody else's in it.
        """
        said = self.run(self._request(who, path, body, method, headers or {}))
        for word in WORD.findall(said.body.decode()):
            assert self.words[word] == who, f"{who} was told a word of {self.words[word]}: {path} {said.body!r}"
        return said

    async def _request(self, who: str, path: str, body: Any, method: str, headers: Mapping[str, str]) -> Said:
        peer = Peer(b"" if body is None else json.dumps(body).encode())
        base = {"host": "localhost", "content-type": "application/json", "x-api-key": who}
        base["accept"] = "application/json, text/event-stream"
        path, _, query = path.partition("?")
        peer.scope = {
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in {**base, **headers}.items()],
            "extensions": {PEER: peer},
        }
        serving = asyncio.ensure_future(self._serve(path, peer))
        while not peer.has_begun and not serving.done():
            peer.has_news.clear()
            hearing = asyncio.ensure_future(peer.has_news.wait())
            await asyncio.wait({serving, hearing}, return_when=asyncio.FIRST_COMPLETED)
            hearing.cancel()
        peer.leave()
        serving.cancel()
        await asyncio.wait({serving})
        if peer.answers:
            return Said(peer.answers[0][0], peer.lines[0], peer.answers[0][1])
        return Said(200, b"".join(peer.begun), b"".join(peer.pushed + peer.ended))

    async def _serve(self, path: str, peer: Peer) -> None:
        if path == "/mcp":
            if not self.mcp.take(EVERYTHING, peer):
                await self.mcp.serve(EVERYTHING, peer.scope, _nothing, _nothing_sent)
            else:
                await peer.until(lambda: peer.has_begun)
        elif path in ("/sse", "/messages"):
            await self.sse.serve(peer.scope, _nothing, _nothing_sent)
        elif path.startswith("/v1"):
            await self.rest.serve(peer.scope, _nothing, _nothing_sent)
        else:
            await self.agent.serve(peer.scope, _nothing, _nothing_sent)


async def _nothing() -> Any:
    raise AssertionError("the body is there")


async def _nothing_sent(_: Any) -> None:
    raise AssertionError("frontends answer by their peer")
