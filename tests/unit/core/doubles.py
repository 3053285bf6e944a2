"""Doubles of the core's neighbours: a link that holds calls, a caller that records events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.catalog.tool_rules import NO_TOOL_RULES, ToolRules
from isthmus.core.ports import StrictAudit
from isthmus.core.settings import Limits
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import (
    EVERYTHING,
    NO_CAPABILITIES,
    Call,
    ClientCapabilities,
    Event,
    Kind,
    OnReply,
    Outcome,
    Progress,
    Question,
    Result,
    Surface,
)
from isthmus.model.fault_table import Fault
from isthmus.model.features import Ability, Prompt, Resource, Template, Tool
from isthmus.model.names import FeatureName, ServerName

SERVER = ServerName("files")
ANYONE = Caller("anyone", "default", Grants(("*",)))
DONE = Result(msgspec.Raw(b'{"content":[]}'))
PROGRESS = Progress({"progress": msgspec.Raw(b"1")})


def raw(value: Any) -> msgspec.Raw:
    """A value as the text of its JSON."""
    return msgspec.Raw(json.dumps(value).encode())


def tool(name: str = "read", server: str = SERVER, **members: Any) -> Tool:
    """A tool with these members in its definition."""
    definition = {"name": raw(name), **{key: raw(value) for key, value in members.items()}}
    return Tool.of(ServerName(server), FeatureName(name), definition)


def prompt(name: str = "ask", server: str = SERVER) -> Prompt:
    """A prompt."""
    return Prompt.of(ServerName(server), FeatureName(name), {"name": raw(name)})


def resource(uri: str, server: str = SERVER, **members: Any) -> Resource:
    """A resource with these members in its definition."""
    definition = {"uri": raw(uri), **{key: raw(value) for key, value in members.items()}}
    return Resource.of(ServerName(server), FeatureName(uri), definition)


def template(uri: str, server: str = SERVER) -> Template:
    """A template of resources."""
    return Template.of(ServerName(server), FeatureName(uri), {"uriTemplate": raw(uri)})


ABLE: frozenset[Ability] = frozenset(("tools", "prompts", "resources", "subscribe", "completions", "logging"))


def ready(
    *tools: Tool,
    server: str = SERVER,
    prompts: Iterable[Prompt] = (),
    resources: Iterable[Resource] = (),
    templates: Iterable[Template] = (),
    abilities: frozenset[Ability] = ABLE,
    rules: ToolRules = NO_TOOL_RULES,
    is_unlisted: bool = False,
) -> ServerStatus:
    """The standing of a server that is there."""
    return ServerStatus(
        ServerName(server),
        "ready",
        tools=tools,
        prompts=tuple(prompts),
        resources=tuple(resources),
        templates=tuple(templates),
        abilities=abilities,
        rules=rules,
        is_settled=True,
        is_unlisted=is_unlisted,
    )


def call(
    name: str = "files.read",
    arguments: Mapping[str, Any] | None = None,
    *,
    caller: Caller = ANYONE,
    surface: Surface = EVERYTHING,
    timeout: float | None = None,
    kind: Kind = "tool",
    client_caps: ClientCapabilities = NO_CAPABILITIES,
    comes_back: bool = False,
) -> Call:
    """A call, of a tool unless another kind is named."""
    asked = raw(arguments or {})
    return Call(
        caller, surface, name, asked, timeout=timeout, kind=kind, client_caps=client_caps, comes_back=comes_back
    )


class Listener:
    """An exchange that records its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.asked: list[tuple[Question, OnReply]] = []
        self.ends: list[Outcome] = []
        self.ended = asyncio.Event()

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def ask(self, question: Question, reply: OnReply) -> None:
        self.asked.append((question, reply))

    def end(self, outcome: Outcome) -> None:
        self.ends.append(outcome)
        self.ended.set()

    @property
    def fault(self) -> Fault:
        """The one fault in which the call ended."""
        (outcome,) = self.ends
        assert isinstance(outcome, Fault), outcome
        return outcome


class HeldLink:
    """A link that holds every call until the test ends it, or does `at_once` with it."""

    def __init__(self, at_once: Callable[[InFlight], object] | None = None) -> None:
        self.sent: list[InFlight] = []
        self.withdrawn: list[tuple[InFlight, str]] = []
        self.has_left = True
        self.at_once = at_once

    def send(self, inflight: InFlight) -> None:
        self.sent.append(inflight)
        if self.at_once is not None:
            self.at_once(inflight)

    def may_have_run(self, inflight: InFlight) -> bool:
        return self.has_left

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        self.withdrawn.append((inflight, reason))


class HeldPool(HeldLink):
    """A pool that does the same, and hears of every call that is over."""

    def __init__(self) -> None:
        super().__init__()
        self.over: list[InFlight] = []
        self.gone: list[str] = []

    def call_ended(self, inflight: InFlight) -> None:
        self.over.append(inflight)

    def left(self, session: str) -> None:
        self.gone.append(session)

    def is_per_caller(self, client_caps: ClientCapabilities) -> bool:
        return False

    def __len__(self) -> int:
        return 1


class Notes:
    """A recorder that writes everything down."""

    strict_audit: StrictAudit | None = None
    started: Callable[[InFlight], None] | None = None

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.ends: list[tuple[str, ServerName | None, Outcome]] = []
        self.lates: list[ServerName] = []

    def call_ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        assert seconds >= 0
        self.ends.append((inflight.call.name, server, outcome))

    def waited(self, inflight: InFlight, seconds: float) -> None:
        self.waits.append(seconds)

    def late(self, server: ServerName) -> None:
        self.lates.append(server)


class Stage:
    """A hub with one server on a held link, and what happened on it."""

    def __init__(self, *tools: Tool, limits: Limits | None = None) -> None:
        self.notes = Notes()
        self.hub = Hub(limits or Limits(), self.notes)
        self.server_queue = ServerQueue(SERVER, self.hub.limits)
        self.link = HeldLink()
        self.server_queue.attach(self.link)
        self.hub.open_server_queue(self.server_queue, ready(*(tools or (tool(),))))

    @classmethod
    def of(cls, server_status: ServerStatus, limits: Limits | None = None) -> Stage:
        """A hub whose one server offers this."""
        stage = cls(limits=limits)
        stage.hub.publish(server_status)
        return stage

    def start(self, asked: Call | None = None) -> tuple[InFlight, Listener]:
        """Start a call and listen to it."""
        listener = Listener()
        return self.hub.start(asked or call(), listener), listener
