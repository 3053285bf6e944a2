"""Event streams over HTTP, the sessions of legacy callers, and the logs that let these resume (`Last-Event-ID`).

A `ConnectionStream` ends with its connection. A `StreamLog` stores the events of one call for a while, so that its
caller can reconnect. A `NotificationLog` remembers what a session was notified of outside its calls.

A session has a random id and is bound to its caller; sessions are limited in number and idle time. A session is never a
credential: every request is authenticated by itself, and another caller's session is answered like one that does not
exist.

An `HttpEventStream` belongs to no call: a GET stream of a legacy caller, or a `subscriptions/listen`. It stays open
until its caller disconnects, the caller is removed, or the hub stops. `http` opens all of them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias

from isthmus.core.admin_ports import CallerSession
from isthmus.core.calls.running_call import InFlight
from isthmus.core.watch.server_tasks import ServerTask
from isthmus.frontends.http.nodes import ALONE, Nodes, new_id
from isthmus.frontends.http.request_cycle import CROWDED_BYTES, STREAM, KeepAlive, Peer, respond
from isthmus.frontends.mcp.exchange import updated_notification
from isthmus.frontends.mcp.hub_tasks import HubTasks
from isthmus.frontends.mcp.input_required import LegacyClientInput
from isthmus.frontends.mcp.subscriptions import (
    CallerSubscriptions,
    FoundTools,
    ListChangeFeed,
    ListenSubscription,
    McpClient,
    SubscriptionStream,
    TaskStatusNotifier,
)
from isthmus.frontends.mcp.tasks import status_notification
from isthmus.model.callers import Caller
from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities, Surface
from isthmus.model.features import TOPICS, Topic
from isthmus.wire import jsonrpc, sse
from isthmus.wire.jsonrpc import Request
from isthmus.wire.mcp.messages import CHANGED, Implementation
from isthmus.wire.mcp.modern import ListenFilter

Owner: TypeAlias = tuple[str, str]
"""A caller's tenant and name; two tenants may use the same name."""

# -- streams of calls ----------------------------------------------------------------------------------------------

RETRY_MS = 500
"""How soon a caller should reconnect after its stream broke."""

KEEP_SECONDS = 30.0
"""How long the events of an ended call are stored: the connection may have broken during its last bytes."""

EVENTS_MAX = 1_000
EVENTS_BYTES = 256 * 1024
"""Progress and log events stored for one stream. Beyond either limit the oldest are dropped; responses stay."""

QUESTIONS_BYTES = 4 * 1024 * 1024
"""Open requests to the caller stored for one stream. Beyond it the oldest are not repeated after a reconnect."""

CANCELLED_MAX = 100
"""Cancelled request ids that a session remembers without knowing their requests."""

CANCELLED_ID_BYTES_MAX = 256
"""A longer id is not remembered."""

OVERTAKEN_SECONDS = 1.0
"""How much later than its cancellation a request may be read. They come over different connections, and a new one is
read some turns of the event loop later than one that is known."""

ANSWERS_BYTES = 16 * 1024 * 1024
"""Ended streams stored for one caller. Beyond it the oldest go, those that were probably read first."""

TOPICS_MAX = 2_000
"""Lists and resources whose last notification a session's notification log remembers."""

_DIGITS = 9
"""No stream has a billion events, so an id with a longer number is not ours."""


class CallStream(Protocol):
    """The events of one call, and its response."""

    is_done: bool
    """Whether the response was written. Nothing can be sent after it."""

    def send_report(self, message: bytes) -> None:
        """Send what a later report replaces; dropped if the caller reads too slowly."""

    def send(self, message: bytes) -> None:
        """Send what the caller needs."""

    def send_request(self, id: bytes, message: bytes) -> None:
        """Send a request with this id, and repeat it after a reconnect until `settle_request`."""

    def settle_request(self, id: bytes) -> None:
        """A request was answered or is no longer needed."""

    def end(self, message: bytes) -> None:
        """Send the response."""

    def disconnected(self, peer: Peer) -> bool:
        """A connection broke; False if another one has replaced it already."""

    def pause(self, retry_ms: int) -> bool:
        """Close the connection; the caller reconnects after so many milliseconds. False if it cannot."""


class ConnectionStream:
    """A stream that ends with its connection."""

    __slots__ = ("_keep_alive", "_peer", "is_done")

    def __init__(self, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        peer.begin(200, STREAM)
        self._peer = peer
        self._keep_alive = KeepAlive(peer, loop)
        self.is_done = False

    def send_report(self, message: bytes) -> None:
        """See `CallStream`."""
        if self._peer.buffered_bytes() <= CROWDED_BYTES:
            self.send(message)

    def send(self, message: bytes) -> None:
        """See `CallStream`."""
        self._peer.push(sse.frame(message))

    def send_request(self, id: bytes, message: bytes) -> None:
        """See `CallStream`; this stream cannot be resumed."""
        self.send(message)

    def settle_request(self, id: bytes) -> None:
        """Nothing is stored."""

    def end(self, message: bytes) -> None:
        """See `CallStream`."""
        self.is_done = True
        self._keep_alive.stop()
        self._peer.end(sse.frame(message))

    def disconnected(self, peer: Peer) -> bool:
        """See `CallStream`."""
        self._keep_alive.stop()
        return True

    def pause(self, retry_ms: int) -> bool:
        """This stream cannot be resumed."""
        return False


class StreamOwner(Protocol):
    """Writes to a stream log, and is notified of its connections."""

    def disconnected(self, peer: Peer) -> None:
        """A connection broke; not necessarily the current one."""

    def reconnected(self) -> None:
        """The caller reads the stream again."""


class StreamLog:
    """One call's stream: sends every event to the current connection, and stores it for the next."""

    def __init__(self, store: StreamStore, session: str, owner: StreamOwner) -> None:
        self.name = secrets.token_urlsafe(12)
        self.session = session
        self.is_done = False
        self.is_delivered = False
        """Whether a connection was open at the end. Whether the bytes arrived is unknown."""
        self.size_bytes = 0
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._owner: StreamOwner | None = owner
        self._events: dict[int, bytes] = {}
        self._reports: deque[int] = deque()
        self._reports_bytes = 0
        self._requests: dict[bytes, int] = {}
        self._requests_bytes = 0
        self._last = 0
        self._peer: Peer | None = None
        self._keep_alive: KeepAlive | None = None
        self._release: Callable[[], None] | None = None

    # -- connections -----------------------------------------------------------------------------------------------

    def start(self, peer: Peer, *, is_primed: bool) -> None:
        """Begin on the call's own connection. Primed, the caller can reconnect before the first event."""
        self._attach(peer, None)
        if is_primed:
            peer.push(sse.prime(self._event_id(0), RETRY_MS))

    def resume(self, peer: Peer, after: int, release: Callable[[], None]) -> None:
        """Continue here after that event; `release` is called when this connection is no longer used."""
        self._close_connection(b"")
        self._attach(peer, release)
        missed = [chunk for number, chunk in self._events.items() if number > after]
        peer.push(b"".join([sse.comment(), *missed]))
        if self.is_done:
            self._close_connection(b"")
        elif self._owner is not None:
            self._owner.reconnected()
            peer.on_disconnect(partial(self._owner.disconnected, peer))

    def disconnected(self, peer: Peer) -> bool:
        """See `CallStream`."""
        if peer is not self._peer:
            return False
        self._detach()
        return True

    def _attach(self, peer: Peer, release: Callable[[], None] | None) -> None:
        self._peer = peer
        self._release = release
        peer.begin(200, STREAM)
        self._keep_alive = KeepAlive(peer, self._loop)

    def _close_connection(self, last: bytes) -> None:
        if self._peer is not None:
            peer = self._peer
            self._detach()
            peer.end(last)

    def _detach(self) -> None:
        self._peer = None
        if self._keep_alive is not None:
            self._keep_alive.stop()
            self._keep_alive = None  # it holds the peer, with all that it sent
        release, self._release = self._release, None
        if release is not None:
            release()

    # -- events ----------------------------------------------------------------------------------------------------

    def _event_id(self, number: int) -> str:
        return f"{self.name}.{number}"

    def _store_event(self, message: bytes) -> bytes:
        self._last += 1
        chunk = self._events[self._last] = sse.frame(message, id=self._event_id(self._last))
        self.size_bytes += len(chunk)
        return chunk

    def _drop_event(self, number: int) -> int:
        """Delete a stored event and return its size."""
        dropped = len(self._events.pop(number))
        self.size_bytes -= dropped
        return dropped

    def send_report(self, message: bytes) -> None:
        """See `CallStream`."""
        if self._peer is not None and self._peer.buffered_bytes() > CROWDED_BYTES:
            return
        self.send(message)

    def send(self, message: bytes) -> None:
        """See `CallStream`. Stored like a report."""
        chunk = self._store_event(message)
        self._reports.append(self._last)
        self._reports_bytes += len(chunk)
        while len(self._reports) > EVENTS_MAX or self._reports_bytes > EVENTS_BYTES:
            self._reports_bytes -= self._drop_event(self._reports.popleft())
        if self._peer is not None:
            self._peer.push(chunk)

    def send_request(self, id: bytes, message: bytes) -> None:
        """See `CallStream`."""
        chunk = self._store_event(message)
        self._requests[id] = self._last
        self._requests_bytes += len(chunk)
        while self._requests_bytes > QUESTIONS_BYTES and len(self._requests) > 1:
            self.settle_request(next(iter(self._requests)))
        if self._peer is not None:
            self._peer.push(chunk)

    def settle_request(self, id: bytes) -> None:
        """See `CallStream`."""
        number = self._requests.pop(id, None)
        if number is not None and not self.is_done:  # else the store has counted its bytes already
            self._requests_bytes -= self._drop_event(number)

    def pause(self, retry_ms: int) -> bool:
        """See `CallStream`."""
        if self._peer is None:
            return False
        self._close_connection(sse.retry(retry_ms))
        return True

    def end(self, message: bytes) -> None:
        """Send the response, and store it for a while."""
        chunk = self._store_event(message)
        self.is_done = True
        self.is_delivered = self._peer is not None
        self._owner = None
        self._close_connection(chunk)
        self._store.stream_ended(self)


class StreamStore:
    """The stream logs of one caller's sessions, by name. Ended ones are stored for a while."""

    def __init__(self) -> None:
        self._logs: dict[str, StreamLog] = {}
        self._expires: dict[str, float] = {}
        """When each ended log is dropped, the next one first."""
        self._ended_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._logs)

    def open(self, session: str, owner: StreamOwner) -> StreamLog:
        """A new stream log for a session."""
        log = StreamLog(self, session, owner)
        self._logs[log.name] = log
        return log

    def find(self, session: str, event_id: str) -> tuple[StreamLog, int] | None:
        """The log of an event, and the event's number; None if this session has no such log."""
        name, _, number = event_id.rpartition(".")
        log = self._logs.get(name)
        if log is None or log.session != session or not _is_number(number):
            return None
        return log, int(number)

    def stream_ended(self, log: StreamLog) -> None:
        """Keep an ended log for a while, within the limit of bytes."""
        if log.name not in self._logs:  # its session has ended
            return
        loop = asyncio.get_running_loop()
        self._expires[log.name] = loop.time() + KEEP_SECONDS
        self._ended_bytes += log.size_bytes
        while self._ended_bytes > ANSWERS_BYTES and len(self._expires) > 1:
            *older, _newest = self._expires
            self._drop(next((name for name in older if self._logs[name].is_delivered), older[0]))
        if self._timer is None:
            self._timer = loop.call_later(KEEP_SECONDS, self._expire)

    def forget(self, session: str) -> None:
        """Drop all logs of a session that has ended."""
        for name in [name for name, log in self._logs.items() if log.session == session]:
            self._drop(name)

    def _drop(self, name: str) -> None:
        log = self._logs.pop(name)
        if self._expires.pop(name, None) is not None:
            self._ended_bytes -= log.size_bytes

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for name, due in list(self._expires.items()):
            if due > loop.time():
                self._timer = loop.call_at(due, self._expire)
                return
            self._drop(name)


class NotificationLog:
    """The last notification about each list and resource that a session received outside its calls."""

    def __init__(self) -> None:
        self._name = secrets.token_urlsafe(12)
        self._events: dict[str, tuple[int, bytes]] = {}
        self._last = 0

    def mark(self, last_event_id: str | None = None) -> bytes:
        """The start of a stream: the event id from which the caller can resume."""
        return sse.mark(last_event_id or f"{self._name}.{self._last}", RETRY_MS)

    def add(self, topic: str, message: bytes) -> bytes:
        """The event for a message about a list or resource; it replaces the last one about the same."""
        self._last += 1
        chunk = sse.frame(message, id=f"{self._name}.{self._last}")
        self._events.pop(topic, None)
        self._events[topic] = (self._last, chunk)
        if len(self._events) > TOPICS_MAX:
            del self._events[next(iter(self._events))]
        return chunk

    def forget(self, topic: str) -> None:
        """Drop the notification about this."""
        self._events.pop(topic, None)

    def after(self, event_id: str) -> bytes | None:
        """The events after this one; None if the id is not from this log."""
        name, _, number = event_id.rpartition(".")
        if name != self._name or not _is_number(number):
            return None
        return b"".join(chunk for sent, chunk in self._events.values() if sent > int(number))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


# -- sessions ------------------------------------------------------------------------------------------------------

SESSIONS_MAX = 1_000
"""Sessions of one caller. Opening one more closes the one that was unused longest."""

IDLE_SECONDS = 3600.0
"""A session unused for this long is closed; its caller initializes again."""

UNSENT_TASKS_MAX = 100
"""Task updates stored for a session without a stream; the caller can also poll its tasks at any time."""

POLLING_VERSION = "2025-11-25"
"""From this version on, streams may begin with an empty event, and be closed and resumed."""


@dataclass(slots=True, eq=False)
class SessionStream:
    """An open GET stream, for messages that belong to no call."""

    send: Callable[[bytes], None]
    end: Callable[[], None]
    unsent_bytes: Callable[[], int] = lambda: 0


@dataclass(slots=True)
class HttpSession:
    """What the hub stores between two requests of a legacy caller."""

    id: str
    caller: Caller
    surface: Surface
    used_at: float
    store: StreamStore = field(default_factory=StreamStore)
    """The call streams of its caller, this session's among them."""
    version: str = ""
    """The negotiated protocol version."""
    calls: dict[bytes, InFlight] = field(default_factory=dict)
    """Calls in flight by the caller's request id, for `notifications/cancelled`."""
    waiting: set[bytes] = field(default_factory=set)
    """Calls that wait for starting servers before they are sent."""
    reading: int = 0
    """Messages whose bodies are being read."""
    cancelled: dict[bytes, float] = field(default_factory=dict)
    """Request ids that were cancelled and are not known, oldest first, with the time: a request that is being read, or
    will be, may have it."""
    streams: list[SessionStream] = field(default_factory=list)
    """Open GET streams; the latest is used. A session with one counts as in use."""
    seen: dict[Topic, bytes] = field(default_factory=dict)
    """Digests of the lists as last returned to the caller."""
    notified: dict[Topic, bytes] = field(default_factory=dict)
    """Digests of the lists as last returned, or as last notified."""
    subscriptions: CallerSubscriptions | None = None
    client_caps: ClientCapabilities = NO_CAPABILITIES
    client_input: LegacyClientInput = field(default_factory=LegacyClientInput)
    notifications: NotificationLog = field(default_factory=NotificationLog)
    unsent_updates: dict[str, None] = field(default_factory=dict)
    """Resources that were updated while no stream was open, in the order of their first update."""
    task_status: TaskStatusNotifier | None = None
    unsent_tasks: dict[ServerTask, None] = field(default_factory=dict)
    """Tasks whose status changed while no stream was open."""
    opened_at: float = 0.0
    client_info: Implementation | None = None
    """What the client calls itself."""
    found: FoundTools = field(default_factory=FoundTools)

    @property
    def can_resume(self) -> bool:
        """Whether its caller knows that streams can be closed and resumed."""
        return self.version >= POLLING_VERSION

    def is_crowded(self) -> bool:
        """Whether the caller has not read everything sent so far."""
        return bool(self.streams) and self.streams[-1].unsent_bytes() > 0

    def is_slow(self) -> bool:
        """Whether the caller is far behind with reading."""
        return bool(self.streams) and self.streams[-1].unsent_bytes() > CROWDED_BYTES

    def send(self, message: bytes) -> None:
        """Send a message that belongs to no running call; dropped if no stream is open."""
        if self.streams:
            self.streams[-1].send(sse.frame(message))

    def send_report(self, message: bytes) -> None:
        """Send what a later report replaces; dropped if the caller reads slowly."""
        if not self.is_slow():
            self.send(message)

    def resource_updated(self, uri: str) -> None:
        """Notify of an updated resource, now or when the next stream opens."""
        if not self.streams:
            self.unsent_updates[uri] = None
        else:
            self.streams[-1].send(self.notifications.add(uri, updated_notification(uri)))

    def forget_resource(self, uri: str) -> None:
        """Drop notifications about a resource that the caller has unsubscribed from."""
        self.unsent_updates.pop(uri, None)
        self.notifications.forget(uri)

    def task_changed(self, task: ServerTask) -> None:
        """Notify of a task's status, now or when the next stream opens."""
        if self.streams:
            self.send(status_notification(task, self.caller))
            return
        self.unsent_tasks[task] = None
        if len(self.unsent_tasks) > UNSENT_TASKS_MAX:
            del self.unsent_tasks[next(iter(self.unsent_tasks))]

    def list_changed(self, topic: Topic, stream: SessionStream) -> bool:
        """Notify of a changed list on this stream; False if a later stream does it instead."""
        if self.streams[-1:] != [stream]:
            return False
        stream.send(self.notifications.add(CHANGED[topic], jsonrpc.notification(CHANGED[topic], None)))
        return True

    def open_stream(self, stream: SessionStream, last_event_id: str | None = None) -> None:
        """Use this stream from now on. First repeat what followed `last_event_id`, then send what is unsent."""
        missed = None if last_event_id is None else self.notifications.after(last_event_id)
        if missed:
            stream.send(missed)
        self.streams.append(stream)
        updates, self.unsent_updates = self.unsent_updates, {}
        for uri in updates:
            self.resource_updated(uri)
        tasks, self.unsent_tasks = self.unsent_tasks, {}
        for task in tasks:
            self.task_changed(task)

    def track(self, id: bytes, inflight: InFlight, on_end: Callable[[], None] | None) -> Callable[[], None]:
        """Let the caller cancel a call by its request id; returns the call's new `on_end`, which also stops that."""
        self.calls[id] = inflight

        def release() -> None:
            if self.calls.get(id) is inflight:
                del self.calls[id]
            if on_end is not None:
                on_end()

        return release

    def cancel(self, id: bytes, now: float) -> None:
        """Cancel the call with this request id, also if its request is being read, or overtaken by this."""
        inflight = self.calls.get(id)
        if inflight is not None:
            inflight.cancel("by the caller")
        elif id in self.waiting:
            self.waiting.discard(id)
        elif len(id) <= CANCELLED_ID_BYTES_MAX:
            self.cancelled.pop(id, None)
            if len(self.cancelled) >= CANCELLED_MAX:
                del self.cancelled[next(iter(self.cancelled))]
            self.cancelled[id] = now

    def was_cancelled(self, id: bytes, now: float) -> bool:
        """Whether the call with this request id was cancelled before its request was read."""
        cancelled_at = self.cancelled.pop(id, None)
        return cancelled_at is not None and (self.reading > 0 or now - cancelled_at < OVERTAKEN_SECONDS)


class HttpSessions:
    """All sessions, by caller, so that no caller can crowd out another. Time comes in as an argument."""

    def __init__(self, on_close: Callable[[str], None] = lambda _id: None, nodes: Nodes = ALONE) -> None:
        """`on_close` is called with the id of every closed session, after its calls were cancelled."""
        self._on_close = on_close
        self._nodes = nodes
        self._by_owner: dict[Owner, OrderedDict[str, HttpSession]] = {}
        self._stores: dict[Owner, StreamStore] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_owner.values()))

    def open(self, caller: Caller, surface: Surface, now: float, version: str = "") -> HttpSession:
        """Open a session. Closes the caller's idle ones, and its oldest if it has too many."""
        owner = caller.tenant, caller.name
        existing = self._by_owner.get(owner, OrderedDict())
        for session in list(existing.values()):
            if not _is_idle(session, now):
                break
            self.close(session)
        if len(existing) >= SESSIONS_MAX:
            self.close(next(iter(existing.values())))
        own = self._by_owner.setdefault(owner, OrderedDict())
        store = self._stores.setdefault(owner, StreamStore())
        session = HttpSession(new_id(self._nodes, 24), caller, surface, now, store, version, opened_at=now)
        own[session.id] = session
        return session

    def describe(self, since: float) -> Iterator[CallerSession]:
        """All sessions; `since` is the time of day at which their clock started."""
        for own in self._by_owner.values():
            for session in own.values():
                yield describe_session(
                    "mcp",
                    session.caller,
                    session.client_info,
                    session.version,
                    (since + session.opened_at, since + session.used_at),
                    calls=len(session.calls),
                    streams=len(session.streams),
                )

    def sweep(self, now: float) -> None:
        """Close every idle session."""
        for own in list(self._by_owner.values()):
            for session in [session for session in own.values() if _is_idle(session, now)]:
                self.close(session)

    def find(self, id: str, caller: Caller, surface: Surface, now: float) -> HttpSession | None:
        """The caller's own session; None if it is unknown, expired or another caller's."""
        own = self._by_owner.get((caller.tenant, caller.name), OrderedDict())
        session = own.get(id)
        if session is None or session.caller != caller or session.surface != surface:
            return None
        if _is_idle(session, now):
            self.close(session)
            return None
        session.used_at = now
        own.move_to_end(id)
        return session

    def retain(self, callers: Container[Caller]) -> None:
        """Close the sessions of all other callers: those removed, or whose permissions changed."""
        for own in list(self._by_owner.values()):
            for session in list(own.values()):
                if session.caller not in callers:
                    self.close(session)

    def close(self, session: HttpSession) -> None:
        """Close a session: cancel its calls and end its streams."""
        owner = session.caller.tenant, session.caller.name
        own = self._by_owner.get(owner, OrderedDict())
        if own.pop(session.id, None) is not None and not own:
            # There may be thousands of callers, each known by its own token.
            del self._by_owner[owner], self._stores[owner]
        if session.subscriptions is not None:
            session.subscriptions.close()
        if session.task_status is not None:
            session.task_status.close()
        session.client_input.close()
        for inflight in list(session.calls.values()):
            inflight.cancel("the session was ended")
        self._on_close(session.id)
        session.store.forget(session.id)
        for stream in list(session.streams):
            stream.end()


def describe_session(
    frontend: str,
    caller: Caller,
    client: Implementation | None,
    version: str,
    times: tuple[float, float],
    *,
    calls: int,
    streams: int,
) -> CallerSession:
    """A session as operators see it; `times` are when it was opened and last used."""
    name, client_version = (None, None) if client is None else (client.name, client.version or None)
    about = (name, client_version, version or None)
    return CallerSession(frontend, caller.name, caller.tenant, *about, *times, calls, streams)


def _is_idle(session: HttpSession, now: float) -> bool:
    return now - session.used_at > IDLE_SECONDS and not session.calls and not session.streams


# -- streams that belong to no call --------------------------------------------------------------------------------


class OpenStreams:
    """All open streams with their callers. Setting a stream's future ends it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._callers: dict[asyncio.Future[None], Caller] = {}
        self._retained: Container[Caller] | None = None
        """The callers that may still have streams; None before the first `retain`."""

    def __len__(self) -> int:
        return len(self._callers)

    def add(self, over: asyncio.Future[None], caller: Caller) -> None:
        """A stream is opened; it ends at once if its caller was removed meanwhile."""
        self._callers[over] = caller
        if self._retained is not None and caller not in self._retained:
            set_over(over)

    def callers(self) -> list[Caller]:
        """The caller of each stream."""
        return list(self._callers.values())

    def remove(self, over: asyncio.Future[None]) -> None:
        """A stream has ended."""
        self._callers.pop(over, None)

    def end_all(self) -> None:
        """End every stream, because the hub stops."""
        for over in list(self._callers):
            set_over(over)

    def retain(self, callers: Container[Caller]) -> None:
        """End the streams of all other callers, also of those that are still being opened."""
        self._retained = callers
        for over, caller in list(self._callers.items()):
            if caller not in callers:
                set_over(over)


class HttpEventStream:
    """One caller's stream on one connection."""

    def __init__(self, streams: OpenStreams, client: McpClient, peer: Peer) -> None:
        self._streams = streams
        self._loop = streams.loop
        self._client = client
        self._peer = peer

    async def notify_list_changes(self) -> None:
        """Notify a caller without a session of changed lists."""

        def notify(topic: Topic) -> None:
            self._peer.push(sse.frame(jsonrpc.notification(CHANGED[topic], None)))

        self._peer.begin(200, STREAM)
        self._peer.push(sse.comment())
        await self._run(b"", TOPICS, notify, {})

    async def resume_call(self, session: HttpSession, last: str) -> None:
        """Resume a call's stream after the event that the caller received last."""
        found = session.store.find(session.id, last)
        if found is None:
            # A 404 would mean that the session is gone.
            return respond(self._peer, 400, "This session has no event with this Last-Event-ID, or has deleted it")
        log, number = found
        over: asyncio.Future[None] = self._loop.create_future()
        log.resume(self._peer, number, partial(set_over, over))
        return await over

    async def serve_session(self, session: HttpSession, last: str | None) -> None:
        """Send a session what belongs to no call, after the event `last` if given."""
        over: asyncio.Future[None] = self._loop.create_future()
        stream = SessionStream(self._peer.push, partial(set_over, over), self._peer.buffered_bytes)
        self._peer.begin(200, STREAM)
        self._peer.push(session.notifications.mark(last) if session.can_resume else sse.comment())
        session.open_stream(stream, last)
        for topic in TOPICS:  # later changes are notified, on this stream or on the next
            session.notified.setdefault(topic, session.seen.get(topic) or self._digest(topic))
        seen = {**session.notified, **session.seen} if last is None else session.notified
        try:
            notify = partial(self._notify_session, session, stream)
            return await self._run(b"", TOPICS, notify, seen, over)
        finally:
            session.streams.remove(stream)
            session.used_at = self._loop.time()
            for topic in TOPICS:  # an earlier stream takes over, with the changes that this one did not send
                if session.streams and session.notified[topic] != self._digest(topic):
                    self._notify_session(session, session.streams[-1], topic)

    def list_returned(self, session: HttpSession, topic: Topic) -> None:
        """Note that the session has received a list as it is now."""
        session.seen[topic] = session.notified[topic] = self._digest(topic)

    def _digest(self, topic: Topic) -> bytes:
        return self._client.view().digest_of(topic)

    def _notify_session(self, session: HttpSession, stream: SessionStream, topic: Topic) -> None:
        if session.list_changed(topic, stream):
            session.notified[topic] = self._digest(topic)

    async def serve_subscription(self, request: Request, wanted: ListenFilter, hub_tasks: HubTasks | None) -> None:
        """A `subscriptions/listen` stream: the acknowledgement comes first, and every message has the request's id."""
        stream = SubscriptionStream(request.id, self._peer.push)
        subscription = ListenSubscription(self._client, stream, lambda: self._peer.buffered_bytes() > 0, hub_tasks)
        try:
            granted = await subscription.open(wanted)
            self._peer.begin(200, STREAM)
            self._peer.push(stream.acknowledgement(granted))
            subscription.start()
            return await self._run(stream.final_result(), granted.topics, stream.list_changed, {})
        finally:
            subscription.close()

    async def _run(
        self,
        last: bytes,
        topics: Iterable[Topic],
        notify: Callable[[Topic], None],
        seen: Mapping[Topic, bytes],
        over: asyncio.Future[None] | None = None,
    ) -> None:
        """Keep the stream open until `over`; `notify` is called for every list that changes, `last` is sent last."""
        over = over or self._loop.create_future()
        self._streams.add(over, self._client.caller)
        self._peer.on_disconnect(partial(set_over, over))
        feed = ListChangeFeed(self._client, notify, topics, seen=seen)
        keep_alive = KeepAlive(self._peer, self._loop)
        try:
            await over
        finally:
            keep_alive.stop()
            self._streams.remove(over)
            feed.close()
        self._peer.end(last)


def set_over(over: asyncio.Future[None]) -> None:
    """Set the future's result, unless it is set already."""
    if not over.done():
        over.set_result(None)
