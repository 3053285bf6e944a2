"""One client's HTTP connection: parses requests, runs them in order, and enforces the limits.

uvicorn's httptools protocol parses; this adds what it lacks. A connection has no timer of its own: `HttpListener`
calls `inspect` regularly. A connection that becomes a WebSocket leaves the listener.
"""

from __future__ import annotations

import asyncio
import re
import select
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, cast
from urllib.parse import unquote

import httptools
import structlog
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from isthmus.core.event_loop import LONG_BYTES, in_turn
from isthmus.frontends.http.auth import Denied
from isthmus.frontends.http.request_cycle import (
    FIELDS,
    App,
    Message,
    RequestCycle,
    SyncHandler,
    call_contained,
    join_headers,
    render_error,
)
from isthmus.frontends.http.settings import AddressCounts, HttpListenerSettings
from isthmus.frontends.http.websocket_upgrade import AcceptedUpgrade, OnUpgrade, shake_hands
from isthmus.transport.accepted_socket import AcceptedSocket
from isthmus.transport.flow_control import AgentBandwidth, WriteBatch

HEADS_MAX = 4
"""Request heads that one connection caches, the first ones; a client has one for each tool that it names."""

HEAD_BYTES_MAX = 4096
"""A longer head is not cached."""

_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,9})\r\n", re.IGNORECASE)
_DIGITS_MAX = 9


class CachedHeader(NamedTuple):
    """A parsed request head: the bytes before and after its content length, and the scope that its requests share.

    A client that reuses its connection sends the same head with nearly every request, except for the content length.
    The same bytes mean the same, so they are not parsed again. Only requests that one read brings whole are matched;
    everything else goes to the parser.
    """

    before: bytes
    after: bytes
    scope: Message

    def body_in(self, data: bytes) -> bytes | None:
        """The body, if `data` is one whole request with this head; else None."""
        if not data.startswith(self.before):
            return None
        start = len(self.before)
        end = data.find(b"\r", start, start + _DIGITS_MAX + 1)
        if end < 0 or not data.startswith(self.after, end):
            return None
        digits = data[start:end]
        body = data[end + len(self.after) :]
        return body if digits.isdigit() and int(digits) == len(body) else None


def cached_header(data: bytes, body_bytes: int, scope: Message) -> CachedHeader | None:
    """The head of the request that the parser has just read; None if `data` is not exactly that request."""
    head = data[: len(data) - body_bytes]
    length = _LENGTH.search(head)
    if length is None or len(head) > HEAD_BYTES_MAX or data.find(_END) + len(_END) != len(head):
        return None
    if head.count(b"\n") != head.count(b"\r\n"):
        return None  # with bare LF line ends, the match above may be in the wrong place
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    if len(lengths) != 1 or int(length[1]) != body_bytes or not body_bytes:
        return None
    shared = {**scope, "headers": [*scope["headers"]], FIELDS: join_headers(scope["headers"])}
    shared.pop("extensions", None)
    return CachedHeader(head[: length.start(1)], head[length.end(1) :], shared)


class RequestRefused(Exception):
    """A request is refused. Raised in parser callbacks, because that stops the parser at once."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


def refuse_now(status: int, sentence: str) -> NoReturn:
    """Stop the parser and refuse the request."""
    raise RequestRefused(status, sentence)


def refusal_for(error: httptools.HttpParserError) -> RequestRefused:
    """The refusal for a parser error: the one that a callback raised, or that this is not HTTP."""
    cause = error.__context__
    if isinstance(cause, RequestRefused):
        return cause
    # A head that is parsed again without its Upgrade header fails in the context of that upgrade.
    if cause is not None and not isinstance(cause, httptools.HttpParserUpgrade):
        log.error("reading an HTTP request failed", exc_info=cause)
    return RequestRefused(400, "This is not a valid HTTP request.")


class Target(NamedTuple):
    """The parts of a request target."""

    whole: bytes
    path: str
    raw_path: bytes
    query: bytes


NO_TARGET = Target(b"", "/", b"/", b"")


def split_target(target: bytes) -> Target:
    """Split a request target. Raises: RequestRefused."""
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        refuse_now(400, "The request's target is not a path.")
    raw_path = url.path or b"/"
    path = raw_path.decode("ascii")
    return Target(target, unquote(path) if "%" in path else path, raw_path, url.query or b"")


log = structlog.get_logger(__name__)

LINGER_SECONDS = 2.0
"""How long a refused client may continue to send; closing with unread bytes would reset our response away."""

TURNED_AWAY_MAX = 256
"""Connections beyond the limit that may linger to read their refusal; further ones are aborted."""

STALL_PROGRESS_BYTES = 64 * 1024
"""What a client must read of a long response within `stall_seconds`; a slower one would hold our memory."""

JOINED_BYTES = 64 * 1024
"""Pieces of a response up to this size are joined with others of this turn; longer ones are written uncopied."""

READ_BUFFER_BYTES = 64 * 1024
"""Bytes of a body that wait for the application at which reading pauses."""

AT_ONCE_BYTES = LONG_BYTES
"""A body up to this announced length is awaited before its request starts, which then may need no task. A longer one is
read in passes."""

MAX_WAITING = 8
"""Pipelined requests at which reading pauses."""

MAX_PIPELINED = 64
"""Pipelined requests that one read may bring at most, before the pause takes effect."""

HoldResponse = Callable[[Message, int], Callable[[], None]]
"""Counts a long response to the request of this scope, until the returned function is called."""

Phase = Literal["head", "body", "between", "leaving"]
"""What is being read: a head, a body, nothing, or what a refused client still sends (discarded)."""

WATCHED_HEADERS = frozenset({b"content-length", b"transfer-encoding", b"content-encoding", b"expect"})
"""Headers that decide how a body is read; given twice, two readers could disagree."""

NOTED_HEADERS = WATCHED_HEADERS | {b"origin"}

BLANKS = b" \t"
"""White space around a header's value; the parser leaves it at the end."""

_SPACE = ord(" ")

_ASGI = {"version": "3.0", "spec_version": "2.3"}


class ListenerState(ServerState):
    """What a listener and its connections share."""

    def __init__(self, settings: HttpListenerSettings) -> None:
        super().__init__()
        self.settings = settings
        self.idle_until: float | None = None
        """Set when draining: the time from which idle connections are closed."""
        self.write_batch = WriteBatch()
        self.shares = AgentBandwidth()
        self.at_once: SyncHandler | None = None
        self.hold_response: HoldResponse | None = None
        """Called with every request that has arrived whole, before the application."""
        self.cors_lines: Callable[[bytes], bytes] = lambda _: b""
        """CORS header lines for an origin."""
        self.on_upgrade: OnUpgrade | None = None
        """Decides on requests for a WebSocket."""
        self.addresses = AddressCounts(settings.max_connections_per_address)
        self.turned_away = 0
        """Lingering connections beyond the limit. They count for their address only."""


class HttpServerConnection(HttpToolsProtocol):
    """One client's connection. Requests are answered in order.

    A refused request is answered after those before it, and nothing behind it is read.
    """

    server_state: ListenerState

    def __init__(self, config: Config, server_state: ListenerState) -> None:
        super().__init__(config, server_state, app_state={})
        self._settings = server_state.settings
        self._running: RequestCycle | None = None
        self._waiting: deque[RequestCycle] = deque()
        self._arriving: RequestCycle | None = None
        self._refusal: bytes | None = None
        self._ignores_input = False
        self._is_starting = False
        self._unsent: list[bytes | memoryview] = []
        self._unsent_bytes = 0
        self._drain_callbacks: list[Callable[[], None]] = []
        """Callbacks for when all output has left."""
        self._phase: Phase = "head"
        self._since = self.loop.time()
        self._received_bytes = 0
        self._window_bytes = 0
        self._body_bytes = 0
        self._watched: dict[bytes, bytes] = {}
        self._origin: bytes | None = None  # Of the latest request.
        self._target = NO_TARGET  # Of the request before, which is mostly the next one's too.
        self._announced_bytes = 0
        self._is_in_line = False
        self._unread: list[Callable[[], None]] = []
        """Release the long responses that the client has not read."""
        self._scope: Message | None = None  # Of the latest request, if its head alone may tell what follows it.
        self._cached_heads: tuple[CachedHeader, ...] = ()
        self._written_bytes = 0
        self._stalled_since: float | None = None
        self._stall_goal_bytes = 0
        self._address = ""
        self._is_turned_away = False

    # The transport's callbacks

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        has_room = self.server_state.addresses.has_room_for(self._address)
        if len(self.connections) - self.server_state.turned_away > self._settings.max_connections:
            self._turn_away("This hub has too many connections. Try again later.")
        elif not has_room:
            self._turn_away("This hub has too many connections from this address. Close some first.")

    def _turn_away(self, sentence: str) -> None:
        self._is_turned_away = True
        self.server_state.turned_away += 1
        if self.server_state.turned_away > TURNED_AWAY_MAX:
            self._ignores_input = True
            self.transport.abort()
        else:
            self._refuse(503, sentence)

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        is_next = self._phase == "between"
        if is_next and self._cached_heads and self._takes_cached(data):
            return
        self._received_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            refused = refusal_for(error)
            self._refuse(refused.status, refused.sentence)
        else:
            self._check_unfinished()
            if is_next and self._scope is not None:
                scope, self._scope = self._scope, None
                if self._phase == "between" and len(self._cached_heads) < HEADS_MAX:
                    seen = cached_header(data, self._announced_bytes, scope)
                    if seen is not None and all(seen[:2] != known[:2] for known in self._cached_heads):
                        self._cached_heads = (*self._cached_heads, seen)

    def eof_received(self) -> None:
        # A half-closed client counts as gone: waiting for it would hide every disconnect.
        self._abandon_cycles()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._drain_callbacks.clear()
        self._release_unread()
        self._abandon_cycles()
        self.flow.resume_writing()
        # The parser holds bound methods of this object; breaking the cycle frees both at once.
        self.parser = cast(Any, None)

    def _leave(self) -> None:
        if self in self.connections:
            self.connections.discard(self)
            self.server_state.addresses.left(self._address)
            self.server_state.turned_away -= self._is_turned_away

    def _abandon_cycles(self) -> None:
        self._ignores_input = True
        waiting, self._waiting = self._waiting, deque()
        for cycle in waiting:
            cycle.leave()
        if self._running is not None:
            self._running.leave()

    # The parser's callbacks

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._get_upgrade() == b"websocket":
                self._switch_to_websocket(data[upgrade.args[0] :])
            else:
                self._parse_without_upgrade(data[upgrade.args[0] :])

    def _takes_cached(self, data: bytes) -> bool:
        """Take a whole request whose head is cached."""
        for seen in self._cached_heads:
            body = seen.body_in(data)
            if body is not None:
                break
        else:
            return False
        if len(self._waiting) >= MAX_PIPELINED or not 0 < len(body) <= min(
            AT_ONCE_BYTES, self._settings.max_body_bytes
        ):
            return False
        self._watched = {}
        self._origin = None  # Heads with an Origin are not cached.
        self._since = self.loop.time()
        self._received_bytes = 0
        is_kept_alive = self.server_state.idle_until is None
        self._start(RequestCycle(self, seen.scope, is_kept_alive=is_kept_alive, body=body))
        return True

    def _parse_without_upgrade(self, rest: bytes) -> None:
        """Parse a request again without its Upgrade header, for a protocol that is not offered here.

        Java's HTTP client asks for h2c with every first request. The parser then takes the body for the other
        protocol's bytes, so ignoring the header means parsing the head once more.
        """
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method(), b" ", self.url, b" HTTP/", version, b"\r\n"]
        for name, value in self.headers:
            if name != b"upgrade":
                lines += [name, b": ", value, b"\r\n"]
        self.parser = httptools.HttpRequestParser(self)
        self._parse(b"".join([*lines, b"\r\n", rest]))

    def _switch_to_websocket(self, rest: bytes) -> None:
        if self._running is not None or self.server_state.idle_until is not None:
            self._refuse(503, "The connection cannot become a WebSocket now. Open a new one.")
            return
        decided = self._decide_upgrade(cast(Message, self.scope))
        if isinstance(decided, Denied):
            self._refuse(decided.status, decided.message, decided.headers)
        else:
            self._become_websocket(decided, rest)

    def _decide_upgrade(self, scope: Message) -> AcceptedUpgrade | Denied:
        on_upgrade = self.server_state.on_upgrade
        if on_upgrade is None:
            return Denied(404, "No WebSocket is offered here.")
        try:
            opening = on_upgrade(scope)
        except Exception:  # a frontend's failure must not reach other clients
            log.exception("deciding on a WebSocket failed")
            return Denied(500, "The hub failed to open a WebSocket.")
        return opening if isinstance(opening, Denied) else shake_hands(scope, opening)

    def _become_websocket(self, agreed: AcceptedUpgrade, rest: bytes) -> None:
        self._ignores_input = True
        self.flush()
        self.transport.write(agreed.answer)
        if agreed.opening.group is None:
            # Without a known agent it is closed soon, and counts for its address until then.
            self.connections.discard(self)
            self.loop.call_later(LINGER_SECONDS, self.server_state.addresses.left, self._address)
        else:
            self._leave()
        # The parser holds bound methods of this object; breaking the cycle frees both at once.
        self.parser = cast(Any, None)
        socket = AcceptedSocket(
            client=self.client and self.client[0],
            write_batch=self.server_state.write_batch,
            share=self.server_state.shares.share_of(agreed.opening.group),
            limit_bytes=agreed.opening.limit_bytes,
            chosen=agreed.chosen,
            ping_seconds=agreed.opening.ping_seconds,
            lag_bytes=self._settings.stall_bytes,
            lag_seconds=self._settings.stall_seconds,
        )
        socket.begin(self.transport, agreed.opening.take, rest)

    def on_message_begin(self) -> None:
        if self._phase == "between":
            self._phase = "head"
            self._since = self.loop.time()
            self._received_bytes = 1  # Its first byte; the read may have been counted for the previous request.
        self.url = b""
        self._watched = {}
        self._origin = None
        self._announced_bytes = 0
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase != "head":
            return  # A trailer: it must not change the headers after authorization has read them.
        name = name.lower()
        if value and value[-1] <= _SPACE:
            value = value.strip(BLANKS)
        if name in NOTED_HEADERS:
            if name == b"origin":
                self._origin = value if self._origin is None else b""
            elif name in self._watched:
                refuse_now(400, f"The header {name.decode()} is given twice.")
            else:
                self._watched[name] = value
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        version = self.parser.get_http_version()
        method = self.parser.get_method().decode("ascii")
        self._check_head(version, method)
        scope = self._make_scope(version, method)
        if self.parser.should_upgrade():
            self.scope = cast(Any, scope)  # For `on_upgrade`, if it asks for a WebSocket.
            return
        self._phase = "body"
        self._since = self.loop.time()
        self._received_bytes = self._window_bytes = self._body_bytes = 0
        is_kept_alive = version == "1.1" and self.parser.should_keep_alive()
        # Kept alive, with a length and nothing else that decides how its body is read.
        is_plain = is_kept_alive and self._announced_bytes > 0 and len(self._watched) == 1 and self._origin is None
        self._scope = scope if is_plain and len(self._cached_heads) < HEADS_MAX else None
        if len(self._waiting) >= MAX_PIPELINED:
            refuse_now(503, "Too many requests are waiting on this connection.")
        self._arriving = RequestCycle(
            self,
            scope,
            is_kept_alive=is_kept_alive and self.server_state.idle_until is None,
            owes_continue=self._watched.get(b"expect", b"").lower() == b"100-continue",
            # Whether the body can be awaited without a reader: the client sends it unasked, and it fits.
            is_short=self.server_state.at_once is not None
            and 0 < self._announced_bytes <= AT_ONCE_BYTES
            and b"expect" not in self._watched,
            cors=b"" if self._origin is None else self.server_state.cors_lines(self._origin),
        )
        self._start(self._arriving)

    def _make_scope(self, version: str, method: str) -> Message:
        if self.url != self._target.whole:
            self._target = split_target(self.url)
        target = self._target
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": method,
            "scheme": self.scheme or "http",
            "path": target.path,
            "raw_path": target.raw_path,
            "query_string": target.query,
            "root_path": "",
            "headers": self.headers,
            "client": self.client,
            "server": self.server,
        }

    def _check_head(self, version: str, method: str) -> None:
        if self._received_bytes > self._settings.max_head_bytes:
            head_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if head_bytes > self._settings.max_head_bytes:
                refuse_now(431, "The request's head is too long.")
        if method == "CONNECT":
            refuse_now(400, "This is not a proxy.")
        if version not in ("1.1", "1.0"):
            refuse_now(505, f"HTTP {version} is not supported. Use HTTP 1.1.")
        watched = self._watched
        if not watched:
            return
        self._announced_bytes = int(watched.get(b"content-length", b"0"))
        if self._announced_bytes > self._settings.max_body_bytes:
            self._refuse_long_body()
        if len(watched) == 1 and self._announced_bytes:
            return  # as nearly every request: a length and nothing else that matters
        if watched.get(b"content-encoding", b"identity").strip().lower() != b"identity":
            refuse_now(415, "Request bodies must not be compressed.")
        if watched.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
            refuse_now(501, "The only supported Transfer-Encoding is chunked.")
        if b"transfer-encoding" in watched and (b"content-length" in watched or version == "1.0"):
            refuse_now(400, "A body needs a Content-Length or, from HTTP 1.1 on, chunked encoding; not both.")

    def _refuse_long_body(self) -> NoReturn:
        refuse_now(413, f"The request's body is longer than {self._settings.max_body_bytes} bytes.")

    def _start(self, cycle: RequestCycle) -> None:
        """Start a request, or let it wait for those before it."""
        if self._running is not None:
            self._waiting.append(cycle)
            if len(self._waiting) >= MAX_WAITING:
                self.flow.pause_reading()
            return
        self._running = cycle
        if cycle.has_whole_body or not cycle.is_short:
            self._begin(cycle)
        # Else its body is on the way, and `on_message_complete` begins it.

    def _begin(self, cycle: RequestCycle) -> None:
        at_once = self.server_state.at_once
        if at_once is not None and cycle.has_whole_body:
            try:
                if at_once(cycle):
                    return
            except Exception:  # its failure affects only this request
                log.exception("the sync handler failed", path=cycle.scope["path"])
                cycle.fail()
                return
        # An ASGI application is a coroutine, so each request is one task. The listener's state owns it.
        task = self.loop.create_task(cycle.run(cast(App, self.app)))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def on_body(self, body: bytes) -> None:
        cycle = self._arriving
        assert cycle is not None, "a body follows a head that was admitted"
        self._body_bytes += len(body)
        if self._body_bytes > self._settings.max_body_bytes:
            self._refuse_long_body()
        if cycle.is_done:
            return
        cycle.add_body(body)
        if (
            cycle.pending_bytes > READ_BUFFER_BYTES and not cycle.is_short
        ):  # nobody receives a short body piece by piece
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        cycle = self._arriving
        if cycle is None:
            return
        self._arriving = None
        self._phase = "between"
        self._since = self.loop.time()
        self._received_bytes = 0
        cycle.end_body()
        if cycle is not self._running:
            return
        if cycle.is_short:
            self._begin(cycle)
        elif cycle.pending_bytes > READ_BUFFER_BYTES:
            self.read_on()  # The body is whole, so nothing else resumes reading, which detects disconnects.

    def _check_unfinished(self) -> None:
        """Limit unfinished messages: an endless head, trailer or chunk extension."""
        if self._ignores_input or self._phase == "between":
            return
        room_bytes = self._settings.max_head_bytes
        if self._phase == "body":
            room_bytes += 2 * self._settings.max_body_bytes
        if self._received_bytes <= room_bytes:
            return
        if self._phase == "head":
            self._refuse(431, "The request's head is too long.")
        else:
            self._refuse(413, "The request's chunk extensions or trailers are too long.")

    # Called by request cycles (see `ConnectionWriter`)

    def put(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write the pieces of a response, in one write unless they are long; abort a client that reads too slowly."""
        if self.transport.is_closing():
            return
        if self.flow.write_paused and self.transport.get_write_buffer_size() > self._settings.stall_bytes:
            self._abort("it holds too much unsent output")
            return
        total_bytes = sum(map(len, pieces))
        self._written_bytes += total_bytes
        if total_bytes <= JOINED_BYTES:
            if not self._unsent:
                self.server_state.write_batch.add(self)
            self._unsent += pieces
            self._unsent_bytes += total_bytes
            return
        self.flush()
        self.transport.writelines(pieces)  # one system call; uvloop makes one for each `write`
        hold = self.server_state.hold_response
        if hold is not None and self._running is not None and self.transport.get_write_buffer_size():
            self._unread.append(hold(self._running.scope, total_bytes))
            self.on_taken(self._release_unread)

    def _release_unread(self) -> None:
        """The client has read everything, or is gone."""
        unread, self._unread = self._unread, []
        for release in unread:
            release()

    def flush(self) -> None:
        """Write what was collected during this iteration of the event loop."""
        pieces, self._unsent, self._unsent_bytes = self._unsent, [], 0
        if pieces and not self.transport.is_closing():
            self.transport.write(b"".join(pieces))

    def buffered_bytes(self) -> int:
        """See `ConnectionWriter`."""
        return self._unsent_bytes + self.transport.get_write_buffer_size()

    def on_taken(self, callback: Callable[[], None]) -> None:
        """See `ConnectionWriter`."""
        if self not in self.connections:
            return
        self._drain_callbacks.append(callback)
        if self._unsent:
            self.loop.call_soon(self._check_drained)  # by then it is written
        else:
            self._check_drained()

    def _check_drained(self) -> None:
        if self._drain_callbacks and self.transport.get_write_buffer_size():
            self.transport.set_write_buffer_limits(high=0)  # so that `resume_writing` is called when nothing is left
        else:
            self._run_drain_callbacks()

    def resume_writing(self) -> None:
        """The transport has room again; or nothing left to send, if callbacks wait for that."""
        super().resume_writing()
        if self._drain_callbacks:
            self.transport.set_write_buffer_limits()
            self._run_drain_callbacks()

    def _run_drain_callbacks(self) -> None:
        takers, self._drain_callbacks = self._drain_callbacks, []
        for callback in takers:
            call_contained(callback)

    def read_on(self) -> None:
        """See `ConnectionWriter`."""
        if len(self._waiting) >= MAX_WAITING or not self.flow.read_paused:
            return
        if self._phase != "body":
            self.flow.resume_reading()
        elif not self._is_in_line:
            # A quarter of a megabyte is read at once, which takes a millisecond: sixty long bodies take turns.
            self._is_in_line = True
            in_turn(self._read_body_on)

    def _read_body_on(self) -> None:
        self._is_in_line = False
        if len(self._waiting) < MAX_WAITING and not self.transport.is_closing():
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """The response is written: start the next request, or close."""
        cycle, self._running = self._running, None
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        assert cycle is not None, "only the running cycle completes"
        if cycle.is_kept_alive and self._waiting:
            self._start_waiting()
        elif cycle.is_kept_alive and self._refusal is None:
            self._since = self.loop.time()
        else:
            self._close_politely(is_last_word=not cycle.is_kept_alive)
        if not self._ignores_input:
            self.read_on()

    def _start_waiting(self) -> None:
        # A request that is answered at once leads back here. The running loop continues instead, or pipelined
        # requests would overflow the stack.
        if self._is_starting:
            return
        self._is_starting = True
        try:
            while (
                self._waiting and self._running is None and self._phase != "leaving" and not self.transport.is_closing()
            ):
                self._start(self._waiting.popleft())
        finally:
            self._is_starting = False

    # Refusing and leaving

    def _refuse(self, status: int, sentence: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Answer the arriving request with an error, after those before it, and read nothing more."""
        log.debug("request refused", client=self.client, status=status, reason=sentence)
        self._ignores_input = True
        cors = b"" if self._origin is None else self.server_state.cors_lines(self._origin)
        self._refusal = render_error(status, sentence, headers, lines=cors)
        cycle, self._arriving = self._arriving, None
        if cycle is not None:
            if not cycle.is_unsaid:
                self.transport.abort()
                return
            if cycle is self._running:
                self._running = None
            else:
                self._waiting.remove(cycle)
            cycle.leave()
        if self._running is None:
            self._close_politely()

    def _close_politely(self, *, is_last_word: bool = False) -> None:
        """Close after the client had a chance to read the refusal, which is sent first unless `is_last_word`."""
        is_still_sending = self._arriving is not None or self._refusal is not None
        self._ignores_input = True
        self._arriving = None
        if self._refusal is not None and not is_last_word:
            self.put([self._refusal])
        if self.transport.is_closing():
            return
        self.flush()
        if not is_still_sending or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._phase = "leaving"
        self._since = self.loop.time()
        self.transport.write_eof()
        self.flow.resume_reading()

    def _abort(self, reason: str) -> None:
        log.info("connection aborted", client=self.client, reason=reason)
        self.transport.abort()

    # Called by the listener

    def shutdown(self) -> None:
        """Close the connection after the running requests."""
        last = self._waiting[-1] if self._waiting else self._running
        if last is not None:
            last.is_kept_alive = False

    def inspect(self, now: float) -> None:
        """Enforce the limits that this connection has exceeded by `now`."""
        if self._is_stalled(now):
            self._abort("it does not read its response")
        elif self.flow.read_paused or (self._arriving is not None and self._arriving.owes_continue):
            # The client waits for us: we do not read, or owe it a 100 Continue.
            self._since = now
            self._window_bytes = self._received_bytes
            # Unread bytes hide that a client has disconnected while reading was paused.
            if self.flow.read_paused and not self.transport.is_closing() and has_hung_up(self.transport):
                self._abandon_cycles()
                self.transport.close()
        elif not self.transport.is_closing():
            self._inspect_reading(now, now - self._since)

    def _inspect_reading(self, now: float, elapsed: float) -> None:
        match self._phase:
            case "leaving":
                if elapsed > min(LINGER_SECONDS, self._settings.header_seconds):
                    self.transport.abort()
            case "between":
                is_idle = self._running is None
                if is_idle and (elapsed > self._settings.keep_alive_seconds or self._is_drained_out(now)):
                    self.transport.close()
            case "head" if not self._ignores_input:
                is_late = elapsed > self._settings.header_seconds
                if not self._received_bytes and (is_late or self._is_drained_out(now)):
                    self.transport.close()
                elif is_late:
                    self._refuse(408, "The request's head took too long.")
            case "body" if not self._ignores_input:
                if elapsed < self._settings.body_seconds:
                    return
                if self._received_bytes - self._window_bytes < elapsed * self._settings.body_bytes_per_second:
                    self._refuse(408, "The request's body took too long.")
                else:
                    self._since = now
                    self._window_bytes = self._received_bytes
            case "head" | "body":
                pass  # Refused already; the requests before it are being answered.

    def _is_drained_out(self, now: float) -> bool:
        idle_until = self.server_state.idle_until
        return idle_until is not None and now >= idle_until

    def _is_stalled(self, now: float) -> bool:
        """Whether output has waited too long without the client reading all of it, or `STALL_PROGRESS_BYTES`."""
        unsent_bytes = self.transport.get_write_buffer_size()
        taken_bytes = self._written_bytes - unsent_bytes
        if not unsent_bytes:
            self._stalled_since = None
        elif self._stalled_since is None or taken_bytes >= self._stall_goal_bytes:
            self._stalled_since = now
            self._stall_goal_bytes = taken_bytes + min(unsent_bytes, STALL_PROGRESS_BYTES)
        else:
            return now - self._stalled_since > self._settings.stall_seconds
        return False


def has_hung_up(transport: asyncio.Transport) -> bool:
    """Whether a client has closed its side, even with unread bytes. Known on Linux only."""
    if sys.platform != "linux":
        return False
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
