"""The registry of servers that dial in: it accepts, initializes and names them, and keeps absent ones for a while.

The relay frontend passes sockets to `accept` and `accept_mux`; `app` creates the registry. A `DialInReconnector`
maintains each server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Set
from functools import partial
from weakref import WeakValueDictionary

import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.core.event_loop import pause
from isthmus.core.journal import Journal
from isthmus.model.fault_table import Fault
from isthmus.model.names import ServerName
from isthmus.model.relay import Claim, DialledServer, Forgetting
from isthmus.transport.accepted_socket import AcceptedSocket
from isthmus.transport.websocket import MessageReceiver
from isthmus.upstream.base_link import ConnectFailed
from isthmus.upstream.dialin.agents import AgentServer, DialInAgent
from isthmus.upstream.dialin.link import FAILED, NORMAL, REFUSED, DialInChannel, DialInLink, NamedChannel, NodeServer
from isthmus.upstream.dialin.mux import MuxHost
from isthmus.upstream.dialin.registry_store import RegistryStore, ServerRecord
from isthmus.upstream.dialin.server import REPLACED, DialInReconnector
from isthmus.upstream.dialin.server_names import NameClaim, NameRules, own_id
from isthmus.upstream.dialin.settings import DialInSettings
from isthmus.upstream.reconnector import find_loop
from isthmus.upstream.server_settings import REASON_LENGTH_MAX
from isthmus.wire.mcp.messages import Implementation

log = structlog.get_logger(__name__)

ARRIVE_SECONDS = 120.0
"""How long a server may take from its socket to its first list; each single response has less."""

ALIVE_SECONDS = 3.0
"""How long a server may take to answer a ping when another one connects with the same name."""

MAKE_ROOM_SECONDS = 60.0
"""How long the tools of a disconnected server still count against the limit; it may be back at once."""

OLDER_SECONDS = 1.0
"""How long a server waits for others of its agent that connected to other nodes, at most so long before it."""

COMING = "it has not listed its tools yet"

MOVE_SECONDS = 15.0
"""How long calls wait for a server whose node of the cluster shuts down. Clients of the relay try again after a second,
and twice as late each time that they reach a node that is going."""

MOVE_LOOK_SECONDS = 0.05
"""How often a node that shuts down looks whether calls of a server still run."""

MOVE_AT_ONCE_MAX = 100
"""Servers that leave in one turn of the event loop, and sockets that are closed at once then, so that thousands of
servers do not come to the other nodes in one moment."""

CLOCK_STEP_SECONDS = 0.001
"""The least difference between the times of two sockets."""

RESTARTING = 1012
TRY_LATER = 1013


class DialInRegistry:
    """All servers that dial in; the relay frontend's port."""

    def __init__(
        self,
        hub: Hub,
        background: BackgroundTasks,
        me: Implementation,
        settings: DialInSettings,
        now: Callable[[], float] = time.time,
        journal: Journal | None = None,
    ) -> None:
        """Without a `journal` no server survives a restart of the hub. Needs a running loop."""
        self._hub = hub
        self._background = background
        self._me = me
        self._settings = settings
        self._names = NameRules(settings.agents)
        self._now = now
        self._agents: WeakValueDictionary[str, DialInAgent] = WeakValueDictionary()
        """Agents that a server, a socket or a device refers to."""
        self._servers: dict[ServerName, AgentServer] = {}
        self._links: dict[DialInLink, DialInAgent] = {}
        """All connected servers."""
        self._hosts: dict[MuxHost, DialInAgent] = {}
        """Sockets that several servers share."""
        self._connections = 0
        self._came = 0
        """The number of links so far."""
        self._latest = 0.0
        """The latest time of a socket of any node: sockets that open here from now on are later, whatever the clock."""
        self.on_come: Callable[[], None] = lambda: None
        """Called for each server that connects, before it is initialized."""
        self.on_arriving: Callable[[DialInLink, str, bool], None] = lambda _link, _label, _is_named: None
        """Called for each server that connects to this hub, with its id as far as it is known, and whether it is."""
        self.on_arrived: Callable[[DialInLink, str | None], None] = lambda _link, _server_id: None
        """Called when such a server is listed, with its id, or cannot be. It may be called again."""
        self.on_stood: Callable[[AgentServer], None] = lambda _agent_server: None
        """Called when a server's state has changed."""
        self.on_counted: Callable[[str], None] = lambda _agent: None
        """Called with the key of an agent that has one socket more or less."""
        self.on_forgotten: Callable[[ServerName], None] = lambda _server: None
        """Called when the operator has had a server forgotten at this hub."""
        self.asking: Callable[[], Set[ServerName]] = frozenset
        """Returns the servers that wait for answers of callers which return with them in another call."""
        self._away: dict[AgentServer, float] = {}
        """When each absent server disconnected, the earliest first."""
        self._forgetting: asyncio.TimerHandle | None = None
        self._moves: dict[AgentServer, asyncio.TimerHandle] = {}
        """Servers whose calls wait until they have connected to another node."""
        self._is_leaving = False
        self._is_closing = False
        self._remembered = None if journal is None else RegistryStore(journal, background, now)

    # -- for the frontend ------------------------------------------------------------------------------------------

    def roster(self, agent: str) -> DialInAgent:
        """See `frontends.relay.http.DialInPort`."""
        found = self._agents.get(agent)
        if found is None:
            found = self._agents[agent] = DialInAgent(agent, self._settings.max_tools)
        return found

    def servers(self) -> tuple[DialledServer, ...]:
        """See `frontends.relay.http.DialInPort`."""
        seated = [agent_server.status() for agent_server in self._servers.values()]
        coming = [
            DialledServer(
                agent.key,
                label,
                link.server,
                "connecting",
                min(link.came, self._now()),
                reason=COMING,
                client=link.client,
            )
            for agent in set(self._links.values())
            for link, label in agent.arrivals()
        ]
        return (*seated, *coming)

    def connections(self) -> int:
        """The number of sockets of servers."""
        return self._connections

    def connections_of(self, agent: str) -> int:
        """The number of sockets of one agent's servers."""
        found = self._agents.get(agent)
        return 0 if found is None else found.connections

    def room_for(self, agent: str, others: int, others_of_agent: int) -> str | None:
        """Why the limits allow no further socket; None if they do. `others` are sockets of devices, or elsewhere."""
        most, each = self._settings.max_connections, self._settings.max_agent_connections
        if self._connections + others >= most:
            return f"the relay has {most} connections, as many as it may have (max_connections)"
        if self.connections_of(agent) + others_of_agent >= each:
            return f"the agent has {each} connections, as many as it may have (max_agent_connections)"
        return None

    # -- connecting ------------------------------------------------------------------------------------------------

    def accept(self, socket: AcceptedSocket, claim: Claim, server_id: str | None) -> MessageReceiver:
        """See `frontends.relay.http.DialInPort`."""
        return self.accept_channel(socket, claim, server_id, is_muxed=False)

    def accept_mux(self, socket: AcceptedSocket, claim: Claim) -> MessageReceiver:
        """See `frontends.relay.http.DialInPort`."""

        def on_ended(host: MuxHost) -> None:
            self._count(self._hosts.pop(host), -1)

        host = MuxHost(socket, claim, self, on_ended, self._hub.limits.reply_bytes)
        agent = self._hosts[host] = self.roster(claim.key)
        self._count(agent, 1)
        if self._is_leaving:
            host.close(RESTARTING, "the hub is shutting down")
        return host

    def accept_channel(
        self, channel: DialInChannel, claim: Claim, server_id: str | None, *, is_muxed: bool
    ) -> MessageReceiver:
        """Take over an open channel as the connection of one server; it may be closed at once."""
        agent = self.roster(claim.key)
        if not is_muxed:
            self._count(agent, 1)
        label = server_id or own_id(None)
        link = self._new_link(agent, channel, claim, label, is_muxed=is_muxed)
        if self._is_leaving:
            link.end(RESTARTING, "the hub is shutting down", "the hub is shutting down")
            return link
        if is_muxed and len(agent.arrivals()) >= (most := self._settings.max_servers):
            words = f"{most} servers of its agent are arriving, which is the limit (max_servers)"
            link.end(TRY_LATER, words, words)
            return link
        self._expect(agent, link, label, server_id)
        return link

    def accept_node(
        self, channel: DialInChannel, announced: NodeServer
    ) -> tuple[DialInLink, asyncio.Task[None] | None]:
        """Use a server that has dialled in at another node of the cluster, over a channel to that node.

        The task ends when the server is listed, or cannot be; None if it is not accepted at all.
        """
        agent = self.roster(announced.claim.key)
        link = self._new_link(agent, channel, announced.claim, announced.server_id, is_muxed=True, announced=announced)
        if self._is_closing:
            link.end(RESTARTING, "the hub is shutting down", "the hub is shutting down")
            return link, None
        return link, self._expect(agent, link, announced.server_id, announced.server_id)

    def note_came(self, came: float) -> None:
        """Another node has a socket with this time. Its clock may be ahead."""
        self._latest = max(self._latest, came)

    def _new_link(
        self,
        agent: DialInAgent,
        channel: DialInChannel,
        claim: Claim,
        label: str,
        *,
        is_muxed: bool,
        announced: NodeServer | None = None,
    ) -> DialInLink:
        name = next(self._names.bid(agent.key, label).names())
        self._came += 1
        limits = self._hub.limits
        link = DialInLink(name, self._me, limits, channel, claim, self._came, is_muxed=is_muxed, announced=announced)
        link.on_task, link.on_progress = self._hub.tasks.notified, self._hub.tasks.progressed
        link.on_gone = partial(self._link_ended, link)
        if announced is None:
            link.came = self._latest = max(self._now(), self._latest + CLOCK_STEP_SECONDS)
        else:
            link.came = announced.came
        self._links[link] = agent
        return link

    def _expect(self, agent: DialInAgent, link: DialInLink, label: str, server_id: str | None) -> asyncio.Task[None]:
        """Initialize and list a server in the background."""
        agent.expect(link, label, is_named=server_id is not None)
        if link.announced is None:
            self.on_arriving(link, label, server_id is not None)
        self.on_come()
        arrival = self._receive(agent, link, server_id)

        def on_crash(error: BaseException) -> None:
            link.end(FAILED, "the hub failed", f"a defect in the hub: {error}")

        return self._background.spawn(f"arrival at {agent.key}", arrival, on_crash=on_crash)

    async def _receive(self, agent: DialInAgent, link: DialInLink, server_id: str | None) -> None:
        """Initialize, list and register a server, or close its channel with the reason."""
        try:
            async with asyncio.timeout(ARRIVE_SECONDS):
                await link.handshake("auto" if link.is_muxed else "legacy")
                if (why := find_loop(link.hubs, self._hub.id)) is not None:
                    raise ConnectFailed(why)
                await link.wait_for_listen_ack()
                link.listing = await link.list_features()
                if link.announced is None:
                    await self._await_older(agent, link)
                place = server_id or await self._place(agent, link)
            is_named = server_id is not None if link.announced is None else link.announced.is_named
            self._agent_server(agent, link, place, is_named=is_named)
        except ConnectFailed as refused:
            _reject(link, REFUSED, str(refused))
        except Fault as failed:
            _reject(link, FAILED, str(getattr(failed, "why", failed.message)))
        except TimeoutError:
            _reject(link, FAILED, f"it did not list its tools within {ARRIVE_SECONDS:g} s")
        finally:
            self._has_come(agent, link)

    async def _await_older(self, agent: DialInAgent, link: DialInLink) -> None:
        """Let servers that connected to other nodes shortly before have their names and places first."""
        older = agent.older_elsewhere(link.came, link.came - OLDER_SECONDS)
        if older and (left := link.came + OLDER_SECONDS - self._now()) > 0:
            await asyncio.wait(older, timeout=min(left, OLDER_SECONDS))

    def _has_come(self, agent: DialInAgent, link: DialInLink) -> None:
        agent.has_come(link)
        if link.announced is None:
            ids = (agent_server.server_id for agent_server in agent.servers() if agent_server.reconnector.link is link)
            self.on_arrived(link, next(ids, None))

    async def _place(self, agent: DialInAgent, link: DialInLink) -> str:
        """The id of a server whose client chose none: its own name, unless another connected server has that."""
        name = own_id(None if link.server_info is None else link.server_info.name)
        tools = frozenset(tool.name for tool in link.listing.tools)
        alive: set[DialInLink] = set()
        while True:
            place, unsure = agent.place_for(name, tools, alive)
            if not unsure or link.lost.done():
                return place
            answers = await asyncio.gather(*(other.channel.is_alive(ALIVE_SECONDS) for other in unsure))
            for other, is_alive in zip(unsure, answers, strict=True):
                if is_alive or link.lost.done():
                    alive.add(other)
                else:
                    other.end(
                        REFUSED, "it does not respond", "it did not respond, and another connection took its place"
                    )

    def _agent_server(self, agent: DialInAgent, link: DialInLink, server_id: str, *, is_named: bool) -> None:
        """Register a link under its server's id.

        Raises:
            ConnectFailed: its agent has too many servers.
        """
        if link.lost.done() or link.is_leaving or self._is_closing:
            return
        agent_server = agent.agent_server(server_id)
        if (
            agent_server is not None
            and agent_server.reconnector.link is not None
            and _is_newer(agent_server.reconnector.link, link)
        ):
            link.end(NORMAL, REPLACED, "another connection took its place")  # a newer one was faster
            return
        if agent_server is None:
            most = self._settings.max_servers
            while len(agent.servers()) >= most:
                oldest = agent.longest_away()
                if oldest is None:
                    raise ConnectFailed(f"its agent has {most} servers, as many as it may have (max_servers)")
                self._drop(oldest, "another server of its agent took its place")
            if link.announced is None:
                agent_server = self._new_agent_server(agent, server_id, self._now())
            else:
                first = link.announced.first or link.announced.came
                agent_server = self._new_agent_server(agent, server_id, first, ServerName(link.announced.name))
        agent_server.is_named = is_named
        agent_server.use_link(link)
        agent.add(agent_server)
        _send_name(agent_server, link)

    def _new_agent_server(
        self, agent: DialInAgent, server_id: str, came: float, last: ServerName | None = None
    ) -> AgentServer:
        """`last` is its name before the restart of the hub, or at another node."""
        bid = self._names.bid(agent.key, server_id)
        name = self._claim(bid, bid.names() if last is None else bid.names_from(last))
        reconnector = DialInReconnector(self._hub, self._background, name, agent.key, lambda: self._stood(agent_server))
        reconnector.server_queue.grace = self._settings.grace_of(agent.key)
        agent_server = self._servers[name] = AgentServer(agent, server_id, reconnector, came)
        return agent_server

    def _claim(self, bid: NameClaim, names: Iterable[ServerName], beside: Collection[ServerName] = ()) -> ServerName:
        """The first name that no stronger server has. A weaker server that has it is renamed without reconnecting."""
        for name in names:
            holder = self._servers.get(name)
            if name in beside or (holder is None and name in self._hub.server_queues):
                continue
            if holder is None or self._bid(holder) == bid:
                return name
            if bid.strength >= self._bid(holder).strength:
                self._rename(holder, {*beside, name})
                return name
        raise AssertionError("a server has endlessly many names")

    def _bid(self, agent_server: AgentServer) -> NameClaim:
        return self._names.bid(agent_server.agent.key, agent_server.server_id)

    def local_link(self, agent: str, server_id: str) -> tuple[AgentServer, DialInLink] | None:
        """A server whose socket is here, by the key of its agent, and its link."""
        found = self._agents.get(agent)
        agent_server = None if found is None else found.agent_server(server_id)
        link = None if agent_server is None else agent_server.reconnector.link
        return None if agent_server is None or link is None or link.announced is not None else (agent_server, link)

    def give_up(self, agent: str, server_id: str) -> None:
        """Close the socket of a server that has a newer one at another node."""
        found = self.local_link(agent, server_id)
        if found is None:
            return
        agent_server, link = found
        if agent_server.is_named:
            link.end(NORMAL, REPLACED, "another connection took its place")
        else:  # two programs with one name: this one gets another when it comes back
            link.end(TRY_LATER, "a server of this name connected to another node", "another server has its name")

    # -- moving to another node ------------------------------------------------------------------------------------

    def await_move(self, agent: str, server_id: str) -> None:
        """Let calls wait for a server whose node shuts down, until it has connected to another one."""
        found = self._agents.get(agent)
        agent_server = None if found is None else found.agent_server(server_id)
        if agent_server is None:
            return
        if (before := self._moves.get(agent_server)) is not None:
            before.cancel()
        end = partial(self._end_move, agent_server)
        self._moves[agent_server] = asyncio.get_running_loop().call_later(MOVE_SECONDS, end)
        self._set_grace(agent_server)

    def _end_move(self, agent_server: AgentServer) -> None:
        del self._moves[agent_server]
        self._set_grace(agent_server)

    def _set_grace(self, agent_server: AgentServer) -> None:
        grace = self._settings.grace_of(agent_server.agent.key)
        if agent_server in self._moves:
            grace = max(grace, MOVE_SECONDS)
        server_queue = agent_server.reconnector.server_queue
        if server_queue.grace != grace:
            server_queue.grace = grace

    def leave(self) -> None:
        """This node shuts down: each socket is closed as soon as its calls are answered, so that its servers move."""
        self._is_leaving = True
        self._background.spawn("servers that move", self._move_away())

    async def _move_away(self) -> None:
        words = "the hub is shutting down"
        while True:
            links = [link for link in self._links if link.announced is None]
            if not (links or self._hosts):
                return
            await self._let_leave(links)
            # Also of calls that have asked their caller something, and have no request at the server meanwhile.
            calls = (each for each in self._hub.deadlines.pending() if isinstance(each, InFlight))
            busy: set[object] = {inflight.link for inflight in calls}
            busy.update(link for link in links if not link.is_leaving)
            idle = [host for host in self._hosts if busy.isdisjoint(host.links())]
            # On a socket with a call the other servers leave by themselves: their client opens another one for them.
            busy.update(link for host in idle for link in host.links())
            for host in idle[:MOVE_AT_ONCE_MAX]:
                host.close(RESTARTING, words)
            for link in [link for link in links if link not in busy][:MOVE_AT_ONCE_MAX]:
                link.end(RESTARTING, words, words)
            await asyncio.sleep(MOVE_LOOK_SECONDS)

    async def _let_leave(self, links: Iterable[DialInLink]) -> None:
        """Send these servers no more calls, so that they move. One that has asked a caller waits for the answer first.

        A server takes 40 µs, so thousands are not done in one turn of the event loop.
        """
        asking = self.asking()
        leaving = [link for link in links if not link.is_leaving and link.server not in asking]
        for start in range(0, len(leaving), MOVE_AT_ONCE_MAX):
            for link in leaving[start : start + MOVE_AT_ONCE_MAX]:
                agent = self._links.get(link)
                servers = () if agent is None else agent.servers()
                if (here := next((each for each in servers if each.reconnector.link is link), None)) is not None:
                    self.await_move(here.agent.key, here.server_id)
                link.leaves()
            await pause()

    # -- disconnecting ---------------------------------------------------------------------------------------------

    def _link_ended(self, link: DialInLink) -> None:
        """A link has ended."""
        agent = self._links.pop(link)
        self._has_come(agent, link)
        if not link.is_muxed:
            self._count(agent, -1)

    def _count(self, agent: DialInAgent, step: int) -> None:
        self._connections += step
        agent.connections += step
        self.on_counted(agent.key)

    def _stood(self, agent_server: AgentServer) -> None:
        """A server's state has changed."""
        if agent_server.is_here == (agent_server in self._away):
            agent_server.since = self._now()
            if agent_server.is_here:
                del self._away[agent_server]
            else:
                self._away[agent_server] = agent_server.since
                self._plan_forgetting()
                if not self._is_closing:
                    agent_server.agent.make_room(MAKE_ROOM_SECONDS)
        if agent_server.has_fewer_tools():
            agent_server.agent.look_at_trimmed(agent_server)
        if self._remembered is not None and not self._is_closing and not agent_server.is_elsewhere:
            self._remembered.store(agent_server.record(self._now()))
        agent_server.agent.notify()
        self.on_stood(agent_server)

    def _plan_forgetting(self) -> None:
        """Set the timer for the server that disconnected first; there is one timer for all."""
        if self._forgetting is not None or self._is_closing:
            return
        if (first := next(iter(self._away.values()), None)) is not None:
            seconds = max(0.0, first + self._settings.forget - self._now())
            self._forgetting = asyncio.get_running_loop().call_later(seconds, self._forget)

    def _forget(self) -> None:
        self._forgetting = None
        before = self._now() - self._settings.forget
        for agent_server in [agent_server for agent_server, went in self._away.items() if went <= before]:
            self._drop(agent_server, f"it was away for {self._settings.forget:g} s and is forgotten")
        self._plan_forgetting()

    def forget(self, server: ServerName) -> Forgetting:
        """See `core.admin_ports.RelayAdmin`."""
        done = self.forget_here(server)
        if done == "forgotten":
            self.on_forgotten(server)
        return done

    def forget_here(self, server: ServerName) -> Forgetting:
        """The same, because another node of the cluster has forgotten the server."""
        agent_server = self._servers.get(server)
        if agent_server is None:
            return "unknown"
        if agent_server.is_here:
            return "connected"
        self._drop(agent_server, "the operator had it forgotten")
        return "forgotten"

    def _drop(self, agent_server: AgentServer, why: str) -> None:
        """Remove a server."""
        self._away.pop(agent_server, None)
        if (move := self._moves.pop(agent_server, None)) is not None:
            move.cancel()
        self._servers.pop(agent_server.server, None)
        agent_server.reconnector.close(REFUSED, why, why)
        agent_server.agent.remove(agent_server)
        agent_server.agent.look_at_trimmed(agent_server)
        if self._remembered is not None and not agent_server.is_elsewhere:
            self._remembered.forget(agent_server.agent.key, agent_server.server_id)

    # -- new settings ----------------------------------------------------------------------------------------------

    def change(self, settings: DialInSettings) -> None:
        """Apply new settings and the hub's limits. The limit of servers applies to new connections only."""
        names, self._names = self._names, NameRules(settings.agents)
        self._settings = settings
        if names != self._names:  # the strongest first, because it may free a name
            for agent_server in sorted(
                self._servers.values(), key=lambda agent_server: self._bid(agent_server).strength, reverse=True
            ):
                self._rename(agent_server)
        limits = self._hub.limits
        for agent_server in self._servers.values():
            server_queue = agent_server.reconnector.server_queue
            server_queue.adjust(limits.max_calls, limits.max_queued, limits.call_seconds)
            self._set_grace(agent_server)
        for agent in list(self._agents.values()):
            agent.limit(settings.max_tools)
        if self._forgetting is not None:
            self._forgetting.cancel()
            self._forgetting = None
        self._plan_forgetting()

    def make_room(self, names: Iterable[ServerName]) -> None:
        """Rename servers whose names new configured servers will use."""
        wanted = {*names}
        for name in wanted & self._servers.keys():
            self._rename(self._servers[name], wanted)

    def _rename(self, agent_server: AgentServer, beside: Collection[ServerName] = ()) -> None:
        """Give a server the best name that it can have, without reconnecting."""
        before, old, bid = agent_server.reconnector, agent_server.server, self._bid(agent_server)
        name = self._claim(bid, bid.names(), beside)
        if name == old:
            return
        reconnector = DialInReconnector(
            self._hub, self._background, name, agent_server.agent.key, lambda: self._stood(agent_server)
        )
        reconnector.server_queue.inherit(before.server_queue)
        link, listing, abilities = before.release(), before.listing, before.server_status.abilities
        why = before.server_queue.not_connected().why
        before.close(REFUSED, "", f"it is called {name} now")
        del self._servers[old]
        self._servers[name] = agent_server
        agent_server.reconnector = reconnector
        if link is None:
            reconnector.list_stored(listing, abilities, why)
        else:
            link.listing = listing
            reconnector.use_link(link)
            _send_name(agent_server, link)
        agent_server.agent.changed()

    def recheck(self, is_valid: Callable[[Claim], bool]) -> None:
        """Close sockets whose token is no longer valid."""
        words = "token已失效"  # the text that devices get
        is_good = _checked_once(is_valid)
        for host in [host for host in self._hosts if not is_good(host.claim)]:
            host.close(REFUSED, words)
        for link in [link for link in self._links if link.announced is None and not is_good(link.claim)]:
            link.end(REFUSED, words, "its token is no longer valid")

    # -- restoring -------------------------------------------------------------------------------------------------

    async def recall(self) -> None:
        """Restore the servers from before the restart, as away until they connect."""
        if self._remembered is None:
            return
        for record in await self._remembered.load():
            self._load_cached(record)
            await asyncio.sleep(0)  # there may be thousands, and other tasks wait
        self._away = dict(sorted(self._away.items(), key=lambda entry: entry[1]))
        self._plan_forgetting()

    def _load_cached(self, record: ServerRecord) -> None:
        agent = self.roster(record.agent)
        if self._is_closing or agent.agent_server(record.server_id) is not None:
            return  # it has connected already
        if record.seen + self._settings.forget <= self._now() or len(agent.servers()) >= self._settings.max_servers:
            assert self._remembered is not None
            self._remembered.forget(*record.key)
            return
        agent_server = self._new_agent_server(agent, record.server_id, record.came, record.name)
        agent_server.is_named, agent_server.title = record.is_named, record.title
        agent_server.offered = len(record.listing.tools)
        agent_server.reconnector.list_stored(
            record.listing, record.abilities, "it has not dialled in since the hub was started"
        )
        agent_server.since = self._away[agent_server] = record.seen
        agent.add(agent_server)
        agent.fit()

    # -- the end ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close all sockets with the code for a restart."""
        self._is_closing = self._is_leaving = True
        for move in self._moves.values():
            move.cancel()
        if self._forgetting is not None:
            self._forgetting.cancel()
        for agent_server in self._servers.values():
            agent_server.reconnector.is_hidden = True  # no notifications about up to ten thousand servers now
            agent_server.reconnector.leave()
        words = "the hub is shutting down"
        channels = [link.channel for link in self._links if not link.is_muxed]
        for host in list(self._hosts):
            host.close(RESTARTING, words)
        for link in list(self._links):
            link.end(RESTARTING, words, words)
        await asyncio.gather(*(channel.aclose(RESTARTING, words) for channel in channels), return_exceptions=True)
        if self._remembered is not None:
            await self._remembered.aclose()


def _checked_once(is_valid: Callable[[Claim], bool]) -> Callable[[Claim], bool]:
    """A check of claims that asks once per key for claims that neither expire nor can be revoked.

    There may be ten thousand claims, most of them of this kind, and they are checked every other second.
    """
    known: dict[str, bool] = {}

    def is_good(claim: Claim) -> bool:
        if claim.id or claim.expires_at is not None:
            return is_valid(claim)
        if claim.under not in known:
            known[claim.under] = is_valid(claim)
        return known[claim.under]

    return is_good


def _is_newer(link: DialInLink, other: DialInLink) -> bool:
    """Whether the first link is to be used. Of two sockets at different nodes, the one that was opened later is."""
    if link.announced is None and other.announced is not None:
        return link.came >= other.came
    return link.number > other.number


def _send_name(agent_server: AgentServer, link: DialInLink) -> None:
    if isinstance(link.channel, NamedChannel):
        link.channel.named(agent_server.server, agent_server.reconnector.server_queue.grace)


def _reject(link: DialInLink, code: int, why: str) -> None:
    if link.lost.done():
        log.info("server left before it was listed", server=link.server, client=link.client, reason=link.lost.result())
    else:
        reason = why[:REASON_LENGTH_MAX]  # it may quote the server
        log.info("server rejected", server=link.server, client=link.client, reason=reason)
        link.end(code, reason, reason)
