"""One POST and its reply: collects JSON or reads events, and tells the waiter how it ended.

A stream of events that ends too soon is asked for again where it broke off, if the server gave its events ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from isthmus.core.pauses import in_turn
from isthmus.core.settings import Limits
from isthmus.model.faults import BadReply, Fault
from isthmus.model.names import ServerName
from isthmus.transport.http_connection import Lost, Ticket
from isthmus.upstream.replies import ADVICE, EVENT_STREAM, OK, UNAUTHORIZED, advice_on, login_place, media_type
from isthmus.upstream.waiters import LATER_BYTES, CallWaiter, Waiter, lost, turned_away
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Notification, Request, Response
from isthmus.wire.mcp import legacy
from isthmus.wire.mcp.messages import LOGGED, PROGRESS, PROGRESS_TOKEN, Members, read_log
from isthmus.wire.oversized import Oversized
from isthmus.wire.sse import SseDecoder

BAD_REQUEST = 400
NOT_FOUND = 404
REDIRECTS = (307, 308)
TURNED_AWAY = (307, 308, 401, 403, 405, 406, 415)
"""Statuses with which a server says that it did not run the request."""

NO_ENDPOINT = (400, 404, 405)
"""What an address answers, without a word of JSON-RPC, that does not know what a POST of MCP is."""

USELESS_MAX = 10_000
"""Messages of no use to anybody that one request's stream may bring: a server that sends so many only floods."""

RETRY_SECONDS = 1.0
"""The pause before a stream is asked for again, unless the server says another."""

RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.05, 10.0
"""What a server may say: a shorter pause would let it keep the hub busy, a longer one outlasts most calls."""

RESUMES_MAX = 1_000
"""How often one request's stream is asked for again; the deadline of a call is nearly always nearer."""

FAILURES_MAX = 3
"""How often in a row that may fail."""

PASSING = (408, 409, 425, 429)
SERVER_TROUBLE = 500
"""With these, and from here on, a server says that it may give the stream another time."""

LINGER_SECONDS = 1.0
"""How long a server may keep an event stream open after its answer before the connection is taken from it."""


class PostOwner(Protocol):
    """What a request needs of the link that it travels on."""

    server: ServerName
    limits: Limits
    on_doubt: Callable[[], None]
    on_shut_out: Callable[[], None]
    hide: Callable[[str], str]

    @property
    def can_log_in(self) -> bool:
        """Whether a person could log in at its server."""

    def welcomed(self, session: str | None) -> None:
        """The server answered `initialize`, with a session or without."""

    def redirected(self, location: str) -> None:
        """The server points elsewhere."""

    def judged(self, answer: str, *, is_endpoint: bool) -> None:
        """A reply tells whether this is an MCP endpoint; `answer` is what it was, in words."""

    def session_gone(self, post: Post) -> None:
        """The session is unknown to the server, so the request did not run: it waits for a new one."""

    def asked(self, request: Request, waiter: Waiter | None = None) -> None:
        """The server asks something of its own."""

    def erred(self, waiter: Waiter, reply: ErrorReply) -> None:
        """The server answered with an error, of which who waits is to be told."""

    def noted(self, method: str, params: Members) -> None:
        """The server tells something that need not be about this request."""

    def resume(self, post: Post, event_id: str, seconds: float) -> bool:
        """Ask for the rest of a request's stream in a while; False if there is nobody to ask."""

    def over(self, post: Post) -> None:
        """A request has ended, one way or the other."""


class Rest:
    """What a stream still owes that ended before the answer: from which event on, and how often it was asked for."""

    __slots__ = ("event_id", "failures", "seconds", "times")

    def __init__(self) -> None:
        self.event_id: str | None = None
        self.seconds = RETRY_SECONDS
        self.times = 0
        self.failures = 0

    def read(self, decoder: SseDecoder) -> None:
        """Note how far the stream came, and how long the server wants to be left alone."""
        self.event_id = decoder.last_event_id or self.event_id
        if decoder.retry is not None:
            self.seconds = min(max(decoder.retry / 1000, RETRY_SECONDS_MIN), RETRY_SECONDS_MAX)


class Post:
    """One POST and its reply: collects JSON or reads events, and tells the waiter how it ended."""

    __slots__ = (
        "_advice",
        "_chunks",
        "_decoder",
        "_link",
        "_login",
        "_rest",
        "_size",
        "_status",
        "_useless",
        "_was_expired",
        "body",
        "id",
        "is_over",
        "lines",
        "method",
        "name",
        "session",
        "ticket",
        "waiter",
        "wire_id",
    )

    def __init__(self, link: PostOwner, id: int, method: str, name: str | None, body: bytes, waiter: Waiter) -> None:
        self._link = link
        self.id = id
        self.method = method
        self.name = name
        self.body = body
        self.waiter = waiter
        self.wire_id: bytes | None = None
        """The caller's own id, where that is the request's; `id` counts here and for progress all the same."""
        self.lines = b""
        """Headers that only this request has."""
        self.ticket: Ticket | None = None
        self.session: str | None = None
        """The session it was sent in, which need not be the link's any more when the answer comes."""
        self.is_over = False
        self._was_expired = False
        self._status = 0
        self._login: str | None = None
        """Where the server says how to prove who one is."""
        self._advice = ""
        """What the operator can do about its status."""
        self._chunks: list[bytes] = []
        self._size = 0
        self._useless = 0
        self._decoder: SseDecoder | None = None
        self._rest: Rest | None = None
        """What its stream still owes, once that has ended too soon."""

    @property
    def may_have_left(self) -> bool:
        """False while the request provably has not left, or was provably not run."""
        return self._rest is not None or (self.ticket is not None and self.ticket.may_have_left)

    def abandon(self) -> None:
        """Nobody waits any more: close the connection that serves this."""
        self._finish()
        if self.ticket is not None:
            self.ticket.abort()

    def fail(self, fault: Fault) -> None:
        """There will be no answer."""
        if not self.is_over:
            self._finish()
            self.waiter.fail(fault)

    def _finish(self) -> None:
        self.is_over = True
        self._link.over(self)

    # -- the reply, as the client hands it over --------------------------------------------------------------------

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the status and choose how to read what follows."""
        self._status = status
        self._login = login_place(status, headers)
        if status in ADVICE:
            self._advice = advice_on(status, headers, self._link.server, can_log_in=self._link.can_log_in)
        if self.method == "initialize" and status == OK:
            self._link.welcomed(headers.get(legacy.SESSION_HEADER))
        if status in REDIRECTS:
            self._link.redirected(headers.get("location", ""))
        elif status == OK and media_type(headers) == EVENT_STREAM:
            self._decoder = SseDecoder(self._link.limits.reply_bytes)
            if self._rest is not None:
                self._rest.failures = 0

    def on_body(self, chunk: bytes) -> None:
        """Take a part of the reply."""
        if self._decoder is not None:
            self._read_events(chunk, self._decoder)
            return
        self._size += len(chunk)
        if self._size > self._link.limits.reply_bytes:
            self._spoil(f"an answer of over {self._link.limits.reply_bytes} bytes")
        else:
            self._chunks.append(chunk)

    def on_end(self) -> None:
        """The reply is whole."""
        if self.is_over:
            return
        if self._decoder is not None:
            self._break_off("its stream ended before the answer", self._decoder, is_polite=True)
        elif self._rest is not None:
            self._miss(f"it answered HTTP {self._status} to who came back to its stream", self._rest)
        elif self._size > LATER_BYTES:
            in_turn(self._read_late)
        else:
            self._read_whole(b"".join(self._chunks))

    def _read_late(self) -> None:
        """Read a long reply in a turn of the loop of its own."""
        if not self.is_over:
            self._read_whole(b"".join(self._chunks))

    def on_lost(self, lost_: Lost) -> None:
        """The reply never became whole; after its answer, that says nothing."""
        if self.is_over:
            return
        self._link.on_doubt()
        if self._decoder is not None:
            self._break_off(lost_.reason, self._decoder, is_polite=False)
        elif self._rest is not None:
            self._miss(lost_.reason, self._rest)
        else:
            self.fail(lost(self._link.server, lost_.reason, may_have_left=lost_.may_have_left))

    # -- streams that end too soon ---------------------------------------------------------------------------------

    def _break_off(self, why: str, decoder: SseDecoder, *, is_polite: bool) -> None:
        """A stream ended without the answer: ask for its rest, or give up."""
        self._decoder = None
        rest = self._rest = self._rest or Rest()
        rest.read(decoder)
        if not self._is_awaited(rest):
            self.fail(lost(self._link.server, why, may_have_left=True))
        elif is_polite and isinstance(self.waiter, CallWaiter):
            self.waiter.inflight.pause(rest.seconds)

    def _miss(self, why: str, rest: Rest) -> None:
        """The rest of a stream was not given; perhaps another time."""
        rest.failures += 1
        is_passing = not self._status or self._status in PASSING or self._status >= SERVER_TROUBLE
        if not is_passing or rest.failures >= FAILURES_MAX or not self._is_awaited(rest):
            self.fail(lost(self._link.server, why, may_have_left=True))

    def _is_awaited(self, rest: Rest) -> bool:
        """Whether the rest of the stream will be asked for."""
        self._status = self._size = 0
        self._chunks = []
        if rest.event_id is None or self.method == "initialize" or rest.times >= RESUMES_MAX:
            return False
        rest.times += 1
        return self._link.resume(self, rest.event_id, rest.seconds)

    # -- JSON ------------------------------------------------------------------------------------------------------

    def _read_whole(self, body: bytes) -> None:
        message = jsonrpc.decode(body, max_depth=self._link.limits.depth, max_values=None) if body else None
        if self._status == OK and isinstance(message, Response | ErrorReply):
            self._answer(message)
            return
        is_endpoint = isinstance(message, ErrorReply) or self._status not in NO_ENDPOINT
        self._link.judged(f"HTTP {self._status}", is_endpoint=is_endpoint)
        if self._status == NOT_FOUND and self.session is not None:
            self._session_gone()
        elif self._is_session_refused(message):
            # Many servers say so instead of 404. It proves nothing about the request, but the link is no good.
            self._link.on_doubt()
            self.fail(BadReply(self._link.server, self._link.hide(f"HTTP 400{_words(message)}")))
        elif self._status in TURNED_AWAY:
            detail = self._link.hide(f"it answered HTTP {self._status}{_words(message)}{self._advice}")
            if self._status == UNAUTHORIZED:
                self._link.on_shut_out()
            self.fail(turned_away(self._link.server, detail, self._status, self._login))
        elif isinstance(message, ErrorReply):
            self._answer(message)
        else:
            self.fail(BadReply(self._link.server, f"HTTP {self._status} without a usable JSON-RPC answer"))

    def _is_session_refused(self, message: object) -> bool:
        is_unaddressed = isinstance(message, ErrorReply) and message.id is None
        return self._status == BAD_REQUEST and self.session is not None and is_unaddressed

    def _answer(self, message: Response | ErrorReply) -> None:
        if isinstance(message, ErrorReply):
            self._finish()
            self._link.erred(self.waiter, message)
        elif bytes(message.id) != str(self.id).encode() and not self._is_renamed(message.id):
            self.fail(BadReply(self._link.server, "the answer to another request"))
        else:
            self._finish()
            self.waiter.result(message.result)

    def _is_renamed(self, id: msgspec.Raw) -> bool:
        """Whether the request has this id on the wire, in place of the link's own."""
        return self.wire_id is not None and jsonrpc.same_id(id, self.wire_id)

    def _session_gone(self) -> None:
        if self._was_expired:
            self.fail(turned_away(self._link.server, "it forgot its session twice", NOT_FOUND))
            return
        self._was_expired = True
        self.ticket = None
        self._status = self._size = 0
        self._chunks = []
        self._link.session_gone(self)

    # -- events ----------------------------------------------------------------------------------------------------

    def _read_events(self, chunk: bytes, decoder: SseDecoder) -> None:
        for event in decoder.feed(chunk):
            if isinstance(event, Oversized):
                self._spoil(f"an event of over {event.limit_bytes} bytes")
                return
            if self.is_over:
                return
            if event.event == "endpoint":
                # The earlier HTTP+SSE transport, at an address that takes any verb.
                self._link.judged("a stream of HTTP+SSE", is_endpoint=False)
                self._spoil("a stream of the earlier HTTP+SSE transport")
            elif event.data:
                self._read_event(event.data)

    def _read_event(self, data: bytes) -> None:
        match jsonrpc.decode(data, max_depth=self._link.limits.depth, max_values=None):
            case (Response() | ErrorReply()) as message if (
                message.id is None or _is_own(message.id, self.id) or self._is_renamed(message.id)
            ):
                self._answer(message)
                self._linger()
            case Notification(method=method, params=params):
                self._noted(method, params)
            case Request() as request:
                self._link.asked(request, self.waiter)
                self._useless += 1
            case _:
                self._useless += 1  # an answer to nobody, or no message at all: the real one may still come
        if self._useless > USELESS_MAX:
            self._spoil(f"over {USELESS_MAX} messages that are not its answer")

    def _noted(self, method: str, params: Members) -> None:
        """On a request's own stream, progress and logs are that request's."""
        if method == PROGRESS and _is_own(params.get(PROGRESS_TOKEN), self.id):
            self.waiter.progress(params)
        elif method == LOGGED:
            if (line := read_log(params)) is not None:
                self.waiter.log(line)
        else:
            self._link.noted(method, params)

    def _linger(self) -> None:
        """Let the server end its stream, so that the connection can be used again; but not for ever."""
        if self.ticket is not None:
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self.ticket.abort)

    def _spoil(self, detail: str) -> None:
        ticket = self.ticket
        self.fail(BadReply(self._link.server, detail))
        if ticket is not None:
            ticket.abort()


def _words(message: object) -> str:
    return f" ({message.message})" if isinstance(message, ErrorReply) and message.message else ""


def _is_own(id: msgspec.Raw | None, own: int) -> bool:
    return id is not None and bytes(id) == str(own).encode()
