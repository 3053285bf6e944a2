"""HTTP exchanges of a Streamable HTTP link: a POST and its response, and the stream of a server's notifications.

A POST collects JSON or reads events, and reports the end to the waiter. A stream of events that ends too soon is
resumed after its last event, if the server gave its events ids. `StreamableLink` creates both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Literal, Protocol

import msgspec

from isthmus.core.pauses import in_turn, read_then
from isthmus.core.settings import Limits
from isthmus.model.faults import BadReply, Fault, ServerError
from isthmus.model.names import ServerName
from isthmus.transport.http import ConnectionLost, Ticket
from isthmus.upstream.http_shared import ADVICE, EVENT_STREAM, OK, UNAUTHORIZED, advice_for, login_url, media_type
from isthmus.upstream.redaction import redact_error
from isthmus.upstream.waiters import LATER_BYTES, CallWaiter, Waiter, lost, turned_away
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Notification, Request, Response
from isthmus.wire.lines import Oversized
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.messages import LOGGED, PROGRESS, PROGRESS_TOKEN, Members, read_log
from isthmus.wire.sse import SseDecoder

BAD_REQUEST = 400
NOT_FOUND = 404
REDIRECTS = (307, 308)
TURNED_AWAY = (307, 308, 401, 403, 405, 406, 415)
"""Statuses that prove the server did not run the request."""

NO_ENDPOINT = (400, 404, 405)
"""Statuses of an address that does not know MCP, if the body is not JSON-RPC."""

USELESS_MAX = 10_000
"""Useless messages on one request's stream; a server that sends more is flooding."""

RETRY_SECONDS = 1.0
"""The pause before a stream is resumed, unless the server asks for another."""

RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.05, 10.0
"""Bounds for that: a shorter pause would keep the hub busy, a longer one outlasts most calls."""

RESUMES_MAX = 1_000
"""How often one request's stream is resumed; a call's deadline is nearly always sooner."""

FAILURES_MAX = 3
"""How often in a row resuming may fail."""

PASSING = (408, 409, 425, 429)
SERVER_TROUBLE = 500
"""With these, and from here on, a server may give the stream later; 409 comes above all from a server that allows one
stream and has not noticed that the last one broke."""

WORDS_BYTES_MAX = 64 * 1024
"""How much of a refused stream is read for the server's error message."""

LINGER_SECONDS = 1.0
"""How long a server may keep an event stream open after its response."""


class ExchangeOwner(Protocol):
    """What an exchange needs from its link."""

    server: ServerName
    limits: Limits
    on_doubt: Callable[[], None]
    on_unauthorized: Callable[[], None]
    redact: Callable[[str], str]

    @property
    def can_log_in(self) -> bool:
        """Whether a person can log in at the server."""

    def on_session(self, session: str | None) -> None:
        """The server answered `initialize`, with a session or without."""

    def on_redirect(self, location: str) -> None:
        """The server redirects."""

    def on_carrier_judged(self, answer: str, *, is_endpoint: bool) -> None:
        """A reply shows whether this is an MCP endpoint; `answer` describes the reply."""

    def on_session_gone(self, post: Post) -> None:
        """The server does not know the session, so the request did not run: send it again in a new one."""

    def asked(self, request: Request, waiter: Waiter | None = None) -> None:
        """The server sent a request."""

    def on_error_reply(self, waiter: Waiter, reply: ErrorReply) -> None:
        """The server responded with an error: pass it to the waiter."""

    def on_notification(self, method: str, params: Members) -> None:
        """The server sent a notification that may not belong to this request."""

    def resume(self, post: Post, event_id: str, seconds: float) -> bool:
        """Resume a request's stream after a pause; False if that is impossible."""

    def on_post_over(self, post: Post) -> None:
        """A request has ended."""

    def on_stream_open(self, stream: NotificationStream, honoured: Collection[str] | None = None) -> None:
        """The server uses the stream from now on; `honoured` are the resources that it names, if it names them."""

    def on_stream_refused(self, stream: NotificationStream, refusal: Fault) -> None:
        """The server gives no such stream."""

    def on_stream_ended(self, stream: NotificationStream) -> None:
        """The stream has ended and may be opened again."""


class Rest:
    """The unfinished rest of a stream: its last event, and how often it was resumed."""

    __slots__ = ("event_id", "failures", "seconds", "times")

    def __init__(self) -> None:
        self.event_id: str | None = None
        self.seconds = RETRY_SECONDS
        self.times = 0
        self.failures = 0

    def read(self, decoder: SseDecoder) -> None:
        """Read the last event id, and the pause that the server asks for."""
        self.event_id = decoder.last_event_id or self.event_id
        if decoder.retry is not None:
            self.seconds = min(max(decoder.retry / 1000, RETRY_SECONDS_MIN), RETRY_SECONDS_MAX)


class Post:
    """One POST and its response."""

    __slots__ = (
        "_advice",
        "_after_reading",
        "_chunks",
        "_decoder",
        "_is_reading",
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

    def __init__(
        self, link: ExchangeOwner, id: int, method: str, name: str | None, body: bytes, waiter: Waiter
    ) -> None:
        self._link = link
        self.id = id
        self.method = method
        self.name = name
        self.body = body
        self.waiter = waiter
        self.wire_id: bytes | None = None
        """The caller's own id, if the request carries it; `id` is used here and for progress all the same."""
        self.lines = b""
        """Headers of this request only."""
        self.ticket: Ticket | None = None
        self.session: str | None = None
        """The session it was sent in; the link may have another one when the response comes."""
        self.is_over = False
        self._was_expired = False
        self._status = 0
        self._login: str | None = None
        """The URL where the server describes its login."""
        self._advice = ""
        """What the operator can do about the status."""
        self._chunks: list[bytes] = []
        self._is_reading = False
        self._after_reading: Callable[[], None] | None = None
        """What happened while a long answer was read."""
        self._size = 0
        self._useless = 0
        self._decoder: SseDecoder | None = None
        self._rest: Rest | None = None
        """The rest of a stream that ended too soon."""

    @property
    def may_have_left(self) -> bool:
        """False while the request provably has not left, or provably did not run."""
        return self._rest is not None or (self.ticket is not None and self.ticket.may_have_left)

    def abandon(self) -> None:
        """Close the connection of this request."""
        self._finish()
        if self.ticket is not None:
            self.ticket.abort()

    def fail(self, fault: Fault) -> None:
        """There will be no response."""
        if not self.is_over:
            self._finish()
            self.waiter.fail(fault)

    def _finish(self) -> None:
        self.is_over = True
        self._link.on_post_over(self)

    # -- the reply, as the client hands it over --------------------------------------------------------------------

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Read the status and choose how to read the body."""
        self._status = status
        self._login = login_url(status, headers)
        if status in ADVICE:
            self._advice = advice_for(status, headers, self._link.server, can_log_in=self._link.can_log_in)
        if self.method == "initialize" and status == OK:
            self._link.on_session(headers.get(legacy.SESSION_HEADER))
        if status in REDIRECTS:
            self._link.on_redirect(headers.get("location", ""))
        elif status == OK and media_type(headers) == EVENT_STREAM:
            self._decoder = SseDecoder(self._link.limits.reply_bytes)
            if self._rest is not None:
                self._rest.failures = 0

    def on_body(self, chunk: bytes) -> None:
        """Read a part of the body."""
        if self._decoder is not None:
            for event in self._decoder.feed(chunk):
                if isinstance(event, Oversized):
                    self._spoil(f"an event of over {event.limit_bytes} bytes")
                    return
                if self.is_over:
                    return
                if event.event == "endpoint":
                    # The older HTTP+SSE transport, at an address that accepts any verb.
                    self._link.on_carrier_judged("a stream of HTTP+SSE", is_endpoint=False)
                    self._spoil("a stream of the earlier HTTP+SSE transport")
                elif event.data:
                    self._read_event(event.data)
            return
        self._size += len(chunk)
        if self._size > self._link.limits.reply_bytes:
            self._spoil(f"an answer of over {self._link.limits.reply_bytes} bytes")
        else:
            self._chunks.append(chunk)

    def on_end(self) -> None:
        """The response is complete."""
        if self.is_over:
            return
        if self._is_reading:
            self._after_reading = self.on_end
        elif self._decoder is not None:
            self._break_off("its stream ended before the answer", self._decoder, is_polite=True)
        elif self._rest is not None:
            self._miss(f"it answered HTTP {self._status} to the request to resume its stream", self._rest)
        elif self._size > LATER_BYTES:
            in_turn(self._read_late)
        else:
            self._read_whole(b"".join(self._chunks))

    def _read_late(self) -> None:
        """Read a long response in turns of the event loop of its own."""
        if not self.is_over:
            body = b"".join(self._chunks)
            self._chunks = []
            whole = partial(jsonrpc.decode, body, max_depth=self._link.limits.depth, max_values=None)
            read_then(whole, jsonrpc.decode_passes, self._take_late, jsonrpc.unreadable, self._link.server)

    def _take_late(self, message: jsonrpc.Message) -> None:
        if not self.is_over:
            self._take(message)

    def on_lost(self, lost_: ConnectionLost) -> None:
        """The connection broke; after the response, that does not matter."""
        if self.is_over:
            return
        if self._is_reading:
            self._after_reading = partial(self.on_lost, lost_)
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
        """A stream ended without the response: resume it, or give up."""
        self._decoder = None
        rest = self._rest = self._rest or Rest()
        rest.read(decoder)
        if not self._is_awaited(rest):
            self.fail(lost(self._link.server, why, may_have_left=True))
        elif is_polite and isinstance(self.waiter, CallWaiter):
            self.waiter.inflight.pause(rest.seconds)

    def _miss(self, why: str, rest: Rest) -> None:
        """Resuming failed; perhaps it works later."""
        rest.failures += 1
        is_passing = not self._status or self._status in PASSING or self._status >= SERVER_TROUBLE
        if not is_passing or rest.failures >= FAILURES_MAX or not self._is_awaited(rest):
            self.fail(lost(self._link.server, why, may_have_left=True))

    def _is_awaited(self, rest: Rest) -> bool:
        """Ask the link to resume the stream; False if it is given up."""
        self._status = self._size = 0
        self._chunks = []
        if rest.event_id is None or self.method == "initialize" or rest.times >= RESUMES_MAX:
            return False
        rest.times += 1
        return self._link.resume(self, rest.event_id, rest.seconds)

    # -- JSON ------------------------------------------------------------------------------------------------------

    def _read_whole(self, body: bytes) -> None:
        self._take(jsonrpc.decode(body, max_depth=self._link.limits.depth, max_values=None) if body else None)

    def _take(self, message: jsonrpc.Message | None) -> None:
        if self._status == OK and isinstance(message, Response | ErrorReply):
            self._answer(message)
            return
        is_endpoint = isinstance(message, ErrorReply) or self._status not in NO_ENDPOINT
        self._link.on_carrier_judged(f"HTTP {self._status}", is_endpoint=is_endpoint)
        if self._status == NOT_FOUND and self.session is not None:
            if self._was_expired:
                self.fail(turned_away(self._link.server, "it forgot its session twice", NOT_FOUND))
                return
            self._was_expired = True
            self.ticket = None
            self._status = self._size = 0
            self._chunks = []
            self._link.on_session_gone(self)
        elif (
            self._status == BAD_REQUEST
            and self.session is not None
            and isinstance(message, ErrorReply)
            and message.id is None
        ):
            # Many servers answer so instead of 404. It proves nothing about the request, but the link is unusable.
            self._link.on_doubt()
            self.fail(BadReply(self._link.server, self._link.redact(f"HTTP 400{_words(message)}")))
        elif self._status in TURNED_AWAY:
            detail = self._link.redact(f"it answered HTTP {self._status}{_words(message)}{self._advice}")
            if self._status == UNAUTHORIZED:
                self._link.on_unauthorized()
            self.fail(turned_away(self._link.server, detail, self._status, self._login))
        elif isinstance(message, ErrorReply):
            self._answer(message)
        else:
            self.fail(BadReply(self._link.server, f"HTTP {self._status} without a usable JSON-RPC answer"))

    def _answer(self, message: Response | ErrorReply) -> None:
        if isinstance(message, ErrorReply):
            self._finish()
            self._link.on_error_reply(self.waiter, message)
        elif bytes(message.id) != str(self.id).encode() and not self._is_renamed(message.id):
            self.fail(BadReply(self._link.server, "the answer to another request"))
        else:
            self._finish()
            self.waiter.result(message.result)

    def _is_renamed(self, id: msgspec.Raw) -> bool:
        """Whether this id is the request's id on the wire, instead of the link's own."""
        return self.wire_id is not None and jsonrpc.same_id(id, self.wire_id)

    # -- events ----------------------------------------------------------------------------------------------------

    def _read_event(self, data: bytes) -> None:
        whole = partial(jsonrpc.decode, data, max_depth=self._link.limits.depth, max_values=None)
        if len(data) > LATER_BYTES and not self._is_reading and self._is_answered_by(jsonrpc.answer_start(data)):
            self._is_reading = True
            read_then(whole, jsonrpc.decode_passes, self._answer_was_read, jsonrpc.unreadable, self._link.server)
        else:
            self._take_event(whole())

    def _is_answered_by(self, id: msgspec.Raw | None) -> bool:
        return id is not None and (_is_own(id, self.id) or self._is_renamed(id))

    def _answer_was_read(self, message: jsonrpc.Message) -> None:
        """A long answer was read; the stream may have ended meanwhile."""
        self._is_reading = False
        happened, self._after_reading = self._after_reading, None
        if not self.is_over:
            self._take_event(message)
        if not self.is_over and happened is not None:
            happened()

    def _take_event(self, message: jsonrpc.Message) -> None:
        match message:
            case Response() | ErrorReply() if message.id is None or self._is_answered_by(message.id):
                self._answer(message)
                if self.ticket is not None:
                    # The server may end its stream, so that the connection can be reused; but not for ever.
                    asyncio.get_running_loop().call_later(LINGER_SECONDS, self.ticket.abort)
            # On a request's own stream, progress and logs belong to that request.
            case Notification(method=method, params=params) if method == PROGRESS and _is_own(
                params.get(PROGRESS_TOKEN), self.id
            ):
                self.waiter.progress(params)
            case Notification(method=method, params=params) if method == LOGGED:
                if (line := read_log(params)) is not None:
                    self.waiter.log(line)
            case Notification(method=method, params=params):
                self._link.on_notification(method, params)
            case Request() as request:
                self._link.asked(request, self.waiter)
                self._useless += 1
            case _:
                self._useless += 1  # a response to another request, or not a message: the real one may still come
        if self._useless > USELESS_MAX:
            self._spoil(f"over {USELESS_MAX} messages that are not its answer")

    def _spoil(self, detail: str) -> None:
        ticket = self.ticket
        self.fail(BadReply(self._link.server, detail))
        if ticket is not None:
            ticket.abort()


def _words(message: object) -> str:
    return f" ({message.message})" if isinstance(message, ErrorReply) and message.message else ""


def _is_own(id: msgspec.Raw | None, own: int) -> bool:
    return id is not None and bytes(id) == str(own).encode()


class NotificationStream:
    """The stream on which a server announces changes.

    In the legacy era it is open with its response head; a modern server acknowledges it in its first message.
    """

    def __init__(self, link: ExchangeOwner, era: Literal["legacy", "modern"]) -> None:
        self._link = link
        self._is_modern = era == "modern"
        self._decoder = SseDecoder(link.limits.notification_bytes)
        self._words = b""
        self._status = 0
        self._is_stream = False
        self._refusal: Fault | None = None
        self.ticket: Ticket | None = None
        self.is_resumed = False
        """Whether it was resumed after an event."""

    @property
    def event_id(self) -> str | None:
        """The id of the last event."""
        return self._decoder.last_event_id

    @property
    def retry(self) -> float | None:
        """The pause in seconds that the server asks for before the stream is opened again."""
        return None if self._decoder.retry is None else self._decoder.retry / 1000

    def close(self) -> None:
        """Stop the stream."""
        if self.ticket is not None:
            self.ticket.abort()

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Read the status; a server without such a stream is not asked again."""
        self._status = status
        self._is_stream = status == OK and media_type(headers) == EVENT_STREAM
        if self._is_stream and not self._is_modern:
            self._link.on_stream_open(self)

    def on_body(self, chunk: bytes) -> None:
        """Read notifications."""
        if not self._is_stream:
            self._words += chunk[: WORDS_BYTES_MAX - len(self._words)]
            return
        for event in self._decoder.feed(chunk):
            if isinstance(event, Oversized) or not event.data:
                continue
            match jsonrpc.decode(event.data, max_depth=self._link.limits.depth, max_values=None):
                case Notification(method=method, params=params):
                    granted = modern.read_granted(params) if method == modern.ACKNOWLEDGED else None
                    self._link.on_stream_open(self, granted)
                    self._link.on_notification(method, params)
                case Request() as request:
                    self._link.asked(request)
                case ErrorReply() as refused:
                    self._refusal = self._server_error(refused)
                case _:
                    pass

    def on_end(self) -> None:
        """The server ended the stream, or refused it."""
        if (refusal := self._refusal or self._refused()) is not None:
            self._link.on_stream_refused(self, refusal)
        else:
            self._link.on_stream_ended(self)

    def on_lost(self, lost_: ConnectionLost) -> None:
        """The stream broke, or could not be opened."""
        self.on_end()

    def _refused(self) -> Fault | None:
        """Why the server refuses the stream for good; None if there was a stream, or may be one later."""
        if self._is_stream or not self._status or self._status >= SERVER_TROUBLE or self._status in PASSING:
            return None
        message = jsonrpc.decode(self._words)
        if isinstance(message, ErrorReply):
            return self._server_error(message)
        return BadReply(self._link.server, f"HTTP {self._status} instead of a stream of changes")

    def _server_error(self, reply: ErrorReply) -> ServerError:
        reply = redact_error(reply, self._link.redact)
        return ServerError(self._link.server, reply.code, reply.message, reply.data)
