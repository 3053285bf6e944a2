"""What a caller is notified of outside its calls: changed lists, updated resources, log level, and tasks.

A session has a `CallerSubscriptions` and a `TaskStatusNotifier` for a legacy caller. A modern caller's
`subscriptions/listen` is a `ListenSubscription`. Each of them is closed with the session or stream that holds it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import islice

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.view import View
from isthmus.core.ports import HubExchange, Subscriber
from isthmus.core.watch.server_tasks import FollowedTasks, ServerTask
from isthmus.core.watch.subscriptions import Key, OnUpdate
from isthmus.frontends.mcp.exchange import updated_params
from isthmus.frontends.mcp.hub_tasks import HubTaskFollower, HubTasks, OnTaskState
from isthmus.frontends.mcp.tasks import is_hub_task_id, is_of_other_node, is_visible, public_id, route_task_call
from isthmus.model.callers import Caller
from isthmus.model.calls import (
    NO_CAPABILITIES,
    NOT_ASKED,
    Call,
    ClientCapabilities,
    Event,
    LogLevel,
    OnReply,
    Outcome,
    Question,
    Result,
    Surface,
)
from isthmus.model.fault_table import BadArguments, Fault, ServerError, TooManySubscriptions, UnknownResource
from isthmus.model.features import Topic
from isthmus.model.names import ServerName
from isthmus.wire import jsonrpc, sse
from isthmus.wire.jsonrpc import INVALID_PARAMS, Payload, object_members
from isthmus.wire.mcp import modern
from isthmus.wire.mcp.forwarded_methods import EMPTY_OBJECT
from isthmus.wire.mcp.lists import URI_LENGTH_MAX
from isthmus.wire.mcp.messages import CHANGED, UPDATED
from isthmus.wire.mcp.tasks import TASK_NOTIFICATION, read_poll_seconds, read_state, rename_ids

SUBSCRIPTIONS_MAX = 1_000
"""Resources that one session may subscribe to."""

SUBSCRIBED_LENGTH_MAX = 256 * 1024
"""Total length of their URIs: servers are sent the URIs of all sessions, and each session must leave room."""

QUIET_SECONDS = 1.0
"""After a notification about a list, the next one about the same list waits this long."""

GATHER_SECONDS = 0.05
"""After a notification about a resource, further updates of it wait this long and become one."""

SUBSCRIBE_SECONDS = 2.0
"""How long servers may take to accept a subscription of `subscriptions/listen`; the caller can ask again."""

POLLED_MAX = 100
"""Tasks that one `subscriptions/listen` may name; further ones are ignored."""

POLL_SECONDS = 5.0
"""How often a task is polled whose server does not name an interval."""

POLL_SECONDS_MIN, POLL_SECONDS_MAX = 1.0, 60.0
"""Limits of a server's interval: shorter ones would load the hub, longer ones would delay callers."""

_NOTHING: Mapping[Topic, bytes] = {}


FOUND_MAX = 50
"""Found tools that a session's list has, the last ones: the list must stay short."""


class FoundTools:
    """The tools that one session has found by searching. Its list has them besides the tools of the hub."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self._watchers: dict[Callable[[], None], None] = {}

    def add(self, names: Iterable[str]) -> None:
        """List these tools from now on."""
        before = list(self.names)
        for name in names:
            self.names.pop(name, None)
            self.names[name] = None
        while len(self.names) > FOUND_MAX:
            del self.names[next(iter(self.names))]
        if self.names.keys() != set(before):
            for watcher in list(self._watchers):
                watcher()

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after changes, until the returned function is called."""
        self._watchers[callback] = None
        return lambda: self._watchers.pop(callback, None)


class McpClient(msgspec.Struct, frozen=True):
    """A client that follows changes: its caller, the path that it uses, and what it can be asked."""

    hub: Hub
    caller: Caller
    surface: Surface
    client_caps: ClientCapabilities = NO_CAPABILITIES
    session: str = ""
    """The session of its calls, if any."""
    found: FoundTools | None = None
    """What its session has found, if it has one."""
    is_hub: bool = False
    """It is another hub, which reads lists for clients with any capabilities."""

    def view(self) -> View:
        """What it sees now."""
        return self.with_found(self.hub.snapshot.view(self.caller.grants, self.surface, self.client_caps))

    def digests(self, topics: Iterable[Topic]) -> dict[Topic, bytes]:
        """Digests that change exactly when the lists of this client change.

        Another hub may have lists for several capabilities.
        """
        view = self.view()
        if not self.is_hub:
            return {topic: view.digest_of(topic) for topic in topics}
        snapshot = self.hub.snapshot
        servers = [snapshot.server_statuses[server] for server in view.servers if server in snapshot.server_statuses]
        known = sorted({client_caps for each in servers for client_caps in each.variants}, key=sorted)
        views = [view, *(snapshot.view(self.caller.grants, self.surface, client_caps) for client_caps in known)]
        return {topic: b"".join(dict.fromkeys(each.digest_of(topic) for each in views)) for topic in topics}

    def with_found(self, view: View) -> View:
        """A view of its own, with what it has found in the list."""
        return (
            view
            if self.found is None or not self.found.names or not view.virtual
            else view.with_found(self.found.names)
        )


# -- lists and resources -------------------------------------------------------------------------------------------


class ListChangeFeed:
    """Watches one client's view and calls `notify` for each list that changed."""

    def __init__(
        self,
        client: McpClient,
        notify: Callable[[Topic], None],
        topics: Iterable[Topic],
        *,
        seen: Mapping[Topic, bytes] = _NOTHING,
    ) -> None:
        """`seen` are the digests of the lists that the caller has; the current lists where it is unknown."""
        self._client = client
        self._notify = notify
        self._loop = asyncio.get_running_loop()
        self._seen = {topic: seen.get(topic) or digest for topic, digest in client.digests(topics).items()}
        self._notified_at: dict[Topic, float] = {}
        self._withheld: set[Topic] = set()
        """Lists that have changed since the last notification, which is too recent for another."""
        self._timer: asyncio.TimerHandle | None = None
        self._unwatch = client.hub.watch(self._compare)
        self._unwatch_found = None if client.found is None else client.found.watch(self._compare)
        self._compare()

    def close(self) -> None:
        """Stop watching."""
        self._unwatch()
        if self._unwatch_found is not None:
            self._unwatch_found()
        if self._timer is not None:
            self._timer.cancel()

    def _compare(self) -> None:
        """Notify of each changed list, unless it was notified a moment ago: then compare again later."""
        digests = self._client.digests(self._seen)
        # A list that has changed back counts too: the caller may have read it meanwhile.
        changed = [topic for topic, digest in self._seen.items() if topic in self._withheld or digests[topic] != digest]
        if not changed:
            return
        now = self._loop.time()
        waits = {topic: self._notified_at.get(topic, -QUIET_SECONDS) + QUIET_SECONDS - now for topic in changed}
        for topic in [topic for topic, seconds in waits.items() if seconds <= 0]:
            self._seen[topic] = digests[topic]
            self._notified_at[topic] = now
            self._withheld.discard(topic)
            del waits[topic]
            self._notify(topic)
        self._withheld |= waits.keys()
        if waits and self._timer is None:
            self._timer = self._loop.call_later(min(waits.values()), self._compare_again)

    def _compare_again(self) -> None:
        self._timer = None
        self._compare()


class ResourceUpdateFeed:
    """Notifies one caller of updated resources, in the order of their first update.

    Updates of a resource that the caller has not read a notification of yet become one, so at most one notification
    for each subscribed resource waits.
    """

    def __init__(self, notify: Callable[[str], None], is_crowded: Callable[[], bool]) -> None:
        """`is_crowded` says that the caller has not read everything sent so far."""
        self._notify = notify
        self._is_crowded = is_crowded
        self._loop = asyncio.get_running_loop()
        self._unsent: dict[str, None] = {}
        self._recent: set[str] = set()
        """Sent since the timer was started."""
        self._timer: asyncio.TimerHandle | None = None

    def updated(self, uri: str) -> None:
        """A resource was updated."""
        self._unsent[uri] = None
        if len(self._unsent) == 1 and uri not in self._recent:  # else it comes after those that wait already
            self._flush()

    def forget(self, uri: str) -> None:
        """Drop a waiting notification."""
        self._unsent.pop(uri, None)

    def close(self) -> Collection[str]:
        """Stop all notifications; return the resources whose update was not sent yet."""
        unsent, self._unsent = self._unsent, {}
        if self._timer is not None:
            self._timer.cancel()
        return unsent

    def _flush(self) -> None:
        if self._unsent and self._timer is None:
            self._timer = self._loop.call_later(GATHER_SECONDS, self._flush_again)
        if self._unsent and not self._is_crowded():
            unsent, self._unsent = self._unsent, {}
            self._recent.update(unsent)
            for uri in unsent:
                self._notify(uri)

    def _flush_again(self) -> None:
        self._timer = None
        self._recent.clear()
        self._flush()


class CallerSubscriptions:
    """One caller's resource subscriptions and log level. `notify` is called with each updated URI, as subscribed."""

    def __init__(
        self,
        client: McpClient,
        notify: Callable[[str], None],
        *,
        is_crowded: Callable[[], bool] = lambda: False,
        on_unsubscribe: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`is_crowded` says that the caller has not read everything sent.

        `on_unsubscribe` is called with every URI that is no longer subscribed to, or could not be.
        """
        self.client = client
        """Replaced when a legacy caller initializes, and has told its capabilities."""
        self._hub = client.hub
        self._notify = notify
        self._feed = ResourceUpdateFeed(self._resource_updated, is_crowded)
        self._on_unsubscribe = on_unsubscribe
        self._subscribed: dict[str, tuple[Key, OnUpdate]] = {}
        self._subscribed_length = 0
        self.level: LogLevel | None = None
        self._is_closed = False

    def receive_default_logs(self) -> None:
        """Receive what servers log by default, until the caller sets a level."""
        if self.level is None:
            self._hub.levels.listen(self)

    def set_level(self, level: LogLevel) -> None:
        """Receive log messages from this level on."""
        self.level = level
        if not self._is_closed:  # a request may be read after its caller has left
            self._hub.levels.want(self, level)

    def servers(self) -> Collection[ServerName]:
        """The servers that the caller can see."""
        return self.client.view().servers

    async def available_topics(self, wanted: Set[Topic]) -> frozenset[Topic]:
        """Those of the wanted lists that some visible server has."""
        view = await self._hub.view_for(self.client.caller, self.client.surface, self.client.client_caps)
        return frozenset(topic for topic in wanted if topic in view.claimed)

    async def subscribe(self, uri: str) -> Fault | None:
        """Subscribe to a resource; the fault if it does not exist or its server refuses."""
        if len(uri) > URI_LENGTH_MAX:
            return BadArguments("a subscription", f"a URI may have {URI_LENGTH_MAX} characters")
        client = self.client
        view = await self._hub.view_for(client.caller, client.surface, client.client_caps)
        found = view.find_resource(uri)
        if found is None:
            return UnknownResource(uri, view.candidates(uri))
        server = found.route.feature.server
        if uri in self._subscribed or self._is_closed:
            return None
        if len(self._subscribed) >= SUBSCRIPTIONS_MAX or self._subscribed_length + len(uri) > SUBSCRIBED_LENGTH_MAX:
            return TooManySubscriptions(len(self._subscribed))
        key, notify = (server, found.name), partial(self._feed.updated, uri)
        self._subscribed[uri] = (key, notify)
        self._subscribed_length += len(uri)
        subscriber = Subscriber(client.caller, client.client_caps, client.session)
        fault = await self._hub.subscriptions.add(key, notify, subscriber)
        if fault is not None:
            self._pop(uri)
        return fault

    def unsubscribe(self, uri: str) -> None:
        """Unsubscribe from a resource."""
        subscribed = self._pop(uri)
        if subscribed is not None:
            self._hub.subscriptions.remove(*subscribed)

    def _pop(self, uri: str) -> tuple[Key, OnUpdate] | None:
        subscribed = self._subscribed.pop(uri, None)
        self._subscribed_length -= 0 if subscribed is None else len(uri)
        self._feed.forget(uri)
        self._on_unsubscribe(uri)
        return subscribed

    def _resource_updated(self, uri: str) -> None:
        """Notify the caller, if it may still see the resource."""
        subscribed = self._subscribed.get(uri)
        if subscribed is None:
            return
        (server, name), _ = subscribed
        if self.client.view().may_receive_updates(server, name, uri):
            self._notify(uri)

    def close(self) -> None:
        """Unsubscribe from everything, and accept no further subscriptions."""
        self._is_closed = True
        unsent = self._feed.close()
        subscribed, self._subscribed, self._subscribed_length = self._subscribed, {}, 0
        for uri in subscribed:
            self._on_unsubscribe(uri)
        self._hub.subscriptions.leave(subscribed.values(), {subscribed[uri][0] for uri in unsent})
        self._hub.levels.leave(self)


# -- tasks ---------------------------------------------------------------------------------------------------------


class TaskStatusNotifier:
    """Calls `notify` with every task of a legacy caller whose server reports a status.

    Modern callers are notified by a `TaskPoller`.
    """

    def __init__(
        self, client: McpClient, notify: Callable[[ServerTask], None], is_crowded: Callable[[], bool] = lambda: False
    ) -> None:
        """`is_crowded` says that the caller reads slowly; repetitions of a status are dropped then."""
        self._client = client
        self._notify = notify
        self._is_crowded = is_crowded
        self.close = client.hub.tasks.listen(client.caller, client.session, self._reported)
        """Stop notifying."""

    def _reported(self, task: ServerTask, is_other: bool) -> None:  # noqa: FBT001 - the type of a listener
        client = self._client
        if is_visible(task, client.view(), client.surface) and (is_other or not self._is_crowded()):
            self._notify(task)


class TaskPoller:
    """Calls `notify` with the state of each task named in `taskIds` of a `subscriptions/listen`, and on every change.

    The hub polls the servers, at the intervals that these name, by the route of the caller's own requests. So a caller
    receives nothing about other callers' tasks and misses nothing while a link reconnects, and a server need not
    support notifications. Hub tasks are followed without polling. The node that an id names polls the task.
    """

    def __init__(self, client: McpClient, notify: OnTaskState, hub_tasks: HubTasks | None = None) -> None:
        """Without `hub_tasks` there are only tasks of servers."""
        self._client = client
        self._hub_tasks = hub_tasks
        self._notify = notify
        self._followed: dict[str, _PolledTask | HubTaskFollower] = {}
        self._elsewhere: Sequence[FollowedTasks] = ()

    async def add(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Add the tasks that the caller may follow, and return their ids; nothing is polled before `start`."""
        client = self._client
        hub, caller, surface, client_caps = client.hub, client.caller, client.surface, client.client_caps
        elsewhere: list[str] = []
        for id in islice(ids, POLLED_MAX):
            if is_of_other_node(id):
                elsewhere.append(id)
                continue
            followed: _PolledTask | HubTaskFollower | None = None
            if not is_hub_task_id(id):
                view = client.view()
                asked = Call(caller, surface, id, EMPTY_OBJECT, kind="task", client_caps=client_caps)
                call = route_task_call(asked, view, hub.tasks)
                server = None if call is None else call.surface.server
                if call is not None and server is not None and "task_handles" in view.servers[server]:
                    followed = _PolledTask(hub, call, server, self._notify)
            elif self._hub_tasks is not None:
                followed = await self._hub_tasks.follow(caller, surface, client_caps, id, self._notify)
            if followed is not None:
                self._followed[id] = followed
        if elsewhere and hub.tasks.other_nodes is not None:
            self._elsewhere = await hub.tasks.other_nodes.follow(caller, surface, client_caps, elsewhere, self._notify)
        return (*self._followed, *(id for each in self._elsewhere for id in each.ids))

    def start(self) -> None:
        """Start polling."""
        for followed in (*self._followed.values(), *self._elsewhere):
            followed.start()

    def close(self) -> None:
        """Stop polling."""
        for followed in (*self._followed.values(), *self._elsewhere):
            followed.stop()


class _PolledTask(HubExchange):
    """One task, polled until it has ended or its server no longer knows it."""

    def __init__(self, hub: Hub, call: Call, server: ServerName, notify: OnTaskState) -> None:
        self._hub = hub
        self._call = call
        self._server = server
        self._notify = notify
        self._pause = POLL_SECONDS
        self._last_digest = b""
        self._is_done = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Poll once; further polls follow."""
        if not self._is_done:
            self._hub.start(self._call, self)

    def stop(self) -> None:
        """Stop polling, and ignore a poll that is under way."""
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()

    def emit(self, event: Event) -> None:
        """Events of a poll are ignored."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """Questions of a task are part of its state, so a poll asks nothing."""
        reply(NOT_ASKED)

    def end(self, outcome: Outcome) -> None:
        """Notify of a changed state, and poll again later."""
        if self._is_done:
            return
        if isinstance(outcome, Result):
            self._received(outcome.payload)
        elif isinstance(outcome, ServerError) and outcome.code == INVALID_PARAMS:
            self._is_done = True  # the server has forgotten the task
        if not self._is_done:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self.start)

    def _received(self, payload: msgspec.Raw) -> None:
        state = read_state(payload)
        if state is None or state.id != self._call.name:
            return  # not about this task
        self._is_done = state.is_terminal
        wanted = read_poll_seconds(payload) or POLL_SECONDS
        self._pause = min(max(wanted, POLL_SECONDS_MIN), POLL_SECONDS_MAX)
        digest = hashlib.blake2b(payload, digest_size=16).digest()
        if digest != self._last_digest:
            self._last_digest = digest
            renamed = rename_ids(payload, partial(public_id, self._call.caller, self._server))
            members = object_members(renamed) or {}
            self._notify({key: value for key, value in members.items() if key not in ("resultType", "_meta")})


# -- subscriptions/listen ------------------------------------------------------------------------------------------


class SubscriptionStream:
    """Writes the messages of one `subscriptions/listen`; each names the subscription by the request's id.

    Updates that precede the acknowledgement wait for it.
    """

    def __init__(
        self, id: msgspec.Raw, push: Callable[[bytes], None], frame: Callable[[bytes], bytes] = sse.frame
    ) -> None:
        self._id = id
        self._push = push
        self._frame = frame
        self._early: dict[str, None] | None = {}

    def acknowledgement(self, granted: modern.ListenFilter) -> bytes:
        """The first message of the stream."""
        return self._frame(jsonrpc.notification(modern.ACKNOWLEDGED, modern.acknowledged_params(self._id, granted)))

    def release(self) -> None:
        """The acknowledgement was sent: send the updates that waited for it, and all further ones at once."""
        early, self._early = self._early or {}, None
        for uri in early:
            self.resource_updated(uri)

    def list_changed(self, topic: Topic) -> None:
        """Notify of a changed list."""
        self._push(self._frame(jsonrpc.notification(CHANGED[topic], modern.subscription_params(self._id))))

    def resource_updated(self, uri: str) -> None:
        """Notify of an updated resource."""
        if self._early is not None:
            self._early[uri] = None
            return
        params = modern.subscription_params(self._id, updated_params(uri))
        self._push(self._frame(jsonrpc.notification(UPDATED, params)))

    def task_changed(self, members: Mapping[str, Payload]) -> None:
        """Notify of a task's state."""
        params = modern.subscription_params(self._id, members)
        self._push(self._frame(jsonrpc.notification(TASK_NOTIFICATION, params)))

    def final_result(self) -> bytes:
        """The response to the request, which ends the stream."""
        return self._frame(jsonrpc.result(self._id, modern.listen_result(self._id)))


class ListenSubscription:
    """A modern caller's `subscriptions/listen`. The transport sends the acknowledgement, and closes it."""

    def __init__(
        self,
        client: McpClient,
        stream: SubscriptionStream,
        is_crowded: Callable[[], bool],
        hub_tasks: HubTasks | None = None,
    ) -> None:
        """`is_crowded` says that the caller has not read everything sent so far."""
        self.stream = stream
        self._client = client
        self._tasks = TaskPoller(client, stream.task_changed, hub_tasks)
        self._resources = CallerSubscriptions(client, stream.resource_updated, is_crowded=is_crowded)
        self._lists: ListChangeFeed | None = None

    async def open(self, wanted: modern.ListenFilter) -> modern.ListenFilter:
        """Subscribe to everything that is wanted, and return what was granted.

        All servers are asked at once. A silent one delays the others by `SUBSCRIBE_SECONDS` at most, and its
        resources are not granted.
        """
        uris = wanted.uris[:SUBSCRIPTIONS_MAX]
        granted: set[str] = set()

        async def subscribe(uri: str) -> None:
            if await self._resources.subscribe(uri) is None:
                granted.add(uri)

        try:
            async with asyncio.timeout(SUBSCRIBE_SECONDS):
                await asyncio.gather(*map(subscribe, uris))
        except TimeoutError:
            for uri in uris:
                if uri not in granted:
                    self._resources.unsubscribe(uri)
        return modern.ListenFilter(
            await self._resources.available_topics(wanted.topics),
            tuple(uri for uri in uris if uri in granted),
            await self._tasks.add(wanted.tasks),
        )

    def start(self) -> None:
        """The acknowledgement was sent: send waiting updates, and start polling tasks."""
        self.stream.release()
        self._tasks.start()

    def watch_lists(self, topics: Set[Topic]) -> None:
        """Notify of changes of these lists, where the transport does not do that itself."""
        self._lists = ListChangeFeed(self._client, self.stream.list_changed, topics)

    def close(self) -> None:
        """Unsubscribe from everything."""
        if self._lists is not None:
            self._lists.close()
        self._resources.close()
        self._tasks.close()
