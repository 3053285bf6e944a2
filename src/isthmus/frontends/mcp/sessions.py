"""HTTP sessions of legacy callers: random ids, bound to the caller, limited in number and idle time.

A session is never a credential: every request is authenticated by itself, and another caller's session is answered
like one that does not exist.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import TypeAlias

from isthmus.core.calls.inflight import InFlight
from isthmus.core.watch.server_tasks import ServerTask
from isthmus.frontends.http.request_cycle import CROWDED_BYTES
from isthmus.frontends.mcp.event_store import NotificationLog, StreamStore
from isthmus.frontends.mcp.exchange import updated_notification
from isthmus.frontends.mcp.input_required import LegacyClientInput
from isthmus.frontends.mcp.subscriptions import CallerSubscriptions, TaskStatusNotifier
from isthmus.frontends.mcp.tasks import status_notification
from isthmus.model.callers import Caller
from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities, Surface
from isthmus.model.features import Topic
from isthmus.wire import jsonrpc, sse
from isthmus.wire.mcp.messages import CHANGED

Owner: TypeAlias = tuple[str, str]
"""A caller's tenant and name; two tenants may use the same name."""

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

    def cancel(self, id: bytes) -> None:
        """Cancel the call with this request id, if there is one."""
        self.waiting.discard(id)
        inflight = self.calls.get(id)
        if inflight is not None:
            inflight.cancel("by the caller")


class HttpSessions:
    """All sessions, by caller, so that no caller can crowd out another. Time comes in as an argument."""

    def __init__(self, on_close: Callable[[str], None] = lambda _id: None) -> None:
        """`on_close` is called with the id of every closed session, after its calls were cancelled."""
        self._on_close = on_close
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
        session = HttpSession(secrets.token_urlsafe(24), caller, surface, now, store, version)
        own[session.id] = session
        return session

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


def _is_idle(session: HttpSession, now: float) -> bool:
    return now - session.used_at > IDLE_SECONDS and not session.calls and not session.streams
