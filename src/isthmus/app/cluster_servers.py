"""Servers that one node of the cluster owns, on all nodes: a server that dials in belongs to the node with its socket.

Each node follows the directory of every other one: a channel on which that node sends the servers that it owns, and
then what changes. For each of them it opens a channel to the owner and uses it as a server that dials in
(`DialInRegistry.accept_node`), so that lists, names, relay devices, calls and what is said of their failures are the
same as at the owner. The owner answers with an MCP session on the surface of that one server, as `isthmus dial` does.
The calling node has checked the caller, and names it for the owner's queue, log and audit log.

Of several sockets of one server, at different nodes, the newest counts, as on one node.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TypeAlias

import msgspec
import structlog

from isthmus.app.hub import RunningHub
from isthmus.app.jsonrpc_over_bus import MessageChannel, frame
from isthmus.app.links import ME
from isthmus.app.placement import PlacedServers
from isthmus.app.served_session import ServedServer, ServedSession, UnansweredBytes
from isthmus.cluster.bus import Bus, BusChannel, BusFault, ChannelClosed, ChannelEnd, ChannelFull, NodeId
from isthmus.core.background import BackgroundTasks
from isthmus.core.event_loop import in_turn
from isthmus.frontends.mcp.duplex import CallOrigin
from isthmus.frontends.relay.server_arrivals import NODES_SECONDS
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Surface
from isthmus.model.names import ServerName
from isthmus.upstream.dialin.agents import AgentServer, DialInAgent
from isthmus.upstream.dialin.link import DialInLink, NodeServer, PlacedLink
from isthmus.upstream.dialin.registry import MOVE_LOOK_SECONDS, MOVE_SECONDS
from isthmus.upstream.reconnector import Backoff
from isthmus.wire.mcp.messages import CALLER_KEY, Implementation, Members, read_caller

log = structlog.get_logger(__name__)

DIRECTORY, SERVER, ALIVE = "servers", "server", "server.alive"
"""The services of the bus: the servers that a node owns, one of them, and whether its socket is alive."""

FRONTEND = "node"
"""The frontend's name in the owner's audit log."""

CONNECT_SECONDS = 5.0
AGAIN_SECONDS_MAX = 2.0
"""The longest pause before a channel is opened again; a node that is away is not tried at all."""

GREETING_SECONDS = 0.1
"""How long a node that starts waits for the greetings of others, which answer at once."""

SETTLE_SECONDS = 3.0
"""The longest time that a node reads the servers of others before it serves its callers."""

KEYS_AT_ONCE_MAX = 100
"""Servers that are looked at in one turn of the event loop: each takes up to 40 µs, and a node may have thousands."""

OPENING_MAX = 64
"""Servers of other nodes that are being initialized: a node that joins may find thousands."""

Key: TypeAlias = tuple[str, str]
"""The key of an agent, and the id of a server of it."""

OpenLink: TypeAlias = Callable[[NodeId, NodeServer], Awaitable[DialInLink]]


class ArrivingServer(msgspec.Struct, frozen=True):
    """A server that has connected to a node, and is not listed yet: devices at all nodes wait for it."""

    number: int
    """Of this arrival at its node."""
    agent: str
    """The key of its agent."""
    label: str
    """Its id, as far as it is known."""
    is_named: bool
    came: float
    """See `NodeServer`."""


class DirectoryChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a directory. The first has all servers."""

    own: tuple[NodeServer, ...] = ()
    lost: tuple[Key, ...] = ()
    arriving: tuple[ArrivingServer, ...] = ()
    arrived: tuple[tuple[int, str | None], ...] = ()
    """Arrivals that are over: their numbers, and the ids of the servers that are listed."""
    is_moving: bool = False
    """The node shuts down: the lost servers will connect to other nodes."""
    echo: int | None = None
    """The number that the reader has sent: it has everything that was known here then. The first message has 0."""


class ServerOpened(msgspec.Struct, frozen=True):
    """The owner's first message on a server's channel."""

    welcome: str
    """The server's own result of `initialize`, for devices."""


_CHANGE = msgspec.json.Decoder(DirectoryChange)
_SERVER = msgspec.json.Decoder(NodeServer)
_OPENED = msgspec.json.Decoder(ServerOpened)


# -- the servers of this node ------------------------------------------------------------------------------------------


class OwnServers:
    """Tells the other nodes which servers this node owns, and serves them there."""

    def __init__(self, bus: Bus, running: RunningHub) -> None:
        self._bus = bus
        self._running = running
        self._background = running.background
        self._share = UnansweredBytes()
        self.entries: dict[Key, NodeServer] = {}
        self._changed: dict[Key, None] = {}
        self._arriving: dict[DialInLink, ArrivingServer] = {}
        self._new_arrivals: list[ArrivingServer] = []
        self._arrived: list[tuple[int, str | None]] = []
        self._arrivals = 0
        self._is_telling = False
        self._readers: set[BusChannel] = set()
        self._sessions: dict[Key, set[OwnSession]] = {}
        self._is_leaving = self._is_moving = False
        self.placed: PlacedServers | None = None
        """The programs that this node runs for the others."""
        self.on_changed: Callable[[Key], None] = lambda _key: None
        """Called when this node has begun or ceased to own a server."""
        bus.serve(DIRECTORY, self._add_reader)
        bus.serve(SERVER, self._open)
        bus.respond(ALIVE, self._is_alive)

    def server_changed(self, agent_server: AgentServer) -> None:
        """A server's state has changed."""
        key = agent_server.agent.key, agent_server.server_id
        link = agent_server.reconnector.link
        is_here = link is not None and link.announced is None and not self._is_leaving
        entry = _entry(agent_server, link) if link is not None and is_here else None
        if self.entries.get(key) == entry:
            return
        if entry is None:
            del self.entries[key]
        else:
            self.entries[key] = entry
        self._changed[key] = None
        self._announce_soon()  # first: without it, calls that wait for a server that moves are refused
        for session in tuple(self._sessions.get(key, ())):
            session.leave()
        self.on_changed(key)

    def note_arriving(self, link: DialInLink, label: str, is_named: bool) -> None:  # noqa: FBT001 - of `on_arriving`
        """A server has connected to this node."""
        self._arrivals += 1
        arrival = self._arriving[link] = ArrivingServer(self._arrivals, link.claim.key, label, is_named, link.came)
        self._new_arrivals.append(arrival)
        self._announce_soon()

    def note_arrived(self, link: DialInLink, server_id: str | None) -> None:
        """Such a server is listed, or has gone."""
        if (arrival := self._arriving.pop(link, None)) is not None:
            self._arrived.append((arrival.number, server_id))
            self._announce_soon()

    def announce(self, key: Key, entry: NodeServer | None) -> None:
        """This node runs a program for the others, or does so no longer; see `app.placement`."""
        if self._is_leaving or self.entries.get(key) == entry:
            return
        if entry is None:
            del self.entries[key]
            for session in tuple(self._sessions.get(key, ())):
                session.leave()
        else:
            self.entries[key] = entry
        self._changed[key] = None
        self._announce_soon()

    def names(self) -> tuple[str, ...]:
        """The names of the servers that this node owns."""
        return tuple(sorted(entry.name for entry in self.entries.values() if entry.is_owned))

    def sessions_of(self, key: Key) -> int:
        """How many other nodes use a server of this one."""
        return len(self._sessions.get(key, ()))

    def move(self) -> list[Key]:
        """This node shuts down soon: its dial-in servers will connect to other nodes, where calls wait for them.

        They are returned, and announced as lost when they leave. Running calls are still answered, and one that has
        asked a caller something leaves later.
        """
        self._is_moving = True
        self._announce()
        return [key for key, entry in self.entries.items() if not entry.is_placed]

    def leave(self) -> None:
        """This node is shutting down: others use its servers no longer, and their running calls are still answered."""
        self._is_leaving = self._is_moving = True
        for key in tuple(self.entries):
            del self.entries[key]
            self._changed[key] = None
        for sessions in tuple(self._sessions.values()):
            for session in tuple(sessions):
                session.leave()
        self._announce()

    async def wait_idle(self) -> None:
        """Return once every session has ended, after `leave`."""
        while ending := [each.ending for sessions in self._sessions.values() for each in sessions if each.ending]:
            await asyncio.wait(ending)

    # -- the directory ---------------------------------------------------------------------------------------------

    def _add_reader(self, channel: BusChannel) -> None:
        self._readers.add(channel)
        channel.start(_Reader(partial(self._readers.discard, channel), partial(self._echo, channel)))
        own, arriving = tuple(self.entries.values()), tuple(self._arriving.values())
        self._send(channel, DirectoryChange(own, arriving=arriving, is_moving=self._is_moving, echo=0))

    def _echo(self, channel: BusChannel, number: int) -> None:
        self._announce_if_due()
        self._send(channel, DirectoryChange(is_moving=self._is_moving, echo=number))

    def _announce_soon(self) -> None:
        if not self._is_telling:
            self._is_telling = True
            asyncio.get_running_loop().call_soon(self._announce_if_due)

    def _announce_if_due(self) -> None:
        if self._is_telling:
            self._announce()

    def _announce(self) -> None:
        self._is_telling = False
        changed, self._changed = self._changed, {}
        own = tuple(self.entries[key] for key in changed if key in self.entries)
        lost = tuple(key for key in changed if key not in self.entries)
        arriving, self._new_arrivals = tuple(self._new_arrivals), []
        arrived, self._arrived = tuple(self._arrived), []
        for channel in tuple(self._readers):
            self._send(channel, DirectoryChange(own, lost, arriving, arrived, self._is_moving))

    def _send(self, channel: BusChannel, change: DirectoryChange) -> None:
        try:
            channel.send(msgspec.json.encode(change))
        except ChannelClosed:
            self._readers.discard(channel)
        except ChannelFull:  # it reads again from the beginning
            self._readers.discard(channel)
            channel.abort("it does not read the directory")

    # -- one server ------------------------------------------------------------------------------------------------

    def _open(self, channel: BusChannel) -> None:
        session = OwnSession(self, channel, self._background, self._running.hub.limits.request_bytes)
        session.start()

    def open_session(self, session: OwnSession, wanted: NodeServer) -> ServedSession | None:
        """Serve one server in a session; None if it is not here any more."""
        if wanted.is_placed:
            if self.placed is None or not self.placed.is_served(wanted.name):
                return None
            server, welcome, me = ServerName(wanted.name), "", Implementation(wanted.name, ME.version)
        else:
            found = self._running.dialins.local_link(*wanted.key)
            entry = self.entries.get(wanted.key)
            # The socket is compared, and nothing else: an older node leaves out members that it does not know.
            if found is None or entry is None or entry.came != wanted.came:
                return None
            agent_server, link = found
            server, welcome = agent_server.server, agent_server.welcome.decode("utf-8", "replace")
            me = link.server_info or Implementation(agent_server.server_id, ME.version)
            # Its node uses one channel at a time: it has left the earlier one, and waits only for answers there.
            for earlier in tuple(self._sessions.get(wanted.key, ())):
                if earlier.node == session.node:
                    earlier.leave()
        session.key = wanted.key
        self._sessions.setdefault(wanted.key, set()).add(session)
        session.send(msgspec.json.encode(ServerOpened(welcome)))
        served = _served(server, me, session.node)
        lag_bytes = self._running.hub.limits.lag_bytes
        return ServedSession(
            self._running, self._share, served, session.send, lambda: session.buffered_bytes() > lag_bytes
        )

    def closed(self, session: OwnSession) -> None:
        """A session has ended."""
        sessions = self._sessions.get(session.key, set())
        sessions.discard(session)
        if not sessions:
            self._sessions.pop(session.key, None)

    async def _is_alive(self, _: NodeId, payload: bytes) -> bytes:
        wanted = _SERVER.decode(payload)
        if wanted.is_placed:
            return b"true" if self.placed is not None and self.placed.is_served(wanted.name) else b"false"
        found = self._running.dialins.local_link(*wanted.key)
        return b"true" if found is not None and await found[1].channel.is_alive(CONNECT_SECONDS) else b"false"


def _entry(agent_server: AgentServer, link: DialInLink) -> NodeServer:
    return NodeServer(
        link.claim.agent,
        link.claim.tenant,
        agent_server.server_id,
        agent_server.server,
        is_named=agent_server.is_named,
        came=link.came,
        first=agent_server.came,
    )


def _served(server: ServerName, me: Implementation, node: NodeId) -> ServedServer:
    """Serve a server to another node, which has checked its callers and names them."""
    grants = Grants((f"{server}.*",))
    caller = Caller(f"node {node}", "", grants)

    def origin_of(meta: Members) -> CallOrigin:
        named = read_caller(meta.get(CALLER_KEY))
        if named is None:
            return CallOrigin(caller, is_admitted=True)
        return CallOrigin(
            Caller(named.name, named.tenant, grants), named.session, named.shares, named.sharer, is_admitted=True
        )

    # Tools of the hub itself, such as those of tool search, are the calling node's.
    surface = Surface("own", server, expose="all")
    gone = f"{server} is no longer connected to this node"
    return ServedServer(me, caller, surface, origin_of, session=f"node {node}", frontend=FRONTEND, gone=gone)


class OwnSession:
    """The owner's end of a server's channel. It is the channel's `MessageReceiver`."""

    def __init__(self, own: OwnServers, channel: BusChannel, background: BackgroundTasks, limit_bytes: int) -> None:
        self.node = channel.peer
        self.key: Key = ("", "")
        """Of the server, once that is served."""
        self._own = own
        self._channel = MessageChannel(channel, background, limit_bytes)
        self._channel.receiver = self
        self._background = background
        self._served: ServedSession | None = None
        self._unsent: list[bytes] = []
        self.ending: asyncio.Task[None] | None = None
        """Waits until everything is answered, after `leave`."""
        self.buffered_bytes = self._channel.buffered_bytes

    def start(self) -> None:
        """Read the first message, which names the server."""
        self._channel.start()

    def read(self, text: bytes | memoryview) -> None:
        """See `MessageReceiver`."""
        if self._served is not None:
            self._served.receive(bytes(text))
            return
        served = self._own.open_session(self, _SERVER.decode(text))
        if served is None:
            self._channel.close(1000, "the server is not connected to this node")
        else:
            self._served = served

    def send(self, message: bytes) -> None:
        """Send a message, together with the others of this turn of the event loop."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._write)
        self._unsent.append(frame(message))

    def _write(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent:
            self._channel.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))

    def flush(self) -> None:
        """See `MessageReceiver`; nothing is held here."""

    def silent(self, confirmed: int) -> None:
        """See `NodeMessageReceiver`; nothing is awaited here."""

    def leave(self) -> None:
        """The server is gone from here: accepted calls are answered, then the channel is closed."""
        if self._served is not None and self.ending is None:
            self._served.leave()
            self.ending = self._background.spawn(f"end of a session with {self.node}", self._finish(self._served))

    async def _finish(self, served: ServedSession) -> None:
        await served.finish()
        while served.has_asked():  # callers of other nodes are answering questions of this server
            await asyncio.sleep(MOVE_LOOK_SECONDS)
            await served.finish()
        self._write()
        self._channel.close(1000, "the server is no longer connected to its node")
        self.connection_ended("the server is no longer connected to this node")

    def connection_ended(self, reason: str) -> None:
        """See `MessageReceiver`. The other node's calls are cancelled."""
        self._own.closed(self)
        if self._served is not None:
            self._served.end(f"node {self.node} is not connected: {reason}")


class _Reader:
    """The owner's end of a directory. The reader sends only numbers, which are echoed."""

    def __init__(self, on_closed: Callable[[], None], echo: Callable[[int], None]) -> None:
        self._on_closed = on_closed
        self._echo = echo

    def message(self, message: bytes) -> None:
        """See `ChannelReceiver`."""
        self._echo(int(message))

    def writable(self) -> None:
        """See `ChannelReceiver`."""

    def silent(self, confirmed: int) -> None:
        """See `ChannelReceiver`."""

    def closed(self, end: ChannelEnd) -> None:
        """See `ChannelReceiver`."""
        self._on_closed()


# -- the servers of other nodes ----------------------------------------------------------------------------------------


class RemoteServers:
    """Uses the servers of all other nodes, as their directories say."""

    def __init__(self, bus: Bus, running: RunningHub, own: OwnServers) -> None:
        self._bus = bus
        self._running = running
        self._background = running.background
        self._own = own
        own.on_changed = self._look_soon
        self._directories: dict[NodeId, PeerDirectory] = {}
        self._owners: dict[Key, dict[NodeId, NodeServer]] = {}
        self._links: dict[Key, RemoteServer] = {}
        self._arriving: dict[tuple[NodeId, int], DialInAgent] = {}
        self._to_look: dict[Key, None] = {}
        self._opening = asyncio.Semaphore(OPENING_MAX)
        self._asked = 0
        """The number that was last sent to the other nodes, to be echoed."""
        self._silent: set[NodeId] = set()
        """Nodes that have not echoed it."""
        self._asking: asyncio.Future[None] | None = None
        """Done when they all have."""
        self._asking_next: asyncio.Future[None] | None = None
        """The same, for what was asked meanwhile."""
        self._asking_timer: asyncio.TimerHandle | None = None
        self.is_closing = False
        bus.on_peers_changed(self._peers_changed)
        self._peers_changed()

    def owned(self) -> dict[NodeId, list[str]]:
        """The names of the servers that each of the other nodes owns."""
        found: dict[NodeId, list[str]] = {}
        for owners in self._owners.values():
            for node, entry in owners.items():
                if entry.is_owned:
                    found.setdefault(node, []).append(entry.name)
        return found

    async def move_own(self) -> None:
        """This node shuts down: return when the servers that dialled in have connected to other nodes, or cannot.

        Until then this node still serves its callers, and their calls wait for these servers, too.
        """
        moving = self._own.move()
        self._running.dialins.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(MOVE_SECONDS):
                while not self._have_moved(moving):  # noqa: ASYNC110 - once in a node's life
                    await asyncio.sleep(MOVE_LOOK_SECONDS)

    def _have_moved(self, keys: Sequence[Key]) -> bool:
        """Whether other nodes have these servers, or none will."""
        return not self.can_move() or all(map(self._is_used, keys))

    def can_move(self) -> bool:
        """Whether another node takes servers of this one: nodes that shut down themselves take none."""
        found = (self._directories.get(node) for node in self._bus.peers())
        return any(directory is None or not directory.is_moving for directory in found)

    def _is_used(self, key: Key) -> bool:
        remote = self._links.get(key)
        return remote is not None and remote.can_send()

    async def settle(self) -> None:
        """This node starts: return when it has the servers of the others, or cannot have them soon."""
        if not self._bus.state.is_connected:
            return
        await asyncio.sleep(GREETING_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                while not self._has_all():  # noqa: ASYNC110 - once in a node's life
                    await asyncio.sleep(GREETING_SECONDS / 4)

    def _has_all(self) -> bool:
        is_read = all(directory.is_read for directory in self._directories.values())
        return is_read and not self._to_look and not any(remote.work for remote in self._links.values())

    def ask(self) -> asyncio.Future[None] | None:
        """Ask the other nodes which servers have connected there; None if there are no others.

        The future is done when this node knows all that they know now, or when one of them does not answer. While one
        question is under way, all further ones share the next.
        """
        if self._asking_next is None:
            if not any(directory.can_echo for directory in self._directories.values()):
                return None
            self._asking_next = asyncio.get_running_loop().create_future()
        asked = self._asking_next
        if self._asking is None:
            self._ask_now()
        return asked

    def _ask_now(self) -> None:
        self._asking, self._asking_next = self._asking_next, None
        self._asked += 1
        self._silent = {node for node, directory in self._directories.items() if directory.ask(self._asked)}
        self._asking_timer = asyncio.get_running_loop().call_later(NODES_SECONDS, self._end_asking)
        if not self._silent:
            self._end_asking()

    def _echoed(self, node: NodeId) -> None:
        if node in self._silent:
            self._silent.discard(node)
            if not self._silent:
                self._end_asking()

    def _end_asking(self) -> None:
        asking, self._asking = self._asking, None
        self._silent = set()
        if self._asking_timer is not None:
            self._asking_timer.cancel()
        if asking is not None:
            asking.set_result(None)
        if self._asking_next is not None:
            self._ask_now()

    def _peers_changed(self) -> None:
        peers = self._bus.peers()
        for node, directory in tuple(self._directories.items()):
            if node not in peers or peers[node].epoch != directory.epoch:
                del self._directories[node]
                directory.stop()
        for node, peer in peers.items():
            # A node that has announced nothing is still starting.
            if node not in self._directories and peer.attributes and not self.is_closing:
                self._directories[node] = PeerDirectory(self._bus, self._background, node, peer.epoch, self._changed)

    def _changed(self, node: NodeId, change: DirectoryChange) -> None:
        """A node has begun to own servers, or owns them no longer."""
        for arrival in change.arriving:
            self._running.dialins.note_came(arrival.came)
            agent = self._arriving[node, arrival.number] = self._running.dialins.roster(arrival.agent)
            agent.expect_elsewhere((node, arrival.number), arrival.label, arrival.came, is_named=arrival.is_named)
        for entry in change.own:
            self._owners.setdefault(entry.key, {})[node] = entry
            if not entry.is_placed:
                self._running.dialins.note_came(entry.came)
                self._look_soon(entry.key)
            elif self._own.placed is not None:
                self._own.placed.set_owner(node, entry.name, entry)
        for key in change.lost:
            if change.is_moving:
                self._running.dialins.await_move(*key)
            owners = self._owners.get(key, {})
            gone = owners.pop(node, None)
            if gone is not None and not gone.is_placed:
                self._look_soon(key)
            elif gone is not None and self._own.placed is not None:
                self._own.placed.set_owner(node, gone.name, None)
            if not owners:
                self._owners.pop(key, None)
        for number, server_id in change.arrived:
            arrived_at = self._arriving.pop((node, number), None)
            if arrived_at is None:
                pass
            elif server_id is None:
                arrived_at.arrived_at_other_node((node, number), is_here=False)
            else:  # after `_look`, which opens a link to it
                key = arrived_at.key, server_id
                asyncio.get_running_loop().call_soon(self._await_link, arrived_at, (node, number), key)
        if change.echo == self._asked:
            self._echoed(node)

    def _await_link(self, agent: DialInAgent, where: tuple[NodeId, int], key: Key) -> None:
        """End the arrival of a server when it is listed here, too."""
        if key in self._to_look:
            in_turn(partial(self._await_link, agent, where, key))
            return
        remote = self._links.get(key)
        work = None if remote is None else remote.work
        if work is None:
            agent.arrived_at_other_node(where, is_here=True)
        else:
            work.add_done_callback(lambda _: agent.arrived_at_other_node(where, is_here=True))

    def _look_soon(self, key: Key) -> None:
        if not self._to_look:
            asyncio.get_running_loop().call_soon(self._check_keys)
        self._to_look[key] = None

    def _check_keys(self) -> None:
        keys = list(islice(self._to_look, KEYS_AT_ONCE_MAX))
        for key in keys:
            del self._to_look[key]
        if self._to_look:
            in_turn(self._check_keys)
        for key in keys:
            if not self.is_closing:
                self._decide(key)

    def _decide(self, key: Key) -> None:
        """Use a server at the node with its newest socket; that may be this one."""
        owners, here = self._owners.get(key, {}), self._own.entries.get(key)
        best = max(owners, key=lambda node: (owners[node].came, node), default=None)
        remote = self._links.get(key)
        if best is None:
            if remote is not None:
                remote.leave()
                if remote.work is None:  # else it looks again afterwards
                    del self._links[key]
            return
        if here is not None and (here.came, self._bus.node) > (owners[best].came, best):
            return
        if here is not None:
            self._running.dialins.give_up(*key)  # it calls `note`, and this again
            return
        if remote is None:
            remote = self._links[key] = RemoteServer(self._background, self._open, partial(self._look_soon, key))
        remote.use(best, owners[best])

    async def _open(self, node: NodeId, entry: NodeServer) -> DialInLink:
        """A link to a server of another node, which is listed by then, or lost."""
        async with self._opening:
            messages = await self._connect(node, entry)
            link, arrival = self._running.dialins.accept_node(messages, entry)
            messages.receiver = _Opening(messages, link)
            messages.start()
            if arrival is not None:
                await asyncio.wait({arrival})
            return link

    async def open_placed(self, node: NodeId, entry: NodeServer) -> PlacedLink:
        """A link to a program that another node runs; its reconnector initializes it. Raises `BusFault`."""
        messages = await self._connect(node, entry)
        hub = self._running.hub
        server = ServerName(entry.name)
        link = PlacedLink(server, ME, hub.limits, messages, entry.claim, is_muxed=True, announced=entry)
        link.on_task, link.on_progress = hub.tasks.notified, hub.tasks.progressed
        messages.receiver = _Opening(messages, link)
        messages.start()
        return link

    async def _connect(self, node: NodeId, entry: NodeServer) -> MessageChannel:
        channel = await self._bus.connect(node, SERVER, within=CONNECT_SECONDS)
        head = msgspec.json.encode(entry)

        async def ping(within: float) -> bool:
            try:
                return await self._bus.request(node, ALIVE, head, within=within) == b"true"
            except BusFault:
                return False

        messages = MessageChannel(channel, self._background, self._running.hub.limits.reply_bytes, ping)
        messages.write(frame(head))
        return messages

    def close(self) -> None:
        """Use no servers of other nodes any more."""
        self.is_closing = True
        for directory in self._directories.values():
            directory.stop()
        for remote in self._links.values():
            remote.close()


class PeerDirectory:
    """Follows the directory of one life of one node."""

    def __init__(
        self,
        bus: Bus,
        background: BackgroundTasks,
        node: NodeId,
        epoch: int,
        on_changed: Callable[[NodeId, DirectoryChange], None],
    ) -> None:
        self.epoch = epoch
        self.is_read = False
        """Its first message has come."""
        self.is_moving = False
        """The node shuts down."""
        self._bus = bus
        self._node = node
        self._on_changed = on_changed
        self._known: dict[Key, None] = {}
        self._arriving: set[int] = set()
        self._asked: int | None = None
        self.can_echo = False
        """Its node echoes numbers, and can be reached."""
        self._channel: BusChannel | None = None
        self._ended = asyncio.Event()
        self._is_stopped = False
        background.spawn(f"servers of {node}", self._follow())

    async def _follow(self) -> None:
        backoff = Backoff(AGAIN_SECONDS_MAX)
        while not self._is_stopped:
            try:
                channel = await self._bus.connect(self._node, DIRECTORY, within=CONNECT_SECONDS)
            except BusFault as fault:
                log.debug("the server list of a node cannot be read", node=self._node, reason=str(fault))
            else:
                backoff.reset()
                self._read(channel)
                await self._ended.wait()
            if not self._is_stopped:
                await asyncio.sleep(backoff.next(random.random()))  # noqa: S311 - spread, not secrecy

    def _read(self, channel: BusChannel) -> None:
        if self._is_stopped:  # while the channel was opened; `_ended` is set
            channel.abort("it is no longer read")
            return
        self._channel = channel
        self._ended.clear()
        channel.start(self)

    def ask(self, number: int) -> bool:
        """Have the node echo a number, after everything that it has not sent yet. False if that is not possible."""
        if self._channel is None or not self.can_echo:
            return False
        try:
            self._channel.send(b"%d" % number)
        except BusFault:
            return False
        self._asked = number
        return True

    def stop(self) -> None:
        """The node is away, or this one leaves."""
        self._is_stopped = True
        if self._channel is not None:
            self._channel.abort("it is no longer read")
        self._forget()

    def _forget(self) -> None:
        known, self._known = self._known, {}
        arriving, self._arriving = self._arriving, set()
        self._ended.set()
        self.can_echo = False
        gone = tuple((number, None) for number in arriving)
        self._on_changed(self._node, DirectoryChange(lost=tuple(known), arrived=gone, echo=self._asked))

    def message(self, message: bytes) -> None:
        """See `ChannelReceiver`."""
        if not self._is_stopped:
            change = _CHANGE.decode(message)
            self._known |= dict.fromkeys(entry.key for entry in change.own)
            for key in change.lost:
                self._known.pop(key, None)
            self._arriving |= {arrival.number for arrival in change.arriving}
            self._arriving -= {number for number, _ in change.arrived}
            self.is_moving |= change.is_moving
            self.can_echo |= change.echo is not None
            self._on_changed(self._node, change)
            self.is_read = True

    def writable(self) -> None:
        """See `ChannelReceiver`."""

    def silent(self, confirmed: int) -> None:
        """See `ChannelReceiver`."""

    def closed(self, end: ChannelEnd) -> None:
        """See `ChannelReceiver`."""
        if not self._is_stopped:
            self._forget()


class RemoteServer:
    """One server of another node: opens a link to it, again if it is lost. It has a task only while it does."""

    def __init__(self, background: BackgroundTasks, open_link: OpenLink, look_again: Callable[[], None]) -> None:
        self._background = background
        self._open = open_link
        self._look_again = look_again
        self._wanted: tuple[NodeId, NodeServer] | None = None
        self._used: tuple[NodeId, NodeServer] | None = None
        self._link: DialInLink | None = None
        self.work: asyncio.Task[None] | None = None
        """Opens a link."""
        self._backoff = Backoff(AGAIN_SECONDS_MAX)

    def use(self, node: NodeId, entry: NodeServer) -> None:
        """Use the server at this node."""
        self._wanted = (node, entry)
        if self.work is None and not (self._used == self._wanted and self.can_send()):
            self.work = self._background.spawn(f"channel to {entry.name}", self._connect())

    def can_send(self) -> bool:
        """Whether new calls may be sent on its link: one that leaves only receives the answers to earlier ones."""
        return self._link is not None and not self._link.lost.done() and not self._link.is_leaving

    async def _connect(self) -> None:
        wanted = self._wanted
        try:
            if wanted is None:
                return
            link = await self._open(*wanted)
            self._link, self._used = link, wanted
            if not link.lost.done():
                self._backoff.reset()
                link.lost.add_done_callback(lambda _: self._lost(link))
                return
        except BusFault as fault:
            log.debug("cannot open a channel to a server", node=wanted and wanted[0], reason=str(fault))
        finally:
            self.work = None
            if self._wanted is None or self._wanted != wanted:
                self._look_again()
        self._again()

    def _lost(self, link: DialInLink) -> None:
        if link is self._link:
            self._link = None
            self._again()

    def _again(self) -> None:
        if self._wanted is not None:
            pause = self._backoff.next(random.random())  # noqa: S311 - spread, not secrecy
            asyncio.get_running_loop().call_later(pause, self._look_again)

    def leave(self) -> None:
        """Its node owns it no longer: open calls are still answered, and no new ones may be sent."""
        self._wanted = None
        if self._link is not None and not self._link.lost.done():
            self._link.leaves()

    def close(self) -> None:
        """Use it no longer."""
        self._wanted = None
        if self.work is not None:
            self.work.cancel()


class _Opening:
    """Receives the owner's first message, and passes the others to the link."""

    def __init__(self, messages: MessageChannel, link: DialInLink) -> None:
        self._messages = messages
        self._link = link

    def read(self, text: bytes | memoryview) -> None:
        """See `MessageReceiver`."""
        self._link.welcome = _OPENED.decode(text).welcome.encode()
        self._messages.receiver = self._link

    def flush(self) -> None:
        """See `MessageReceiver`."""
        self._link.flush()

    def silent(self, confirmed: int) -> None:
        """See `NodeMessageReceiver`."""
        self._link.silent(confirmed)

    def connection_ended(self, reason: str) -> None:
        """See `MessageReceiver`."""
        self._link.connection_ended(reason)
