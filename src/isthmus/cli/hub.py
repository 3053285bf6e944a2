"""A hub of this process, started for one command; and what every hub that a command works against can do.

The documents are those of the REST face, so that listing, calling and telling are the same code for this hub and
for a running one, which is `cli.remote`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from isthmus.app.audit import AuditLog, open_audit
from isthmus.app.definitions import DefinitionPins
from isthmus.app.hub import LOCAL, RunningHub
from isthmus.cli.faults import Told, told_of
from isthmus.cli.output import say
from isthmus.cli.sources import Running, refused
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.settings import HARD_SECONDS_MAX, Limits
from isthmus.frontends.rest.listings import list_document, servers_document
from isthmus.model.calls import EVERYTHING, Call, Kind, Surface
from isthmus.model.events import Event
from isthmus.model.faults import Fault
from isthmus.model.names import ServerName
from isthmus.model.outcomes import Outcome, Result
from isthmus.model.questions import NOT_ASKED, OnReply, Question
from isthmus.storage.memory import MemoryJournal
from isthmus.upstream.settings import ServerSettings
from isthmus.wire.mcp.lists import ListShape

HUB = ServerName("hub")
"""What a running hub is called where this process has it as a server; nobody sees it but in messages."""

COMMAND = "command"
"""What the audit log calls this hub, and this way in."""

NOTICE_SECONDS = 1.0
"""After this long a person wants to know what is being waited for."""

WITHDRAWAL_SECONDS = 0.1
"""How long a server may act on a withdrawal before its link is closed; many end at once when that happens."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command asks of a server: a tool's, a prompt's or a resource's name, and arguments."""

    kind: Kind
    name: str
    arguments: msgspec.Raw


class Reached(Protocol):
    """A hub that a command works against. Whoever opened it closes it.

    Every method may raise `CommandFailed` where the hub is a running one and cannot be reached.
    """

    async def list(self, shape: ListShape) -> bytes:
        """One of the lists, with who is missing from it."""

    async def servers(self) -> bytes:
        """How the servers stand."""

    async def perform(self, asked: Asked, watch: Callable[[Event], None]) -> Result | Told:
        """Make a call and wait for its end; whoever stops waiting withdraws it at the server too."""

    async def aclose(self) -> None:
        """Close every connection in good order."""


class OwnHub:
    """A hub of this process."""

    def __init__(self, running: RunningHub, pins: DefinitionPins, books: AuditLog | None = None) -> None:
        self.running = running
        self._pins = pins
        self._books = books
        self.settled_at: dict[ServerName, float] = {}
        """When the first attempt of each server ended, on the loop's clock."""

    async def list(self, shape: ListShape) -> bytes:
        """See `Reached`; servers were waited for when the hub was started."""
        view = self.running.hub.snapshot.view(LOCAL.grants, EVERYTHING)
        return list_document(view, shape, is_operator=LOCAL.is_operator)

    async def servers(self) -> bytes:
        """See `Reached`."""
        return servers_document(self.running.hub, LOCAL)

    async def perform(self, asked: Asked, watch: Callable[[Event], None]) -> Result | Told:
        """See `Reached`."""
        exchange = Watched(watch)
        call = Call(LOCAL, EVERYTHING, asked.name, asked.arguments, wants_progress=True, kind=asked.kind, face=COMMAND)
        inflight = self.running.hub.start(call, exchange)
        try:
            outcome = await exchange.outcome
        except asyncio.CancelledError:
            inflight.cancel("interrupted at the command line")
            await asyncio.sleep(WITHDRAWAL_SECONDS)
            raise
        return told_of(outcome) if isinstance(outcome, Fault) else outcome

    async def aclose(self) -> None:
        """See `Reached`."""
        await self.running.aclose()
        await self._pins.aclose()
        if self._books is not None:
            await self._books.stop()
            await self._books.close()


class Watched:
    """The command line's end of a call: shows events as they come."""

    def __init__(self, watch: Callable[[Event], None]) -> None:
        self.emit = watch
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def ask(self, question: Question, reply: OnReply) -> None:
        """Nobody here can answer."""
        reply(NOT_ASKED)

    def end(self, outcome: Outcome) -> None:
        """Wake whoever waits, if somebody still does."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)


# -- starting one --------------------------------------------------------------------------------------------


async def start_own(
    configuration: Configuration,
    environment: Mapping[str, str],
    *,
    within: float,
    only: Iterable[ServerName] | None = None,
    is_to_call: bool = False,
) -> OwnHub:
    """Start a hub without state and wait for its servers, or for `only` those that are needed.

    One that `is_to_call` has an audit log; what merely looks needs none.

    Raises:
        CommandFailed: changed tools are to be withheld, and it cannot be known which are; or calls cannot be audited,
            and have to be.
    """
    journal = MemoryJournal()
    try:
        pins = DefinitionPins(configuration, is_lasting=False)
        books = await open_audit(configuration, journal, COMMAND) if is_to_call else None
    except ConfigError as error:
        raise refused(error) from error
    audit = None if books is None else books.audit
    running = RunningHub(_for_a_command(configuration, within, only), environment, journal, pins=pins, audit=audit)
    own = OwnHub(running, pins, books)
    own.running.hub.watch(lambda: _note_settled(own))
    try:
        await _settle(own.running)
    except BaseException:
        await own.aclose()
        raise
    return own


def _note_settled(own: OwnHub) -> None:
    now = asyncio.get_running_loop().time()
    server_statuses = own.running.hub.snapshot.server_statuses
    for name in own.running.supervisor.reconnectors:
        if server_statuses[name].is_settled:
            own.settled_at.setdefault(name, now)


def _for_a_command(configuration: Configuration, within: float, only: Iterable[ServerName] | None) -> Configuration:
    needed = None if only is None else set(only)
    servers = tuple(server for server in configuration.servers if needed is None or server.name in needed)
    limits = replace(configuration.hub.limits, listing_seconds=within)
    return replace(configuration, servers=servers, hub=replace(configuration.hub, limits=limits))


async def _settle(running: RunningHub) -> None:
    """Wait for first attempts; a person who has to wait is told for whom."""
    notice = asyncio.get_running_loop().call_later(NOTICE_SECONDS, _tell_waiting, running)
    try:
        await running.hub.settle(EVERYTHING)
    finally:
        notice.cancel()


def _tell_waiting(running: RunningHub) -> None:
    server_statuses = running.hub.snapshot.server_statuses.values()
    names = [server_status.server for server_status in server_statuses if not server_status.is_settled]
    if names and sys.stderr.isatty():
        say(f"waiting for {', '.join(sorted(names))} …")


# -- standing before a running one ---------------------------------------------------------------------------

REMOTE_LIMITS = Limits(call_seconds=HARD_SECONDS_MAX, hard_seconds=HARD_SECONDS_MAX, tools_per_server=100_000)
"""The running hub sets its own limits, and lists the tools of all its servers; these only bound a defect."""


def running_as_server(source: Running) -> tuple[Configuration, Surface]:
    """Describe a hub whose only server is the running one, for faces that must outlast a lost connection."""
    server = ServerSettings(HUB, source.reach, timeout=REMOTE_LIMITS.call_seconds)
    hub = HubSettings(limits=REMOTE_LIMITS, audit="off")  # the running one keeps the log
    return Configuration(None, hub, (server,)), Surface("own", HUB)
