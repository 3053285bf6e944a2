"""One agent as its devices see it: its servers, the tools of its devices, and notifications of their changes.

There is a `RelayAgent` for each agent with a connected device; the relay frontend creates and closes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

import structlog

from isthmus.core.access.policy import AGENT, is_of_agent, is_of_label
from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.snapshot import ServerStatus, Snapshot
from isthmus.core.ports import AgentServers, ConnectingServer, DialledInServer
from isthmus.frontends.relay.device_tools import DeviceTool, DeviceTools
from isthmus.frontends.relay.server_arrivals import ARRIVAL_SECONDS, ArrivalPatience
from isthmus.frontends.relay.settings import RelaySettings
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Surface
from isthmus.model.names import ServerName
from isthmus.model.relay import Claim
from isthmus.wire.relay.messages import MissingServer

log = structlog.get_logger(__name__)

GATHER_SECONDS = 0.05
"""Several servers that connect at once make one notification."""

QUIET_SECONDS = 0.25
"""The shortest time between two notifications."""

REASON_LENGTH = 200

Settling: TypeAlias = Callable[[], "asyncio.Future[None] | None"]
"""A future for the first try of all starting servers; None if all have been tried."""

ARRIVING = "it is connected and has not listed its tools yet"


class ToolsListener(Protocol):
    """Is notified when the list of tools changes."""

    def tools_changed(self) -> None:
        """The list has changed."""


class RelayAgent:
    """The state that all devices of one agent share. Closed with the last device."""

    def __init__(
        self,
        hub: Hub,
        servers: AgentServers,
        claim: Claim,
        settings: RelaySettings,
        settling: Settling,
        patience: ArrivalPatience,
    ) -> None:
        """`settling` says whether configured servers are still starting; `patience` is shared by all agents."""
        self.hub = hub
        self.key = servers.agent
        self.name = claim.agent
        """The agent's name in its tokens."""
        self._tenant = claim.tenant
        self._settling = settling
        self.settings = settings
        self.devices: dict[ToolsListener, None] = {}
        self._servers = servers
        self._loop = asyncio.get_running_loop()
        self.caller: Caller
        self._table: DeviceTools
        self._patience = patience
        self._announced = b""
        self._notified_at = -QUIET_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self._unwatch: list[Callable[[], None]] = []
        self.change(settings)

    def change(self, settings: RelaySettings) -> None:
        """Apply a new configuration, which may change the tools that devices see."""
        self.settings = settings
        rules = settings.rules_of(self.key)
        grants = Grants((f"{AGENT}{self.key}", *rules.allow), rules.deny)
        self.caller = settings.tenants.bound(Caller(f"relay:{self.key}", self._tenant, grants))
        # The version, not the snapshot: an old snapshot must not stay in memory.
        self._version = -1
        self._seats: Sequence[DialledInServer] | None = None
        self._sources: tuple[tuple[str, ServerStatus], ...] | None = None
        self._stop_watching()
        self._unwatch = [self._servers.watch(self._check_soon)]
        if self._has_others:
            self._unwatch.append(self.hub.watch(self._check_soon))
        self._check_soon()

    def _stop_watching(self) -> None:
        for unwatch in self._unwatch:
            unwatch()
        self._unwatch = []

    def close(self) -> None:
        """The last device has disconnected."""
        self._stop_watching()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- servers ---------------------------------------------------------------------------------------------------

    def seats(self) -> Sequence[DialledInServer]:
        """The agent's servers that devices may see, connected or away, in the order in which they first connected."""
        seats = self._servers.seats()
        if not self.caller.grants.deny and self.caller.grants.within is None:
            return seats
        return [seat for seat in seats if self._may_see(self.hub.snapshot, seat.server)]

    def _may_see(self, snapshot: Snapshot, server: ServerName) -> bool:
        return server in snapshot.view(self.caller.grants, Surface("own", server)).servers

    def arrivals(self, *, for_list: bool = False) -> tuple[Sequence[asyncio.Future[None]], float]:
        """Servers to wait for before calling an unknown tool or listing all, and for how many seconds at most.

        These are servers that are connected but not listed yet, and configured servers that are starting. All devices
        together wait for each server once: otherwise a silent server would delay every device each time.
        """
        arriving, settling = self._servers.arriving(), self._settling() if self._has_others else None
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
        """Connecting servers that may be this one, and for how many seconds a call waits for them."""
        arriving = [each for each in self._servers.arriving() if not each.is_named or each.label == server_id]
        waits = self._waits(arriving, self.settings.wait)
        return tuple(waits), max(waits.values(), default=0.0)

    def _waits(self, arriving: Iterable[ConnectingServer], seconds: float) -> dict[asyncio.Future[None], float]:
        waits: dict[asyncio.Future[None], float] = {}
        for arrival in arriving:
            name, ended = (self.key, arrival.label) if arrival.is_named else None, arrival.ended
            if ended.done():
                continue
            self._watch_end(arrival)
            if (left := self._patience.left(ended, seconds, name)) > 0:
                waits[ended] = left
        return waits

    def _is_doubted(self, arrival: ConnectingServer) -> bool:
        if arrival.is_named or arrival.ended.done():
            return False
        self._watch_end(arrival)
        return self._patience.is_doubted(arrival.ended, self.key)

    def _watch_end(self, arrival: ConnectingServer) -> None:
        if self._patience.is_known(arrival.ended):
            return
        patience, agent, server_id = self._patience, self.key, arrival.label if arrival.is_named else None

        def on_end(ended: asyncio.Future[None]) -> None:
            patience.ended(ended, agent, server_id, is_here=not ended.cancelled())

        arrival.ended.add_done_callback(on_end)

    @property
    def _has_others(self) -> bool:
        return len(self.caller.grants.allow) > 1

    def present(self) -> list[str]:
        """The connected servers that devices see."""
        own = [seat.server_id for seat in self.seats() if seat.is_here]
        return [*own, *(server for server, server_status in self._other_servers() if server_status.state == "ready")]

    def absent(self, *, with_others: bool = False) -> list[MissingServer]:
        """Servers that are away or not listed yet: the agent's own, or all that its devices see."""
        arriving = dict.fromkeys(each.label for each in self._servers.arriving() if not each.ended.done())
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
        return list(self._others(self.hub.snapshot, {seat.server for seat in self._servers.seats()}))

    # -- tools -----------------------------------------------------------------------------------------------------

    def table(self) -> DeviceTools:
        """The tools of its devices; the same object as long as nothing has changed."""
        snapshot, seats = self.hub.snapshot, self._servers.seats()
        if snapshot.version != self._version or seats is not self._seats:
            self._refresh(snapshot, seats)
        return self._table

    def _refresh(self, snapshot: Snapshot, seats: Sequence[DialledInServer]) -> None:
        """Rebuild the tools if one of their servers has changed."""
        sources, before = tuple(self._find_sources(snapshot, seats)), self._sources
        is_same = before is not None and len(sources) == len(before)
        if not is_same or any(a[1] is not b[1] or a[0] != b[0] for a, b in zip(sources, before or (), strict=True)):
            entries = (
                entry
                for server_id, server_status in sources
                for entry in self._entries(snapshot, server_id, server_status)
            )
            self._table = DeviceTools(entries, self.settings.frame_bytes)
            self._sources = sources
        self._version, self._seats = snapshot.version, seats

    def _find_sources(self, snapshot: Snapshot, seats: Sequence[DialledInServer]) -> Iterator[tuple[str, ServerStatus]]:
        server_statuses = snapshot.server_statuses
        own = [(seat.server_id, server_statuses[seat.server]) for seat in seats if seat.server in server_statuses]
        # Servers that are away are not listed, but devices may call tools that they listed before. They come last, so
        # that a connected server gets the bare name.
        yield from (source for source in own if source[1].state != "away")
        if self._has_others:
            yield from self._others(snapshot, {seat.server for seat in seats})
        yield from (source for source in own if source[1].state == "away")

    def _others(self, snapshot: Snapshot, own: set[ServerName]) -> Iterator[tuple[str, ServerStatus]]:
        """Servers of others that the rules allow, sorted by name."""
        for name in sorted(self._named(snapshot) - own):
            if self._may_see(snapshot, name):
                yield name, snapshot.server_statuses[name]

    def _named(self, snapshot: Snapshot) -> set[ServerName]:
        """Servers that the rules may allow. Servers that dialled in for another agent must be named."""
        patterns = self.caller.grants.allow[1:]
        server_statuses = snapshot.server_statuses
        named = {server for pattern in patterns if (server := ServerName(pattern.partition(".")[0])) in server_statuses}
        agents: set[str | None] = {pattern.removeprefix(AGENT) for pattern in patterns if is_of_agent(pattern)}
        if "*" in patterns or any(map(is_of_label, patterns)):
            agents.add(None)
        if agents:
            named.update(server for server, server_status in server_statuses.items() if server_status.agent in agents)
        return named

    def _entries(self, snapshot: Snapshot, server_id: str, server_status: ServerStatus) -> Iterator[DeviceTool]:
        surface = Surface("own", server_status.server)
        for route in snapshot.view(self.caller.grants, surface).routes.values():
            yield DeviceTool(server_id, surface, route, server_status.state != "away")

    # -- notifications ---------------------------------------------------------------------------------------------

    def _check_soon(self) -> None:
        if self._timer is None and self.devices:
            wait = max(GATHER_SECONDS, self._notified_at + QUIET_SECONDS - self._loop.time())
            self._timer = self._loop.call_later(wait, self._check)

    def _check(self) -> None:
        self._timer = None
        digest = self.table().digest
        if digest == self._announced:
            return
        self._announced = digest
        self._notified_at = self._loop.time()
        for device in list(self.devices):
            try:
                device.tools_changed()
            except Exception:  # one device must not keep the others from the notification
                log.exception("device could not be notified of changed tools", agent=self.key)

    def listed(self, table: DeviceTools) -> None:
        """A device has listed these tools. If they were not announced, the next check announces the current ones."""
        if table.digest != self._announced:
            self._announced = b""

    def join(self, device: ToolsListener) -> None:
        """Notify a device of changes from now on."""
        if not self.devices:
            self._announced = self.table().digest
        self.devices[device] = None

    def leave(self, device: ToolsListener) -> None:
        """Stop notifying a device."""
        self.devices.pop(device, None)


def _reason(server_status: ServerStatus | None) -> str:
    reason = None if server_status is None else server_status.reason
    return (reason or "it is not connected")[:REASON_LENGTH]
