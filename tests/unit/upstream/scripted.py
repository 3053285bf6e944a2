"""A scripted link to a server, and a hub that keeps such servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Set
from typing import Any

import msgspec

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.settings import Limits
from isthmus.model.calls import NO_CAPABILITIES, Call, ClientCapabilities
from isthmus.model.credentials import Subject
from isthmus.model.fault_table import BadReply, Fault, Lost
from isthmus.model.features import TOPICS, Ability, Tool, Topic
from isthmus.model.names import FeatureName, ServerName
from isthmus.telemetry.call_metrics import CallMetrics
from isthmus.upstream.base_link import BaseLink, ConnectFailed
from isthmus.upstream.listing import Listing
from isthmus.upstream.response_waiters import Waiter
from isthmus.upstream.server_set import Supervisor
from isthmus.upstream.server_settings import Carrier, Era, Reach, ServerSettings, StdioSettings
from isthmus.wire.jsonrpc import ErrorReply
from isthmus.wire.mcp.forwarded_methods import ModernDialect
from isthmus.wire.mcp.messages import Implementation
from tests.unit.core.doubles import ABLE, DONE, Listener, call

NAME = ServerName("files")
ME = Implementation("test", "1")
SECONDS = 30.0
"""Longer than anything here takes: who waits for so long has found a hang."""


class Scripted(BaseLink):
    """A link that holds the calls on it until the test ends them."""

    carrier = "script"

    subject: Subject | None = None

    def __init__(self, settings: ServerSettings | None = None, carrier: Carrier = "auto") -> None:
        super().__init__(NAME, ME, Limits())
        self.settings = settings
        self.by = carrier
        self.names = ["read"]
        self.can: frozenset[Ability] = ABLE
        self.is_modern = True
        self.ttl_seconds: dict[Topic, float] = {}
        self.listings: list[Set[Topic]] = []
        self.profiled: list[Set[Topic]] = []
        """Listings to those who can be asked something, and what only they are listed."""
        self.more: list[str] = []
        self.list_refusal: Fault | None = None
        self.pings = 0
        self.ping_fault: Fault | None = None
        self.greeted_as: list[Era] = []
        self.greeting: asyncio.Event | None = None
        """If set, what the greeting waits for."""
        self.refusal: Exception | None = None
        """If set, how the greeting ends."""
        self.is_silent = False
        self.dies_of_probe = False
        self.refuses: set[str] = set()
        self.answers: dict[str, Any] = {}
        """What it answers to single methods, where that is something."""
        self.sent: list[InFlight] = []
        self.withdrawn: list[InFlight] = []
        self.asked: list[tuple[str, Any]] = []
        self.closings = 0

    @property
    def is_closed(self) -> bool:
        return self.closings > 0

    async def handshake(self, era: Era) -> None:
        self.greeted_as.append(era)
        if self.greeting is not None:
            await self.greeting.wait()
        if self.refusal is not None:
            raise self.refusal
        if self.dies_of_probe and era != "legacy":
            self.is_probing = True
            self.die("exited with code 1")
            raise Lost(NAME, "exited with code 1", executed="unknown")
        if era != "legacy" and self.is_modern:
            self.dialect = ModernDialect(ME)

    def abilities(self) -> frozenset[Ability]:
        return self.can

    async def list_features(
        self,
        topics: Set[Topic] = frozenset(TOPICS),
        known: Listing | None = None,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
    ) -> Listing:
        (self.profiled if client_caps else self.listings).append(topics)
        if self.list_refusal is not None:
            raise self.list_refusal
        definition = {"inputSchema": msgspec.Raw(b'{"type":"object"}')}
        names = [*self.names, *(self.more if client_caps else ())]
        tools = tuple(Tool.of(NAME, FeatureName(name), definition) for name in names)
        return Listing(tools=tools, ttl_seconds=self.ttl_seconds)

    async def ping(self, within: float) -> None:
        self.pings += 1
        if self.ping_fault is not None:
            raise self.ping_fault
        if self.is_silent:
            raise BadReply(NAME, "no answer to ping")

    def die(self, reason: str) -> None:
        """Be lost, with everything that was on it."""
        self._lose(reason)
        for inflight in self.sent:
            if inflight.outcome is None:
                inflight.finish(Lost(NAME, reason, executed="unknown"))

    def listen(self) -> None: ...

    def _listen_to(self, uris: Collection[str]) -> None:
        self._modern_subscriptions.acknowledged(None)

    def send(self, inflight: InFlight) -> None:
        self.sent.append(inflight)

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        self.withdrawn.append(inflight)

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        members = {key: value for key, value in msgspec.json.decode(params).items() if key != "_meta"}
        self.asked.append((method, members))
        if method in self.refuses:
            waiter.error(ErrorReply(msgspec.Raw(b"1"), -32601, "no such method", None))
        else:
            waiter.result(msgspec.Raw(msgspec.json.encode(self.answers.get(method, {}))))

    def may_have_run(self, inflight: InFlight) -> bool:
        return True

    async def aclose(self) -> None:
        self.closings += 1
        self.die("closed")


class Kept:
    """A hub with kept servers, and the links that were made for them."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.hub = Hub(limits or Limits(), CallMetrics())
        self.background = BackgroundTasks()
        self.links: list[Scripted] = []
        self.prepare: Callable[[Scripted], None] = lambda _link: None
        self.refusal: Exception | None = None
        self.supervisor = Supervisor(self.hub, self.background, self._connect)

    async def _connect(self, settings: ServerSettings, carrier: Carrier, subject: Subject | None = None) -> BaseLink:
        if self.refusal is not None:
            raise self.refusal
        link = Scripted(settings, carrier)
        link.subject = subject
        self.prepare(link)
        self.links.append(link)
        return link

    def refuse(self, why: str | None) -> None:
        """From now on no link can be made, or can again."""
        self.refusal = None if why is None else ConnectFailed(why)

    def keep(self, **more: Any) -> None:
        self.supervisor.add(settings(**more))

    async def ready(self, **more: Any) -> Scripted:
        """Keep a server and wait until it is ready; returns its link."""
        self.keep(**more)
        await self.until(lambda: self.server_status.state == "ready")
        return self.links[-1]

    @property
    def server_status(self) -> ServerStatus:
        return self.hub.snapshot.server_statuses[NAME]

    def start(self, asked: Call | None = None) -> tuple[InFlight, Listener]:
        """Start a call and listen to it."""
        listener = Listener()
        return self.hub.start(asked or call(), listener), listener

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not is_true():  # noqa: ASYNC110 - pings and listings have no notification
                await asyncio.sleep(0.001)

    async def aclose(self) -> None:
        await self.supervisor.aclose()
        await self.background.aclose()
        assert all(link.is_closed for link in self.links)
        assert len(self.background) == 0


def settings(reach: Reach | None = None, **more: Any) -> ServerSettings:
    """A server's settings; one that is reached otherwise must be started anew."""
    return ServerSettings(NAME, reach or StdioSettings("server"), secrets=frozenset({"hunter22"}), **more)


def finish(inflight: InFlight) -> None:
    """Have the server answer."""
    inflight.finish(DONE)
