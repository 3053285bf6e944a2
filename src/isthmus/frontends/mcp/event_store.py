"""Event streams of calls, and the logs that let legacy callers resume them (`Last-Event-ID`).

A `ConnectionStream` ends with its connection. A `StreamLog` stores the events of one call for a while, so that its
caller can reconnect. A `NotificationLog` remembers what a session was notified of outside its calls. None of them
knows JSON-RPC or sessions: exchanges write to streams, sessions to notification logs, and `http` resumes them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from isthmus.frontends.http.request_cycle import CROWDED_BYTES, STREAM, KeepAlive, Peer
from isthmus.wire import sse

RETRY_MS = 500
"""How soon a caller should reconnect after its stream broke."""

KEEP_SECONDS = 30.0
"""How long the events of an ended call are stored: the connection may have broken during its last bytes."""

EVENTS_MAX = 1_000
EVENTS_BYTES = 256 * 1024
"""Progress and log events stored for one stream. Beyond either limit the oldest are dropped; responses stay."""

QUESTIONS_BYTES = 4 * 1024 * 1024
"""Open requests to the caller stored for one stream. Beyond it the oldest are not repeated after a reconnect."""

ANSWERS_BYTES = 16 * 1024 * 1024
"""Ended streams stored for one caller. Beyond it the oldest go, those that were probably read first."""

TOPICS_MAX = 2_000
"""Lists and resources of which a session's notification log remembers the last notification."""

_DIGITS = 9
"""No stream has a billion events, so an id with a longer number is not ours."""


class CallStream(Protocol):
    """The events of one call, and its response."""

    is_over: bool
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

    __slots__ = ("_keep_alive", "_peer", "is_over")

    def __init__(self, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        peer.begin(200, STREAM)
        self._peer = peer
        self._keep_alive = KeepAlive(peer, loop)
        self.is_over = False

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
        self.is_over = True
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
        self.is_over = False
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
        if self.is_over:
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
        if number is not None and not self.is_over:  # else the store has counted its bytes already
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
        self.is_over = True
        self.is_delivered = self._peer is not None
        self._owner = None
        self._close_connection(chunk)
        self._store.ended(self)


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

    def ended(self, log: StreamLog) -> None:
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
