"""One agent as its devices see it: its servers, the tools of its devices, and notifications of their changes.

There is a `RelayAgent` for each agent with a connected device; the relay frontend creates and closes them. Listing and
calling use the same table of tools. It includes tools of servers that are away, for devices that listed them before;
they are not listed. A table never changes: the agent makes a new one when a server changes.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

import msgspec
import structlog

from isthmus.core.access.policy import AGENT, is_of_agent, is_of_label
from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.snapshot import ServerStatus, Snapshot
from isthmus.core.catalog.view import Route
from isthmus.core.ports import AgentServers, ConnectingServer, DialledInServer
from isthmus.frontends.relay.server_arrivals import ARRIVAL_SECONDS, NODES_SECONDS, ArrivalPatience, Waits
from isthmus.frontends.relay.settings import RelaySettings
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Surface
from isthmus.model.names import ServerName
from isthmus.model.relay import Claim
from isthmus.wire.mcp.lists import TOOLS, write_entry
from isthmus.wire.relay.device_messages import SERVER_ID, MissingServer

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
        self._own_servers: Sequence[DialledInServer] | None = None
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

    def servers(self) -> Sequence[DialledInServer]:
        """The agent's servers that devices may see, connected or away, in the order in which they first connected."""
        servers = self._servers.servers()
        if not self.caller.grants.deny and self.caller.grants.within is None:
            return servers
        return [agent_server for agent_server in servers if self._may_see(self.hub.snapshot, agent_server.server)]

    def _may_see(self, snapshot: Snapshot, server: ServerName) -> bool:
        return server in snapshot.view(self.caller.grants, Surface("own", server)).servers

    def ask_nodes(self) -> Waits | None:
        """What to wait for before `arrivals` has the servers of all nodes of a cluster; None if it has them."""
        asked = self._patience.ask_nodes()
        return None if asked is None else ((asked,), min(NODES_SECONDS, self.settings.wait))

    def arrivals(self, *, for_list: bool = False) -> Waits:
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

    def arrivals_of(self, server_id: str) -> Waits:
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
            patience.arrival_ended(ended, agent, server_id, is_here=not ended.cancelled())

        arrival.ended.add_done_callback(on_end)

    @property
    def _has_others(self) -> bool:
        return len(self.caller.grants.allow) > 1

    def present(self) -> list[str]:
        """The connected servers that devices see."""
        own = [agent_server.server_id for agent_server in self.servers() if agent_server.is_here]
        return [*own, *(server for server, server_status in self._other_servers() if server_status.state == "ready")]

    def absent(self, *, with_others: bool = False) -> list[MissingServer]:
        """Servers that are away or not listed yet: the agent's own, or all that its devices see."""
        arriving = dict.fromkeys(each.label for each in self._servers.arriving() if not each.ended.done())
        server_statuses = self.hub.snapshot.server_statuses
        away = [
            agent_server
            for agent_server in self.servers()
            if not agent_server.is_here and agent_server.server_id not in arriving
        ]
        others = [entry for entry in self._other_servers() if entry[1].state != "ready"] if with_others else []
        return [
            *(
                MissingServer(agent_server.server_id, _reason(server_statuses.get(agent_server.server)))
                for agent_server in away
            ),
            *(MissingServer(server_id, ARRIVING) for server_id in arriving),
            *(MissingServer(server, _reason(server_status)) for server, server_status in others),
        ]

    def _other_servers(self) -> list[tuple[str, ServerStatus]]:
        if not self._has_others:
            return []
        return list(self._others(self.hub.snapshot, {agent_server.server for agent_server in self._servers.servers()}))

    # -- tools -----------------------------------------------------------------------------------------------------

    def table(self) -> DeviceTools:
        """The tools of its devices; the same object as long as nothing has changed."""
        snapshot, servers = self.hub.snapshot, self._servers.servers()
        if snapshot.version == self._version and servers is self._own_servers:
            return self._table
        sources, before = tuple(self._find_sources(snapshot, servers)), self._sources
        is_same = before is not None and len(sources) == len(before)
        if not is_same or any(a[1] is not b[1] or a[0] != b[0] for a, b in zip(sources, before or (), strict=True)):
            entries: list[DeviceTool] = []
            for server_id, server_status in sources:
                surface, is_listed = Surface("own", server_status.server), server_status.state != "away"
                routes = snapshot.view(self.caller.grants, surface).routes.values()
                entries += [DeviceTool(server_id, surface, route, is_listed) for route in routes]
            self._table = DeviceTools(entries, self.settings.frame_bytes)
            self._sources = sources
        self._version, self._own_servers = snapshot.version, servers
        return self._table

    def _find_sources(
        self, snapshot: Snapshot, servers: Sequence[DialledInServer]
    ) -> Iterator[tuple[str, ServerStatus]]:
        server_statuses = snapshot.server_statuses
        own = [
            (agent_server.server_id, server_statuses[agent_server.server])
            for agent_server in servers
            if agent_server.server in server_statuses
        ]
        # Servers that are away are not listed, but devices may call tools that they listed before. They come last, so
        # that a connected server gets the bare name.
        yield from (source for source in own if source[1].state != "away")
        if self._has_others:
            yield from self._others(snapshot, {agent_server.server for agent_server in servers})
        yield from (source for source in own if source[1].state == "away")

    def _others(self, snapshot: Snapshot, own: set[ServerName]) -> Iterator[tuple[str, ServerStatus]]:
        """Servers of others that the rules allow, sorted by name. Those that dialled in for another must be named."""
        patterns = self.caller.grants.allow[1:]
        server_statuses = snapshot.server_statuses
        named = {server for pattern in patterns if (server := ServerName(pattern.partition(".")[0])) in server_statuses}
        agents: set[str | None] = {pattern.removeprefix(AGENT) for pattern in patterns if is_of_agent(pattern)}
        if "*" in patterns or any(map(is_of_label, patterns)):
            agents.add(None)
        if agents:
            named.update(server for server, server_status in server_statuses.items() if server_status.agent in agents)
        for name in sorted(named - own):
            if self._may_see(snapshot, name):
                yield name, server_statuses[name]

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


# -- the tools of devices ----------------------------------------------------------------------------------------------

_ILLEGAL = re.compile(r"[^a-zA-Z0-9_\-\u4e00-\u9fff]")


def sanitised(name: str) -> str:
    """The name as a device passes it to its language model."""
    return _ILLEGAL.sub("_", name)


def exposed_names(tools: Iterable[tuple[str, str]]) -> list[str]:
    """The exposed names of tools, given with their server ids in the order of servers.

    The first tool of a name keeps it, a later one becomes `server_id.tool`, and if that is taken, six hex digits are
    added. All names differ, also after the device has sanitised them.
    """
    taken: set[str] = set()
    names: list[str] = []
    for server_id, tool in tools:
        name = tool
        if sanitised(name) in taken:
            name = f"{server_id}.{tool}"
        if sanitised(name) in taken:
            digest = hashlib.blake2b(f"{server_id}\0{tool}".encode()).hexdigest()
            longer = (f"{server_id}.{tool}_{digest[start : start + 6]}" for start in range(len(digest) - 6))
            name = next(name for name in longer if sanitised(name) not in taken)
        taken.add(sanitised(name))
        names.append(name)
    return names


class DeviceTool(msgspec.Struct, frozen=True, eq=False):
    """A tool behind an exposed name: its server's surface and the tool's own name."""

    server_id: str
    surface: Surface
    route: Route
    is_listed: bool = True
    """False for a tool of a server that is away: it can be called, but is not listed."""

    @property
    def tool(self) -> str:
        """The server's name for the tool."""
        return self.route.exposed


class DeviceTools:
    """The tools of one agent's devices, in list order."""

    __slots__ = ("_digest", "_frame_bytes", "_pages", "entries")

    def __init__(self, tools: Iterable[DeviceTool], frame_bytes: int) -> None:
        """Tools whose definition is longer than half a frame cannot be listed, and are left out."""
        fitting: list[DeviceTool] = []
        for entry in tools:
            definition = entry.route.feature.definition.items()
            if sum(len(key) + len(memoryview(value)) + 4 for key, value in definition) <= frame_bytes // 2:
                fitting.append(entry)
        names = exposed_names((entry.server_id, entry.tool) for entry in fitting)
        self.entries: dict[str, DeviceTool] = dict(zip(names, fitting, strict=True))
        self._frame_bytes = frame_bytes
        self._pages: list[tuple[bytes, ...]] | None = None
        self._digest: bytes | None = None

    @property
    def digest(self) -> bytes:
        """Changes exactly when the listed tools, their names or their descriptions do."""
        if self._digest is None:
            total = hashlib.blake2b(digest_size=6)
            for name, entry in self._listed():
                total.update(f"{name}\0{entry.server_id}\0".encode() + entry.route.feature.digest)
            self._digest = total.digest()
        return self._digest

    def _listed(self) -> Iterator[tuple[str, DeviceTool]]:
        return ((name, entry) for name, entry in self.entries.items() if entry.is_listed)

    def page(self, position: int) -> tuple[bytes, ...]:
        """The JSON entries of one page; empty if there is no such page."""
        return self._cut()[position] if self.has_page(position) else ()

    def has_page(self, position: int) -> bool:
        """Whether there is such a page."""
        return position < len(self._cut())

    def _cut(self) -> list[tuple[bytes, ...]]:
        if self._pages is None:
            listed = [_listed(name, entry) for name, entry in self._listed()]
            self._pages = _pages(listed, self._frame_bytes * 3 // 4)  # the rest is for the other members
        return self._pages

    def cursor(self, position: int) -> str:
        """The cursor of a page."""
        return base64.urlsafe_b64encode(self.digest + b"%d" % position).decode()

    def position(self, cursor: str) -> int | None:
        """The page of a cursor, or the first page if the table has changed since; None if the cursor is invalid."""
        try:
            text = base64.urlsafe_b64decode(cursor.encode())
            position = int(text[len(self.digest) :])
        except ValueError:
            return None
        return position if text.startswith(self.digest) and position >= 0 else 0


def _listed(name: str, entry: DeviceTool) -> bytes:
    own = {key: value for key, value in entry.route.feature.definition.items() if key != SERVER_ID}
    # Last, so that no member of the server's own follows it.
    return write_entry(TOOLS, name, {**own, SERVER_ID: msgspec.Raw(msgspec.json.encode(entry.server_id))})


def _pages(listed: list[bytes], page_bytes: int) -> list[tuple[bytes, ...]]:
    pages: list[tuple[bytes, ...]] = []
    page: list[bytes] = []
    size = 0
    for entry in listed:
        if page and size + len(entry) > page_bytes:
            pages.append(tuple(page))
            page, size = [], 0
        page.append(entry)
        size += len(entry) + 1
    return [*pages, tuple(page)] if page else pages
