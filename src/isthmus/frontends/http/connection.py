"""One client's connection: parses its requests, gives each its turn, and limits what it may cost.

uvicorn's httptools protocol does the parsing; what it lacks is here. A connection has no timer of its own: the door's
patrol calls `inspect`. Only the door makes connections; one that becomes a WebSocket is the door's no more.
"""

from __future__ import annotations

import asyncio
import select
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Literal, NoReturn, cast

import httptools
import structlog
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from isthmus.frontends.http.auth import Denied
from isthmus.frontends.http.header_cache import HEADS_MAX, CachedHeader, remembered
from isthmus.frontends.http.refusals import NO_TARGET, refusal_for, refuse_now, split_target
from isthmus.frontends.http.request_cycle import App, AtOnce, Message, RequestCycle, call_contained, render_error
from isthmus.frontends.http.settings import Addresses, DoorSettings
from isthmus.frontends.http.upgrade import Agreement, OnUpgrade, shake_hands
from isthmus.transport.agent_bandwidth import Shares
from isthmus.transport.websocket import AcceptedSocket
from isthmus.transport.write_batching import WriteBatch

log = structlog.get_logger(__name__)

LINGER_SECONDS = 2.0
"""How long a refused client may go on sending; to close on unread bytes would reset our answer away."""

TURNED_AWAY_MAX = 256
"""How many connections without room may linger to read so; further ones are cut at once."""

STALL_PROGRESS_BYTES = 64 * 1024
"""What a reader must take of a long answer within `stall_seconds`; less is a trick to hold our memory."""

JOINED_BYTES = 64 * 1024
"""Up to here an answer's pieces are joined for one write; beyond it copying costs more than writing twice."""

AT_ONCE_BYTES = HIGH_WATER_LIMIT
"""A body announced to be no longer than this is awaited before its turn begins: it fits what reading ahead may
hold, and a turn that begins with its whole body may need no task."""

MAX_WAITING = 8
"""Pipelined requests at which reading pauses."""

MAX_PIPELINED = 64
"""Pipelined requests that one read may bring at most, before the pause takes effect."""

Phase = Literal["head", "body", "between", "leaving"]
"""What reading is at: a head, a body, nothing, or throwing away what a refused client still sends."""

WATCHED_HEADERS = frozenset({b"content-length", b"transfer-encoding", b"content-encoding", b"expect"})
"""What decides how a body is read; given twice, two readers could disagree on it."""

NOTED_HEADERS = WATCHED_HEADERS | {b"origin"}

BLANKS = b" \t"
"""What may stand around a header's value and is no part of it; the parser leaves what stands behind."""

_SPACE = ord(" ")

_ASGI = {"version": "3.0", "spec_version": "2.3"}


class DoorState(ServerState):
    """What a door and its connections share."""

    def __init__(self, settings: DoorSettings) -> None:
        super().__init__()
        self.settings = settings
        self.idle_until: float | None = None
        """Set when draining: the time from which idle connections are closed."""
        self.cork = WriteBatch()
        self.shares = Shares()
        self.at_once: AtOnce | None = None
        """Offered every request that has arrived whole, before the application is."""
        self.cors_lines: Callable[[bytes], bytes] = lambda _: b""
        """Header lines that let pages of an origin read their answers."""
        self.on_upgrade: OnUpgrade | None = None
        """Decides on requests for a WebSocket."""
        self.addresses = Addresses(settings.max_connections_per_address)
        self.turned_away = 0
        """Connections for which there was no room, and which linger. They count for their address only."""


class Connection(HttpToolsProtocol):
    """One client's connection: parses its requests, gives each its turn, and keeps the door's limits.

    Requests are answered in order. What is wrong with a request is answered once, after the turns before it,
    and nothing behind it is read.
    """

    server_state: DoorState

    def __init__(self, config: Config, server_state: DoorState) -> None:
        super().__init__(config, server_state, app_state={})
        self._settings = server_state.settings
        self._running: RequestCycle | None = None
        self._waiting: deque[RequestCycle] = deque()
        self._arriving: RequestCycle | None = None
        self._refusal: bytes | None = None
        self._is_deaf = False
        self._is_starting = False
        self._unsent: list[bytes] = []
        self._takers: list[Callable[[], None]] = []
        """Those who want to know when all that was put has left."""
        self._phase: Phase = "head"
        self._since = self.loop.time()
        self._received_bytes = 0
        self._window_bytes = 0
        self._body_bytes = 0
        self._watched: dict[bytes, bytes] = {}
        self._origin: bytes | None = None  # Of the latest request.
        self._target = NO_TARGET  # Of the request before, which is mostly the next one's too.
        self._announced_bytes = 0
        self._scope: Message | None = None  # Of the latest request, if its head alone may tell what follows it.
        self._seen: tuple[CachedHeader, ...] = ()
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
            self._turn_away("This hub has no room for another connection.")
        elif not has_room:
            self._turn_away("This hub has no room for another connection from this address.")

    def _turn_away(self, sentence: str) -> None:
        self._is_turned_away = True
        self.server_state.turned_away += 1
        if self.server_state.turned_away > TURNED_AWAY_MAX:
            self._is_deaf = True
            self.transport.abort()
        else:
            self._refuse(503, sentence)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        is_next = self._phase == "between"
        if is_next and self._seen and self._is_taken_again(data):
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
                self._remember(data, self._scope)

    def eof_received(self) -> None:
        # Who stops sending is taken to have gone: to wait for half-closed clients would hide every departure.
        self._dismiss_turns()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._takers.clear()
        self._dismiss_turns()
        self.flow.resume_writing()
        # The parser holds bound methods of this object; cutting the knot frees both at once.
        self.parser = cast(Any, None)

    def _leave(self) -> None:
        if self in self.connections:
            self.connections.discard(self)
            self.server_state.addresses.left(self._address)
            self.server_state.turned_away -= self._is_turned_away

    def _leave_late(self) -> None:
        """As a WebSocket that nobody is known by: it is soon closed, and counted for its address until then."""
        self.connections.discard(self)
        self.loop.call_later(LINGER_SECONDS, self.server_state.addresses.left, self._address)

    def _dismiss_turns(self) -> None:
        self._is_deaf = True
        waiting, self._waiting = self._waiting, deque()
        for turn in waiting:
            turn.leave()
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

    def _is_taken_again(self, data: bytes) -> bool:
        """Take a whole request whose head is one of those seen before."""
        for seen in self._seen:
            body = seen.body_in(data)
            if body is not None:
                break
        else:
            return False
        if len(self._waiting) >= MAX_PIPELINED or not 0 < len(body) <= self._settings.max_body_bytes:
            return False
        self._watched = {}
        self._origin = None  # Heads of pages are not remembered.
        self._announced_bytes = self._body_bytes = len(body)
        turn = self._make_turn(seen.scope_for(body), is_kept_alive=True)
        self._admit(turn)
        turn.add_body(body)
        self.on_message_complete()
        return True

    def _remember(self, data: bytes, scope: Message) -> None:
        self._scope = None
        if self._phase == "between" and len(self._seen) < HEADS_MAX:
            seen = remembered(data, self._announced_bytes, scope)
            self._seen = self._seen if seen is None else (*self._seen, seen)

    def _parse_without_upgrade(self, rest: bytes) -> None:
        """Read a request again as if it had not asked for a protocol that is not offered here.

        Java's HTTP client asks for h2c with every first request. The parser then takes a body for the other
        protocol's bytes, so ignoring the wish means parsing the head once more, without it.
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
            self._refuse(503, "The connection cannot become a WebSocket now.")
            return
        decided = self._decide_upgrade(cast(Message, self.scope))
        if isinstance(decided, Denied):
            self._refuse(decided.status, decided.message, decided.headers)
        else:
            self._become_websocket(decided, rest)

    def _decide_upgrade(self, scope: Message) -> Agreement | Denied:
        on_upgrade = self.server_state.on_upgrade
        if on_upgrade is None:
            return Denied(404, "No WebSocket is offered here.")
        try:
            opening = on_upgrade(scope)
        except Exception:  # A face's failure is this client's answer, and nobody else's
            log.exception("the door failed to decide on a WebSocket")
            return Denied(500, "The hub failed to open a WebSocket.")
        return opening if isinstance(opening, Denied) else shake_hands(scope, opening)

    def _become_websocket(self, agreed: Agreement, rest: bytes) -> None:
        self._is_deaf = True
        self.flush()
        self.transport.write(agreed.answer)
        if agreed.opening.group is None:
            self._leave_late()
        else:
            self._leave()
        # The parser holds bound methods of this object; cutting the knot frees both at once.
        self.parser = cast(Any, None)
        socket = AcceptedSocket(
            client=self.client and self.client[0],
            cork=self.server_state.cork,
            share=self.server_state.shares.of(agreed.opening.group),
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
            self._received_bytes = 1  # Its first byte, whose read may have been counted for the request before.
        self.url = b""
        self._watched = {}
        self._origin = None
        self._announced_bytes = 0
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase != "head":
            return  # A trailer: merged into the headers it would speak after authorisation has read them.
        name = name.lower()
        if value and value[-1] <= _SPACE:
            value = value.strip(BLANKS)
        if name in NOTED_HEADERS:
            if name == b"origin":
                self._origin = value if self._origin is None else b""
            elif name in self._watched:
                refuse_now(400, f"The header {name.decode()} is there twice.")
            else:
                self._watched[name] = value
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        version = self.parser.get_http_version()
        method = self.parser.get_method().decode("ascii")
        self._check_head(version, method)
        scope = self._make_scope(version, method)
        if self.parser.should_upgrade():
            self.scope = cast(Any, scope)  # For whoever decides on a WebSocket, if it is one.
            return
        self._phase = "body"
        self._since = self.loop.time()
        self._received_bytes = self._window_bytes = self._body_bytes = 0
        is_kept_alive = version == "1.1" and self.parser.should_keep_alive()
        # Kept alive, with a length and nothing else that decides how its body is read.
        is_plain = is_kept_alive and self._announced_bytes > 0 and len(self._watched) == 1 and self._origin is None
        self._scope = scope if is_plain and len(self._seen) < HEADS_MAX else None
        self._admit(self._make_turn(scope, is_kept_alive=is_kept_alive))

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
            refuse_now(505, f"HTTP {version} is not spoken here.")
        if self._watched:
            self._check_watched(version)

    def _check_watched(self, version: str) -> None:
        watched = self._watched
        self._announced_bytes = int(watched.get(b"content-length", b"0"))
        if self._announced_bytes > self._settings.max_body_bytes:
            self._refuse_long_body()
        if len(watched) == 1 and self._announced_bytes:
            return  # as nearly every request: a length, and nothing else that could matter
        if watched.get(b"content-encoding", b"identity").strip().lower() != b"identity":
            refuse_now(415, "Request bodies must not be compressed.")
        if watched.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
            refuse_now(501, "Request bodies may be chunked and nothing else.")
        if b"transfer-encoding" in watched and (b"content-length" in watched or version == "1.0"):
            refuse_now(400, "A body has a length or, from HTTP 1.1 on, is chunked.")

    def _refuse_long_body(self) -> NoReturn:
        refuse_now(413, f"The request's body is longer than {self._settings.max_body_bytes} bytes.")

    def _make_turn(self, scope: Message, *, is_kept_alive: bool) -> RequestCycle:
        return RequestCycle(
            self,
            scope,
            is_kept_alive=is_kept_alive and self.server_state.idle_until is None,
            owes_continue=self._watched.get(b"expect", b"").lower() == b"100-continue",
            is_short=self.server_state.at_once is not None and self._is_body_short(),
            cors=b"" if self._origin is None else self.server_state.cors_lines(self._origin),
        )

    def _is_body_short(self) -> bool:
        """Whether the body can be awaited without a reader: its client sends it unasked, and it fits."""
        return 0 < self._announced_bytes <= AT_ONCE_BYTES and b"expect" not in self._watched

    def _admit(self, turn: RequestCycle) -> None:
        if len(self._waiting) >= MAX_PIPELINED:
            refuse_now(503, "Too many requests are waiting on this connection.")
        self._arriving = turn
        if self._running is None:
            self._start(turn)
            return
        self._waiting.append(turn)
        if len(self._waiting) >= MAX_WAITING:
            self.flow.pause_reading()

    def _start(self, turn: RequestCycle) -> None:
        self._running = turn
        if turn.has_whole_body or not turn.is_short:
            self._begin(turn)
        # Else its body is on the way, and the end of it begins the turn.

    def _begin(self, turn: RequestCycle) -> None:
        at_once = self.server_state.at_once
        if at_once is not None and turn.has_whole_body and turn.is_taken(at_once):
            return
        # An ASGI application is a coroutine, so each request is one task, as on every ASGI server. The door's
        # state owns it until it ends.
        task = self.loop.create_task(turn.run(cast(App, self.app)))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def on_body(self, body: bytes) -> None:
        turn = self._arriving
        assert turn is not None, "a body follows a head that was admitted"
        self._body_bytes += len(body)
        if self._body_bytes > self._settings.max_body_bytes:
            self._refuse_long_body()
        if turn.is_over:
            return
        turn.add_body(body)
        if turn.pending_bytes > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        turn = self._arriving
        if turn is None:
            return
        self._arriving = None
        self._phase = "between"
        self._since = self.loop.time()
        self._received_bytes = 0
        turn.end_body()
        if turn is not self._running:
            return
        if turn.is_short:
            self._begin(turn)
        elif turn.pending_bytes > HIGH_WATER_LIMIT:
            self.read_on()  # Nobody asks for more of a body that is whole, and only who reads sees a client go.

    def _check_unfinished(self) -> None:
        """Bound what a message may cost before its end: an endless head, trailer or chunk extension."""
        if self._is_deaf or self._phase == "between":
            return
        room_bytes = self._settings.max_head_bytes
        if self._phase == "body":
            room_bytes += 2 * self._settings.max_body_bytes
        if self._received_bytes <= room_bytes:
            return
        if self._phase == "head":
            self._refuse(431, "The request's head is too long.")
        else:
            self._refuse(413, "The request's body has too much around it.")

    # What a turn asks for

    def put(self, pieces: list[bytes]) -> None:
        """Write the pieces of an answer, in one write unless they are long, or cut a reader that lags."""
        if self.transport.is_closing():
            return
        if self.flow.write_paused and self.transport.get_write_buffer_size() > self._settings.stall_bytes:
            self._cut("it holds too much unsent output")
            return
        total_bytes = sum(map(len, pieces))
        self._written_bytes += total_bytes
        if total_bytes <= JOINED_BYTES:
            if not self._unsent:
                self.server_state.cork.add(self)
            self._unsent += pieces
            return
        self.flush()
        for piece in pieces:
            self.transport.write(piece)

    def flush(self) -> None:
        """Write what was held back for the end of this turn of the loop."""
        pieces, self._unsent = self._unsent, []
        if pieces and not self.transport.is_closing():
            self.transport.write(b"".join(pieces))

    def buffered_bytes(self) -> int:
        """How much of what was put has not left."""
        held_bytes = sum(map(len, self._unsent)) if self._unsent else 0
        return held_bytes + self.transport.get_write_buffer_size()

    def on_taken(self, callback: Callable[[], None]) -> None:
        """Have `callback` called once all that was put has left; never, if the client goes before."""
        if self not in self.connections:
            return
        self._takers.append(callback)
        if self._unsent:
            self.loop.call_soon(self._look_for_rest)  # by then it is written, together with what others say
        else:
            self._look_for_rest()

    def _look_for_rest(self) -> None:
        if self._takers and self.transport.get_write_buffer_size():
            self.transport.set_write_buffer_limits(high=0)  # so that `resume_writing` is called when nothing is left
        else:
            self._tell_takers()

    def resume_writing(self) -> None:
        """The transport has room again; or, if somebody wants to know, nothing left to send."""
        super().resume_writing()
        if self._takers:
            self.transport.set_write_buffer_limits()
            self._tell_takers()

    def _tell_takers(self) -> None:
        takers, self._takers = self._takers, []
        for callback in takers:
            call_contained(callback)

    def read_on(self) -> None:
        """The running turn wants more of its body."""
        if len(self._waiting) < MAX_WAITING:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """The running turn's answer is written: the next one's turn, or the end."""
        turn, self._running = self._running, None
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        assert turn is not None, "only the running turn completes"
        if turn.is_kept_alive and self._waiting:
            self._start_waiting()
        elif turn.is_kept_alive and self._refusal is None:
            self._since = self.loop.time()
        else:
            self._part(is_last_word=not turn.is_kept_alive)
        if not self._is_deaf:
            self.read_on()

    def _start_waiting(self) -> None:
        # A turn that is answered at once leads back here: the loop that already runs goes on instead, or as many
        # pipelined requests would be as deep a stack.
        if self._is_starting:
            return
        self._is_starting = True
        try:
            while self._waiting and self._running is None and self._can_go_on():
                self._start(self._waiting.popleft())
        finally:
            self._is_starting = False

    def _can_go_on(self) -> bool:
        return self._phase != "leaving" and not self.transport.is_closing()

    # Refusing and leaving

    def _refuse(self, status: int, sentence: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Answer what is arriving with an error, after the turns before it, and hear nothing more."""
        log.debug("request refused", client=self.client, status=status, reason=sentence)
        self._is_deaf = True
        cors = b"" if self._origin is None else self.server_state.cors_lines(self._origin)
        self._refusal = render_error(status, sentence, headers, lines=cors)
        turn, self._arriving = self._arriving, None
        if turn is not None and not self._withdraw(turn):
            self.transport.abort()
        elif self._running is None:
            self._part()

    def _withdraw(self, turn: RequestCycle) -> bool:
        """Take back a turn whose request went wrong midway; False if its answer has begun."""
        if not turn.is_unsaid:
            return False
        if turn is self._running:
            self._running = None
        else:
            self._waiting.remove(turn)
        turn.leave()
        return True

    def _part(self, *, is_last_word: bool = False) -> None:
        """Close, once the client has had a chance to read our last word: the refusal, unless it was said."""
        is_still_sending = self._arriving is not None or self._refusal is not None
        self._is_deaf = True
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

    def _cut(self, reason: str) -> None:
        log.info("client cut", client=self.client, reason=reason)
        self.transport.abort()

    # The patrol

    def shutdown(self) -> None:
        """Keep the connection only until the answers under way are out."""
        last = self._waiting[-1] if self._waiting else self._running
        if last is not None:
            last.is_kept_alive = False

    def inspect(self, now: float) -> None:
        """Enforce whatever limit this connection has passed by `now`."""
        if self._is_stalled(now):
            self._cut("it does not read its answer")
        elif self._is_held_up_by_us():
            self._since = now
            self._window_bytes = self._received_bytes
            self._inspect_departure()
        elif not self.transport.is_closing():
            self._inspect_reading(now, now - self._since)

    def _inspect_departure(self) -> None:
        """Let a client go that left while it was not read from: what it sent before stands between us and its end."""
        if self.flow.read_paused and not self.transport.is_closing() and has_hung_up(self.transport):
            self._dismiss_turns()
            self.transport.close()

    def _is_held_up_by_us(self) -> bool:
        """Whether the client cannot go on: we do not read, or have not yet told it to send its body."""
        return self.flow.read_paused or (self._arriving is not None and self._arriving.owes_continue)

    def _inspect_reading(self, now: float, elapsed: float) -> None:
        match self._phase:
            case "leaving":
                if elapsed > min(LINGER_SECONDS, self._settings.header_seconds):
                    self.transport.abort()
            case "between":
                is_idle = self._running is None
                if is_idle and (elapsed > self._settings.keep_alive_seconds or self._is_unwanted(now)):
                    self.transport.close()
            case "head" if not self._is_deaf:
                self._inspect_head(now, elapsed)
            case "body" if not self._is_deaf:
                self._inspect_body(now, elapsed)
            case "head" | "body":
                pass  # Refused already; the turns before it are being answered.

    def _inspect_head(self, now: float, elapsed: float) -> None:
        is_late = elapsed > self._settings.header_seconds
        if not self._received_bytes and (is_late or self._is_unwanted(now)):
            self.transport.close()
        elif is_late:
            self._refuse(408, "The request's head took too long.")

    def _inspect_body(self, now: float, elapsed: float) -> None:
        if elapsed < self._settings.body_seconds:
            return
        if self._received_bytes - self._window_bytes < elapsed * self._settings.body_bytes_per_second:
            self._refuse(408, "The request's body took too long.")
            return
        self._since = now
        self._window_bytes = self._received_bytes

    def _is_unwanted(self, now: float) -> bool:
        idle_until = self.server_state.idle_until
        return idle_until is not None and now >= idle_until

    def _is_stalled(self, now: float) -> bool:
        """Whether output has waited too long without the client taking all of it, or a fair piece."""
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
    """Whether a client has closed its side, whatever of its bytes is still unread; only Linux tells."""
    if sys.platform != "linux":
        return False
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
