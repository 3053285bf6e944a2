"""One agent as its devices see it: its servers, the table of its tools, and the word that the table has changed.

There is one for each agent that has a device here; `faces.relay.http` makes and forgets them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeAlias

import structlog

from isthmus.core.access.policy import AGENT, is_of_agent, is_of_label
from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.snapshot import ServerStatus, Snapshot
from isthmus.core.ports import AgentServer, AgentServers, ConnectingServer
from isthmus.frontends.relay.device_tools import Entry, Table
from isthmus.frontends.relay.settings import RelaySettings
from isthmus.frontends.relay.waiting import ARRIVAL_SECONDS, Patience
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Surface
from isthmus.model.names import ServerName
from isthmus.model.relay import Claim
from isthmus.wire.relay.messages import MissingServer

log = structlog.get_logger(__name__)

GATHER_SECONDS = 0.05
"""Several servers that come at once are told as one change."""

QUIET_SECONDS = 0.25
"""After one announcement the next waits this long, however much changes meanwhile."""

REASON_LENGTH = 200

Settling: TypeAlias = Callable[[], "asyncio.Future[None] | None"]
"""When servers that are only starting will have been tried; None if all have been."""

ARRIVING = "it is connected and has not listed its tools yet"


class Announced(Protocol):
    """Who is told that the list has changed."""

    def tools_changed(self) -> None:
        """The list is another one."""


class Agent:
    """What devices of one agent share. Closed with the last of them."""

    def __init__(
        self,
        hub: Hub,
        roster: AgentServers,
        claim: Claim,
        settings: RelaySettings,
        settling: Settling,
        patience: Patience,
    ) -> None:
        """`settling` says whether configured servers are still starting; `patience` is shared by all agents."""
        self.hub = hub
        self.key = roster.agent
        self.name = claim.agent
        """What its tokens call it."""
        self._tenant = claim.tenant
        self._settling = settling
        self.settings = settings
        self.devices: dict[Announced, None] = {}
        self._roster = roster
        self._loop = asyncio.get_running_loop()
        self.caller: Caller
        self._table: Table
        self._patience = patience
        self._told = b""
        self._told_at = -QUIET_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self._unwatch: list[Callable[[], None]] = []
        self.change(settings)

    def change(self, settings: RelaySettings) -> None:
        """Take what is configured now: what its devices may see may be something else."""
        self.settings = settings
        rules = settings.rules_of(self.key)
        grants = Grants((f"{AGENT}{self.key}", *rules.allow), rules.deny)
        self.caller = settings.tenants.bound(Caller(f"relay:{self.key}", self._tenant, grants))
        self._forget()
        self._stop_watching()
        self._unwatch = [self._roster.watch(self._look_soon)]
        if self._has_others:
            self._unwatch.append(self.hub.watch(self._look_soon))
        self._look_soon()

    def _forget(self) -> None:
        self._version = -1
        """Of the snapshot that was looked at last; the snapshot itself, once it is an old one, must not be kept."""
        self._seats: Sequence[AgentServer] | None = None
        self._sources: tuple[tuple[str, ServerStatus], ...] | None = None

    def _stop_watching(self) -> None:
        for unwatch in self._unwatch:
            unwatch()
        self._unwatch = []

    def close(self) -> None:
        """The last device has left."""
        self._stop_watching()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- who is there ----------------------------------------------------------------------------------------------

    def seats(self) -> Sequence[AgentServer]:
        """Its servers, here or away, in the order in which they came; without those that its devices may not see."""
        seats = self._roster.seats()
        if not self.caller.grants.deny and self.caller.grants.within is None:
            return seats
        return [seat for seat in seats if self._may_see(self.hub.snapshot, seat.server)]

    def _may_see(self, snapshot: Snapshot, server: ServerName) -> bool:
        return server in snapshot.view(self.caller.grants, Surface("own", server)).servers

    def arrivals(self, *, for_list: bool = False) -> tuple[Sequence[asyncio.Future[None]], float]:
        """Servers to wait for before an unknown tool is called or all are listed, and for how many seconds at most.

        These are servers that are connected and not listed yet, and configured ones that are starting. Each is waited
        for once, by all devices together: a silent one would delay every device each time.
        """
        arriving, settling = self._roster.arriving(), self._settling() if self._has_others else None
        if not arriving and settling is None:
            return (), 0.0
        seconds = min(ARRIVAL_SECONDS, self.settings.wait)
        if for_list:
            arriving = [each for each in arriving if not self._is_doubted(each)]
        waits = self._waits(arriving, seconds)
        if settling is not None and (left := self._patience.left(settling, seconds)) > 0:
            waits[settling] = left
        return tuple(waits), max(waits.values(), default=0.0)

    def arrivals_of(self, server_id: str) -> tuple[Sequence[asyncio.Future[None]], float]:
        """Arriving servers that may be this one, which is away; and for how many seconds a call waits for them."""
        arriving = [each for each in self._roster.arriving() if not each.is_named or each.label == server_id]
        waits = self._waits(arriving, self.settings.wait)
        return tuple(waits), max(waits.values(), default=0.0)

    def _waits(self, arriving: Iterable[ConnectingServer], seconds: float) -> dict[asyncio.Future[None], float]:
        waits: dict[asyncio.Future[None], float] = {}
        for arrival in arriving:
            name, ended = (self.key, arrival.label) if arrival.is_named else None, arrival.ended
            if ended.done():
                continue
            self._note_end_of(arrival)
            if (left := self._patience.left(ended, seconds, name)) > 0:
                waits[ended] = left
        return waits

    def _is_doubted(self, arrival: ConnectingServer) -> bool:
        if arrival.is_named or arrival.ended.done():
            return False
        self._note_end_of(arrival)
        return self._patience.is_doubted(arrival.ended, self.key)

    def _note_end_of(self, arrival: ConnectingServer) -> None:
        if not self._patience.is_known(arrival.ended):
            server_id = arrival.label if arrival.is_named else None
            arrival.ended.add_done_callback(partial(_note_end, self._patience, self.key, server_id))

    @property
    def _has_others(self) -> bool:
        return len(self.caller.grants.allow) > 1

    def present(self) -> list[str]:
        """Who is here, of all servers that its devices see."""
        own = [seat.server_id for seat in self.seats() if seat.is_here]
        return [*own, *(server for server, server_status in self._other_servers() if server_status.state == "ready")]

    def absent(self, *, with_others: bool = False) -> list[MissingServer]:
        """Who is away, or is not listed yet, and why: of its own servers, or of all that its devices see."""
        arriving = dict.fromkeys(each.label for each in self._roster.arriving() if not each.ended.done())
        server_statuses = self.hub.snapshot.server_statuses
        away = [seat for seat in self.seats() if not seat.is_here and seat.server_id not in arriving]
        others = [entry for entry in self._other_servers() if entry[1].state != "ready"] if with_others else []
        return [
            *(MissingServer(seat.server_id, _reason(server_statuses.get(seat.server))) for seat in away),
            *(MissingServer(server_id, ARRIVING) for server_id in arriving),
            *(MissingServer(server, _reason(server_status)) for server, server_status in others),
        ]

    def _other_servers(self) -> list[tuple[str, ServerStatus]]:
        if not self._has_others:
            return []
        return list(self._others(self.hub.snapshot, {seat.server for seat in self._roster.seats()}))

    # -- the table -------------------------------------------------------------------------------------------------

    def table(self) -> Table:
        """What its devices see now; the same value as long as nothing has changed."""
        snapshot, seats = self.hub.snapshot, self._roster.seats()
        if snapshot.version != self._version or seats is not self._seats:
            self._refresh(snapshot, seats)
        return self._table

    def _refresh(self, snapshot: Snapshot, seats: Sequence[AgentServer]) -> None:
        """Look whether one of the servers in the table has changed; what happens to others' is of no interest."""
        sources = tuple(self._find_sources(snapshot, seats))
        if self._sources is None or not _are_same(sources, self._sources):
            entries = (
                entry
                for server_id, server_status in sources
                for entry in self._entries(snapshot, server_id, server_status)
            )
            self._table = Table(entries, self.settings.frame_bytes)
            self._sources = sources
        self._version, self._seats = snapshot.version, seats

    def _find_sources(self, snapshot: Snapshot, seats: Sequence[AgentServer]) -> Iterator[tuple[str, ServerStatus]]:
        server_statuses = snapshot.server_statuses
        own = [(seat.server_id, server_statuses[seat.server]) for seat in seats if seat.server in server_statuses]
        # Servers that are away are not listed, but a device may still call tools that it listed before. They come
        # last, so that a server that is here has the bare name.
        yield from (source for source in own if source[1].state != "away")
        if self._has_others:
            yield from self._others(snapshot, {seat.server for seat in seats})
        yield from (source for source in own if source[1].state == "away")

    def _others(self, snapshot: Snapshot, own: set[ServerName]) -> Iterator[tuple[str, ServerStatus]]:
        """Servers that the rules name, in the order of their names."""
        for name in sorted(self._named(snapshot) - own):
            if self._may_see(snapshot, name):
                yield name, snapshot.server_statuses[name]

    def _named(self, snapshot: Snapshot) -> set[ServerName]:
        """Whose tools may be among those that the rules allow; only a name means one that dialled in elsewhere."""
        patterns = self.caller.grants.allow[1:]
        server_statuses = snapshot.server_statuses
        named = {server for pattern in patterns if (server := ServerName(pattern.partition(".")[0])) in server_statuses}
        agents: set[str | None] = {pattern.removeprefix(AGENT) for pattern in patterns if is_of_agent(pattern)}
        if "*" in patterns or any(map(is_of_label, patterns)):
            agents.add(None)
        if agents:
            named.update(server for server, server_status in server_statuses.items() if server_status.agent in agents)
        return named

    def _entries(self, snapshot: Snapshot, server_id: str, server_status: ServerStatus) -> Iterator[Entry]:
        surface = Surface("own", server_status.server)
        for route in snapshot.view(self.caller.grants, surface).routes.values():
            yield Entry(server_id, surface, route, server_status.state != "away")

    # -- telling ---------------------------------------------------------------------------------------------------

    def _look_soon(self) -> None:
        if self._timer is None and self.devices:
            wait = max(GATHER_SECONDS, self._told_at + QUIET_SECONDS - self._loop.time())
            self._timer = self._loop.call_later(wait, self._look)

    def _look(self) -> None:
        self._timer = None
        digest = self.table().digest
        if digest == self._told:
            return
        self._told = digest
        self._told_at = self._loop.time()
        for device in list(self.devices):
            try:
                device.tools_changed()
            except Exception:  # one device's trouble must not keep the others from the news
                log.exception("a device could not be told that its tools changed", agent=self.key)

    def listed(self, table: Table) -> None:
        """A device was shown this table; if it has not been announced, the next look announces whatever is then."""
        if table.digest != self._told:
            self._told = b""

    def join(self, device: Announced) -> None:
        """Have a device told of changes from now on."""
        if not self.devices:
            self._told = self.table().digest
        self.devices[device] = None

    def leave(self, device: Announced) -> None:
        """Have it told nothing any more."""
        self.devices.pop(device, None)


def _note_end(patience: Patience, agent: str, server_id: str | None, ended: asyncio.Future[None]) -> None:
    patience.ended(ended, agent, server_id, is_here=not ended.cancelled())


def _are_same(one: Sequence[tuple[str, ServerStatus]], other: Sequence[tuple[str, ServerStatus]]) -> bool:
    return len(one) == len(other) and all(a[1] is b[1] and a[0] == b[0] for a, b in zip(one, other, strict=True))


def _reason(server_status: ServerStatus | None) -> str:
    said = None if server_status is None else server_status.reason
    return (said or "it is not connected")[:REASON_LENGTH]
