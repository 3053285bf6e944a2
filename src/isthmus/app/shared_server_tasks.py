"""The tasks that servers run at other nodes: for lists, sessions and `subscriptions/listen` of their callers here.

See `core.watch.server_tasks.OtherNodes`. `app.cluster` makes it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import structlog

from isthmus.app.forwarding import prefix_of
from isthmus.app.hub import RunningHub
from isthmus.cluster.bus import Bus, BusChannel, BusFault, ChannelClosed, ChannelEnd, ChannelFull, NodeId
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.watch.server_tasks import FollowedTasks, ListedTask, ServerTask
from isthmus.frontends.http.nodes import TAG_END
from isthmus.frontends.mcp.methods import QUERY_SECONDS, LegacyTaskList
from isthmus.frontends.mcp.subscriptions import SUBSCRIBE_SECONDS, McpClient, TaskPoller
from isthmus.frontends.mcp.tasks import public_state
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, ClientCapabilities, Surface
from isthmus.model.names import ServerName
from isthmus.upstream.reconnector import Backoff
from isthmus.wire.jsonrpc import Payload, object_members, render
from isthmus.wire.mcp.tasks import state_of

log = structlog.get_logger(__name__)

SERVER_TASKS: Final = "server-tasks"
"""The service that lists the tasks of servers of one caller at a node."""

SERVER_TASKS_SECONDS = QUERY_SECONDS + 1.0
"""How long another node may take for that: it asks its servers."""

TASK_STATUS: Final = "task-status"
"""The topic of tasks whose status was reported, for sessions of their callers at other nodes."""

FOLLOWED_TASKS: Final = "followed-tasks"
"""The service that follows tasks of one caller at a node."""

AGAIN_SECONDS_MAX = 2.0
"""The longest pause before a node is asked again to follow tasks."""


class ServerTasksRequest(msgspec.Struct, frozen=True):
    """Asks a node for the tasks of one caller at servers."""

    tenant: str
    name: str
    servers: tuple[ServerName, ...]
    after: int
    most: int


class ServerTaskStatus(msgspec.Struct, frozen=True):
    """The status of a caller's task, with the id that the caller uses."""

    tenant: str
    name: str
    server: ServerName
    state: dict[str, msgspec.Raw]
    is_other: bool


class FollowRequest(msgspec.Struct, frozen=True):
    """Asks a node to follow tasks that servers run there."""

    caller: Caller
    surface: Surface
    client_caps: ClientCapabilities
    ids: tuple[str, ...]


class SharedServerTasks:
    """The tasks that servers run at other nodes, for lists and listeners; see `core.watch.server_tasks.OtherNodes`."""

    def __init__(self, bus: Bus, running: RunningHub) -> None:
        self._bus = bus
        self._hub = running.hub
        self._background = running.background
        running.hub.tasks.other_nodes = self
        bus.respond(SERVER_TASKS, self._respond)
        bus.serve(FOLLOWED_TASKS, lambda channel: _FollowerHere(self._hub, self._background, channel).start())
        bus.subscribe(TASK_STATUS, self._receive)

    async def listed(
        self, caller: Caller, servers: Sequence[ServerName], after: Mapping[str, int], most: int
    ) -> dict[str, Sequence[ListedTask]]:
        """See `OtherNodes`. The tasks of a node that does not answer in time are missing."""

        async def ask(node: NodeId) -> tuple[str, Sequence[ListedTask]]:
            prefix = prefix_of(node)
            request = ServerTasksRequest(caller.tenant, caller.name, tuple(servers), after.get(prefix, 0), most)
            try:
                found = await self._bus.request(
                    node, SERVER_TASKS, msgspec.json.encode(request), within=SERVER_TASKS_SECONDS
                )
            except BusFault as fault:
                log.warning("the tasks of another node cannot be listed", node=node, reason=str(fault))
                return prefix, ()
            return prefix, msgspec.json.decode(found, type=list[ListedTask])

        return dict(await asyncio.gather(*map(ask, self._bus.peers())))

    async def _respond(self, _node: NodeId, payload: bytes) -> bytes:
        request = msgspec.json.decode(payload, type=ServerTasksRequest)
        caller = Caller(request.name, request.tenant, Grants(tuple(f"{server}.*" for server in request.servers)))
        task_list = LegacyTaskList(McpClient(self._hub, caller, EVERYTHING))
        return msgspec.json.encode(await task_list.own(request.servers, request.after, request.most))

    async def follow(
        self,
        caller: Caller,
        surface: Surface,
        client_caps: ClientCapabilities,
        ids: Sequence[str],
        notify: Callable[[Mapping[str, msgspec.Raw]], None],
    ) -> Sequence[FollowedTasks]:
        """See `OtherNodes`."""
        nodes = {prefix_of(node): node for node in self._bus.peers()}
        named: dict[NodeId, list[str]] = {}
        for id in ids:
            tag, end, _ = id.partition(TAG_END)
            if (node := nodes.get(tag + end)) is not None:
                named.setdefault(node, []).append(id)
        found = [
            TasksElsewhere(
                self._bus, self._background, node, FollowRequest(caller, surface, client_caps, tuple(own)), notify
            )
            for node, own in named.items()
        ]
        try:
            if found:
                await asyncio.wait([each.first for each in found], timeout=SUBSCRIBE_SECONDS)
        except asyncio.CancelledError:
            for each in found:
                each.stop()
            raise
        for each in found:
            if not each.ids:  # there are none, or the node is silent: the caller can ask again
                each.stop()
        return [each for each in found if each.ids]

    def report(self, task: ServerTask, *, is_other: bool) -> None:
        """See `OtherNodes`."""
        tenant, name = task.owner
        members = object_members(public_state(task, Caller(name, tenant, Grants(())))) or {}
        self._bus.publish(
            TASK_STATUS, msgspec.json.encode(ServerTaskStatus(tenant, name, task.server, dict(members), is_other))
        )

    def _receive(self, _node: NodeId, payload: bytes) -> None:
        status = msgspec.json.decode(payload, type=ServerTaskStatus)
        if (state := state_of(status.state)) is not None:
            owner = status.tenant, status.name
            self._hub.tasks.reported_elsewhere(owner, status.server, state, is_other=status.is_other)


class TasksElsewhere:
    """Tasks at one other node that a subscription follows. If the channel to that node is lost, it asks again.

    It is the channel's receiver. The first message has the ids that are followed, each further one a task's state.
    """

    def __init__(
        self,
        bus: Bus,
        background: BackgroundTasks,
        node: NodeId,
        request: FollowRequest,
        notify: Callable[[Mapping[str, msgspec.Raw]], None],
    ) -> None:
        self.ids: Sequence[str] = ()
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when that node has said which tasks it follows, or cannot be asked."""
        self._bus = bus
        self._node = node
        self._request = request
        self._notify = notify
        self._early: list[Mapping[str, msgspec.Raw]] | None = []
        """What has come before `start`."""
        self._is_answered = self._is_stopped = False
        self._channel: BusChannel | None = None
        self._ended = asyncio.Event()
        background.spawn(f"tasks at {node}", self._follow())

    async def _follow(self) -> None:
        backoff = Backoff(AGAIN_SECONDS_MAX)
        while not self._is_stopped:
            try:
                channel = await self._bus.connect(self._node, FOLLOWED_TASKS, within=SUBSCRIBE_SECONDS)
                channel.send(msgspec.json.encode(self._request))
            except BusFault as fault:
                log.debug("the tasks of another node cannot be followed", node=self._node, reason=str(fault))
                self._note_first()
            else:
                backoff.reset()
                await self._read(channel)
            if not self._is_stopped:
                await asyncio.sleep(backoff.next(random.random()))  # noqa: S311 - spread, not secrecy

    async def _read(self, channel: BusChannel) -> None:
        self._channel, self._is_answered = channel, False
        self._ended.clear()
        if self._is_stopped:  # while the channel was opened
            channel.abort("the tasks are no longer followed")
            return
        channel.start(self)
        await self._ended.wait()

    def _note_first(self) -> None:
        if not self.first.done():
            self.first.set_result(None)

    def start(self) -> None:
        """See `FollowedTasks`."""
        early, self._early = self._early or [], None
        for state in early:
            self._notify(state)

    def stop(self) -> None:
        """See `FollowedTasks`."""
        self._is_stopped = True
        if self._channel is not None:
            self._channel.abort("the tasks are no longer followed")
        self._ended.set()
        self._note_first()

    def message(self, message: bytes) -> None:
        """See `ChannelReceiver`."""
        if not self._is_answered:
            self._is_answered = True
            if not self.first.done():  # a node that asks again has the same tasks, or fewer
                self.ids = msgspec.json.decode(message, type=tuple[str, ...])
                self._note_first()
            return
        state = msgspec.json.decode(message, type=dict[str, msgspec.Raw])
        if self._early is None:
            self._notify(state)
        else:
            self._early.append(state)

    def writable(self) -> None:
        """See `ChannelReceiver`."""

    def silent(self, confirmed: int) -> None:
        """See `ChannelReceiver`."""

    def closed(self, end: ChannelEnd) -> None:
        """See `ChannelReceiver`."""
        self._note_first()
        self._ended.set()


class _FollowerHere:
    """Follows tasks of this node for another one: its end of the channel."""

    def __init__(self, hub: Hub, background: BackgroundTasks, channel: BusChannel) -> None:
        self._hub = hub
        self._background = background
        self._channel = channel
        self._poller: TaskPoller | None = None

    def start(self) -> None:
        """Read the request."""
        self._channel.start(self)

    def message(self, message: bytes) -> None:
        """See `ChannelReceiver`."""
        request = msgspec.json.decode(message, type=FollowRequest)
        client = McpClient(self._hub, request.caller, request.surface, request.client_caps)
        self._poller = TaskPoller(client, lambda state: self._send(render(state)))
        self._background.spawn(f"tasks for {self._channel.peer}", self._begin(self._poller, request.ids))

    async def _begin(self, poller: TaskPoller, ids: Sequence[str]) -> None:
        self._send(msgspec.json.encode(await poller.add(ids)))
        if self._poller is poller:
            poller.start()

    def _send(self, message: Payload) -> None:
        try:
            self._channel.send(bytes(message))
        except ChannelClosed:
            pass
        except ChannelFull:  # it asks again, and gets the states as they are then
            self._channel.abort("it does not read the states of tasks")
            self._stop()

    def _stop(self) -> None:
        poller, self._poller = self._poller, None
        if poller is not None:
            poller.close()

    def writable(self) -> None:
        """See `ChannelReceiver`."""

    def silent(self, confirmed: int) -> None:
        """See `ChannelReceiver`."""

    def closed(self, end: ChannelEnd) -> None:
        """See `ChannelReceiver`."""
        self._stop()
