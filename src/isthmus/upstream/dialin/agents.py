"""One agent and the servers that dialled in under it.

The registry has one `DialInAgent` per agent; frontends see it as `core.ports.AgentServers`. `dialin.server_names`
decides which server gets which name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set

import msgspec
import structlog

from isthmus.core.ports import ConnectingServer
from isthmus.model.names import ServerName
from isthmus.model.relay import DialledServer
from isthmus.upstream.dialin.link import DialInLink
from isthmus.upstream.dialin.registry_store import ServerRecord
from isthmus.upstream.dialin.server import DialInReconnector
from isthmus.upstream.dialin.server_names import twin_id
from isthmus.upstream.listing import Listing

log = structlog.get_logger(__name__)

LEFT_OUT = " (max_tools)"
"""The end of the note about tools over the limit."""


class AgentServer:
    """One server of an agent, across its connections."""

    __slots__ = (
        "_tools",
        "agent",
        "came",
        "is_elsewhere",
        "is_named",
        "last_note",
        "offered",
        "reconnector",
        "server_id",
        "since",
        "title",
        "welcome",
    )

    def __init__(self, agent: DialInAgent, server_id: str, reconnector: DialInReconnector, came: float) -> None:
        self.agent = agent
        self.server_id = server_id
        self.reconnector = reconnector
        self.is_named = False
        """Its client chose the id when it connected; otherwise the id is made from the server's own name."""
        self.is_elsewhere = False
        """It dialled in last at another node of the cluster, which stores it."""
        self.offered = 0
        """How many tools it has, including those over the limit."""
        self.last_note: str | None = None
        """The last logged note about tools over the limit."""
        self._tools = 0
        self.came = came
        """When it connected for the first time."""
        self.since = came
        """When it last connected or disconnected."""
        self.title: str | None = None
        """Title and version from its `serverInfo`."""
        self.welcome = b""
        """See `core.ports.DialledInServer`."""

    @property
    def server(self) -> ServerName:
        """Its name in the hub."""
        return self.reconnector.settings.name

    @property
    def is_here(self) -> bool:
        """Whether it is connected and listed."""
        return self.reconnector.link is not None

    @property
    def is_trimmed(self) -> bool:
        """Whether some of its tools are left out because of the limit."""
        return left_out(self.reconnector.listing) is not None

    def trim(self, listing: Listing) -> Listing:
        """The listing within the limit of its agent; tools of absent servers make room for it."""
        if left_out(listing) is None:  # otherwise it was trimmed before
            self.offered = len(listing.tools)
        kept = self._cut(listing, self.agent.max_tools - self.agent.tools_here(beside=self))
        self.agent.fit(self, len(kept.tools))
        return kept

    def shorten(self, room: int) -> None:
        """Keep only this many tools."""
        self.reconnector.replace_list(self._cut(self.reconnector.listing, room))

    def _cut(self, listing: Listing, room: int) -> Listing:
        kept = cut(listing, room, self.agent.max_tools, self.offered)
        note = left_out(kept)
        if note is not None and note != self.last_note:
            self.last_note = note
            log.warning("tools of a server are left out", server=self.server, agent=self.agent.key, reason=note)
        return kept

    def has_fewer_tools(self) -> bool:
        """Whether it has fewer tools than at the last call of this method."""
        before, self._tools = self._tools, len(self.reconnector.listing.tools)
        return self._tools < before

    def likeness(self, tools: Set[str]) -> float:
        """The similarity of its tools and these, from 0 to 1."""
        own = {tool.name for tool in self.reconnector.listing.tools}
        return len(own & tools) / (len(own | tools) or 1)

    def use_link(self, link: DialInLink) -> None:
        """Use an initialized and listed link for this server."""
        link.trim = self.trim
        link.listing = self.trim(link.listing)
        if link.server_info is not None:
            self.title = f"{link.server_info.title or link.server_info.name} {link.server_info.version}".strip()
        self.welcome = link.welcome
        self.is_elsewhere = link.announced is not None
        self.reconnector.use_link(link)

    def status(self) -> DialledServer:
        """Its state for people."""
        reconnector, link = self.reconnector, self.reconnector.link
        return DialledServer(
            self.agent.key,
            self.server_id,
            self.server,
            "away" if link is None else "ready",
            self.since,
            tuple(tool.name for tool in reconnector.listing.tools),
            self.title,
            reconnector.server_status.reason,
            None if link is None else link.client,
            link is not None and link.is_muxed,
            reconnector.server_queue.running + reconnector.server_queue.queued,
        )

    def record(self, now: float) -> ServerRecord:
        """Its state for the journal."""
        reconnector = self.reconnector
        return ServerRecord(
            self.agent.key,
            self.server_id,
            self.server,
            reconnector.listing,
            reconnector.server_status.abilities,
            self.came,
            now,
            self.is_here,
            self.is_named,
            self.title,
        )


class DialInAgent:
    """The servers of one agent, in the order of their first connection."""

    __slots__ = (
        "__weakref__",
        "_arriving",
        "_elsewhere",
        "_is_to_make_room",
        "_list",
        "_servers",
        "_watchers",
        "connections",
        "key",
        "max_tools",
    )

    def __init__(self, key: str, max_tools: int) -> None:
        self.key = key
        self.max_tools = max_tools
        """The limit for all its servers together."""
        self.connections = 0
        """The number of its servers' sockets."""
        self._servers: dict[str, AgentServer] = {}
        self._list: tuple[AgentServer, ...] = ()
        self._arriving: dict[DialInLink, ConnectingServer] = {}
        self._elsewhere: dict[tuple[str, int], tuple[ConnectingServer, float]] = {}
        """Servers that connect to other nodes of a cluster, by node and a number of it, and when they came."""
        self._watchers: dict[Callable[[], None], None] = {}
        self._is_to_make_room = False

    @property
    def agent(self) -> str:
        """See `core.ports.AgentServers`."""
        return self.key

    def servers(self) -> Sequence[AgentServer]:
        """See `core.ports.AgentServers`."""
        return self._list

    def agent_server(self, server_id: str) -> AgentServer | None:
        """The server with this id."""
        return self._servers.get(server_id)

    def add(self, agent_server: AgentServer) -> None:
        """Add a server, unless it is there already."""
        if agent_server.server_id not in self._servers:
            self._servers[agent_server.server_id] = agent_server
            if agent_server.is_elsewhere:  # it may have connected before others that are known longer
                self._servers = dict(sorted(self._servers.items(), key=lambda entry: entry[1].came))
            self.changed()

    def remove(self, agent_server: AgentServer) -> None:
        """Remove a server."""
        if self._servers.get(agent_server.server_id) is agent_server:
            del self._servers[agent_server.server_id]
            self.changed()

    def changed(self) -> None:
        """The list of servers, or a name in it, has changed: replace the tuple, so that comparisons see it."""
        self._list = tuple(self._servers.values())
        self.notify()

    def place_for(self, name: str, tools: Set[str], alive: Set[DialInLink]) -> tuple[str, list[DialInLink]]:
        """The id for a server that has only a name, and the links to ping before that is certain.

        It is the absent server of this name whose tools are most similar, because many programs share one name; if none
        is absent, the id is new. A connected server that is more similar may be a dead connection of the same program.
        """
        servers: list[AgentServer] = []
        while (agent_server := self._servers.get(twin_id(name, len(servers) + 1))) is not None:
            servers.append(agent_server)
        fit = {agent_server: (agent_server.likeness(tools), -number) for number, agent_server in enumerate(servers)}
        best = max(
            (agent_server for agent_server in servers if not agent_server.is_here), key=fit.__getitem__, default=None
        )
        unsure = [
            agent_server.reconnector.link for agent_server in servers if best is None or fit[agent_server] > fit[best]
        ]
        place = twin_id(name, len(servers) + 1) if best is None else best.server_id
        return place, [link for link in unsure if link is not None and link not in alive]

    def longest_away(self) -> AgentServer | None:
        """The server that is away longest; None if all are connected."""
        return min(
            (agent_server for agent_server in self._list if not agent_server.is_here),
            key=lambda agent_server: agent_server.since,
            default=None,
        )

    # -- tools -----------------------------------------------------------------------------------------------------

    def tools_here(self, beside: AgentServer) -> int:
        """The number of tools of all other connected servers."""
        return sum(
            len(agent_server.reconnector.listing.tools)
            for agent_server in self._list
            if agent_server.is_here and agent_server is not beside
        )

    def fit(self, beside: AgentServer | None = None, tools: int = 0) -> None:
        """Enforce the limit if server `beside` has this many tools. Servers that are away longest lose tools first."""
        others = [agent_server for agent_server in self._list if agent_server is not beside]
        excess = tools + sum(len(agent_server.reconnector.listing.tools) for agent_server in others) - self.max_tools
        if excess <= 0:
            return
        away = sorted(
            (agent_server for agent_server in others if not agent_server.is_here),
            key=lambda agent_server: agent_server.since,
        )
        for agent_server in (*away, *(agent_server for agent_server in reversed(others) if agent_server.is_here)):
            had = len(agent_server.reconnector.listing.tools)
            if had and excess > 0:
                agent_server.shorten(max(0, had - excess))
                excess -= had

    def limit(self, max_tools: int) -> None:
        """Apply a new limit, also to the known servers."""
        if max_tools != self.max_tools:
            self.max_tools = max_tools
            self.fit()
            self.look_at_trimmed()

    def make_room(self, after: float) -> None:
        """After this time, list trimmed servers again, so that tools of absent ones make room."""
        if not self._is_to_make_room and any(agent_server.is_trimmed for agent_server in self._list):
            self._is_to_make_room = True
            asyncio.get_running_loop().call_later(after, self._make_room)

    def _make_room(self) -> None:
        self._is_to_make_room = False
        self.look_at_trimmed()

    def look_at_trimmed(self, beside: AgentServer | None = None) -> None:
        """List trimmed servers again: there may be room for their tools."""
        for agent_server in self._list:
            if agent_server.is_trimmed and agent_server is not beside:
                agent_server.reconnector.relist_soon()

    # -- connecting servers ----------------------------------------------------------------------------------------

    def expect(self, link: DialInLink, label: str, *, is_named: bool) -> None:
        """Add a server that is connected and not listed yet."""
        self._arriving[link] = ConnectingServer(label, is_named, asyncio.get_running_loop().create_future())

    def has_come(self, link: DialInLink) -> None:
        """The server of this link is listed, or has disconnected."""
        if (arrival := self._arriving.pop(link, None)) is None:
            return
        if link.trim is None:
            arrival.ended.cancel()
        else:
            arrival.ended.set_result(None)

    def expect_elsewhere(self, where: tuple[str, int], label: str, came: float, *, is_named: bool) -> None:
        """Add a server that is connected to another node, and not listed yet."""
        arrival = ConnectingServer(label, is_named, asyncio.get_running_loop().create_future())
        self._elsewhere[where] = arrival, came

    def arrived_at_other_node(self, where: tuple[str, int], *, is_here: bool) -> None:
        """A server that connected to another node is now listed here too (`is_here`), or has disconnected."""
        arrival, _ = self._elsewhere.pop(where, (None, 0.0))
        if arrival is None:
            return
        if is_here:
            arrival.ended.set_result(None)
        else:
            arrival.ended.cancel()

    def older_elsewhere(self, came: float, least: float) -> list[asyncio.Future[None]]:
        """Servers that connected to other nodes before this time, and not before `least`."""
        return [arrival.ended for arrival, then in self._elsewhere.values() if least <= then < came]

    def arriving(self) -> Sequence[ConnectingServer]:
        """See `core.ports.AgentServers`."""
        if not self._arriving and not self._elsewhere:
            return ()
        return (*self._arriving.values(), *(arrival for arrival, _ in self._elsewhere.values()))

    def arrivals(self) -> tuple[tuple[DialInLink, str], ...]:
        """Links that are not listed yet, with the ids of their servers as far as they are known."""
        return tuple((link, arrival.label) for link, arrival in self._arriving.items())

    # -- notifications ---------------------------------------------------------------------------------------------

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """See `core.ports.AgentServers`."""
        self._watchers[callback] = None
        return lambda: self._watchers.pop(callback, None)

    def notify(self) -> None:
        """Notify the watchers of a change."""
        for watcher in tuple(self._watchers):
            try:
                watcher()
            except Exception:  # one broken watcher must not stop the others
                log.exception("a watcher of an agent failed", agent=self.key)


def cut(listing: Listing, room: int, limit: int, offered: int) -> Listing:
    """A listing with at most `room` tools; a note says how many were left out."""
    tools = listing.tools
    if len(tools) <= room:
        return listing
    kept = tools[: max(0, room)]
    others = [note for note in listing.notes.get("tools", ()) if not note.endswith(LEFT_OUT)]
    note = f"{offered - len(kept)} of its {offered} tools left out: an agent may have {limit} in all{LEFT_OUT}"
    return msgspec.structs.replace(listing, tools=kept, notes={**listing.notes, "tools": (*others, note)})


def left_out(listing: Listing) -> str | None:
    """The note about tools that were left out; None if every tool is listed."""
    return next((note for note in listing.notes.get("tools", ()) if note.endswith(LEFT_OUT)), None)
