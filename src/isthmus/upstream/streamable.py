"""A server reached over Streamable HTTP: one POST a request, answered by JSON or by a stream of events.

Both eras, with and without sessions. A reply belongs to the POST that asked for it, so ids only guard against a
server that mixes answers up.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from urllib.parse import urljoin

import msgspec
import structlog

from isthmus.core.calls.inflight import InFlight
from isthmus.core.crew import Crew
from isthmus.core.ports.credentials import Credentials
from isthmus.core.settings import Limits
from isthmus.model.faults import BadReply, Fault, NotConnected
from isthmus.model.names import ServerName
from isthmus.transport.egress import Egress, parse_url
from isthmus.transport.http import HttpClient, request_head
from isthmus.transport.http_connection import Lost, Ticket
from isthmus.upstream.link import BaseLink, ConnectFailed, reply_to
from isthmus.upstream.settings import Era
from isthmus.upstream.waiters import CallWaiter, Waiter, lost, turned_away
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Notification, Payload, Request, Response
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.tools import CANCELLED, PROGRESS, TOOLS_CHANGED, Implementation, cancelled_params
from isthmus.wire.oversized import Oversized
from isthmus.wire.sse import SseDecoder

log = structlog.get_logger(__name__)

OK = 200
NOT_FOUND = 404
REDIRECTS = (307, 308)
TURNED_AWAY = (307, 308, 401, 403, 405, 406, 415)
"""Statuses with which a server says that it did not run the request."""

EVENT_STREAM = "text/event-stream"
SPARE_CONNECTIONS = 8
"""Connections beside those for calls: pings, listings, the stream of changes."""

LINGER_SECONDS = 1.0
"""How long a server may keep an event stream open after its answer before the connection is taken from it."""

RELISTEN_SECONDS = 30.0
"""The longest pause before the stream of changes is opened again."""

SESSION_LENGTH_MAX = 1024
HOPS_MAX = 3


class StreamableLink(BaseLink):
    """A server's endpoint: its session, if it has one, and the requests on their way."""

    start_seconds = 20.0

    def __init__(
        self,
        server: ServerName,
        me: Implementation,
        limits: Limits,
        *,
        url: str,
        credentials: Credentials,
        egress: Egress,
        crew: Crew,
        max_calls: int,
    ) -> None:
        super().__init__(server, me, limits)
        self._credentials = credentials
        self._crew = crew
        self._origin, self._target = parse_url(url)
        self._client = HttpClient(
            self._origin,
            egress,
            crew,
            is_configured=True,
            limit=max_calls + SPARE_CONNECTIONS,
            connect_seconds=limits.connect_seconds,
        )
        self._session: str | None = None
        self._is_greeted = False
        self._location: str | None = None
        self._heads: dict[str, bytes] = {}
        self._posts: set[_Post] = set()
        self._expired: list[_Post] | None = None
        self._relisten: asyncio.TimerHandle | None = None
        self._pause = 1.0

    # -- heads -----------------------------------------------------------------------------------------------------

    def _head(self, method: str, name: str | None = None) -> bytes:
        """The head of a POST; what a server and a tool have in common is prepared once."""
        key = method if name is None else name
        if (head := self._heads.get(key)) is not None:
            return head
        headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            **self._state_headers(method, name),
            **self._credentials.headers_for(self.server),
        }
        head = request_head("POST", self._target, self._origin, headers)
        if self._is_greeted:
            self._heads[key] = head
        return head

    def _state_headers(self, method: str, name: str | None) -> dict[str, str]:
        if method == "initialize":
            return {}
        if self.dialect.era == "modern" or method == modern.DISCOVER:
            named = {} if name is None else {modern.NAME_HEADER: modern.encode_header(name)}
            return {modern.VERSION_HEADER: modern.VERSION, modern.METHOD_HEADER: method, **named}
        session = {} if self._session is None else {legacy.SESSION_HEADER: self._session}
        return {modern.VERSION_HEADER: self.dialect.version, **session}

    async def greet(self, era: Era) -> None:
        """Find the era, and the place if the server points to another one of its own."""
        for _ in range(HOPS_MAX):
            try:
                await super().greet(era)
            except NotConnected:
                if self._location is None:
                    raise
                self._follow(self._location)
            else:
                self._is_greeted = True
                return
        raise ConnectFailed("it redirects in circles")

    def redirected(self, location: str) -> None:
        """The server points elsewhere; while greeting, that is followed."""
        if not self._is_greeted:
            self._location = location

    def _follow(self, location: str) -> None:
        """Go where the server points, if that is the same origin: credentials must not reach another."""
        try:
            origin, target = parse_url(urljoin(f"{self._origin}{self._target}", location))
        except ValueError as error:
            raise ConnectFailed(f"it redirects to something that is no address ({error})") from error
        if origin != self._origin:
            raise ConnectFailed(f"it redirects to {origin}; configure that address if it is the right one")
        self._target = target
        self._location = None

    # -- sending ---------------------------------------------------------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """POST the call."""
        id = self.next_id()
        tool = inflight.tool.tool.name
        body = jsonrpc.request(id, "tools/call", self.dialect.call_params(inflight.call, tool, id))
        inflight.carriage = self._post(id, "tools/call", tool, body, CallWaiter(inflight))

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        self._post(id, method, None, jsonrpc.request(id, method, params), waiter)

    def _post(self, id: int, method: str, name: str | None, body: bytes, waiter: Waiter) -> _Post:
        post = _Post(self, id, method, name, body, waiter)
        self._posts.add(post)
        if self._expired is not None and method != "initialize":
            self._expired.append(post)  # a new session is on its way
        else:
            self._transmit(post)
        return post

    def _transmit(self, post: _Post) -> None:
        post.ticket = self._client.send(self._head(post.method, post.name), post.body, post)

    def _notify(self, method: str, params: Payload | None) -> None:
        self._client.send(self._head(method), jsonrpc.notification(method, params), _Ignored())

    def over(self, post: _Post) -> None:
        """A request has ended, one way or the other."""
        self._posts.discard(post)

    def may_have_run(self, inflight: InFlight) -> bool:
        """What waits for a connection, or for a new session, has not left."""
        post = inflight.carriage
        return not isinstance(post, _Post) or post.may_have_left

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Close the connection, which is how the modern era cancels; the earlier one wants it in words as well."""
        post = inflight.carriage
        if isinstance(post, _Post):
            if self.dialect.era == "legacy" and post.may_have_left:
                self._notify(CANCELLED, cancelled_params(str(post.id).encode(), reason))
            post.abandon()

    def _forget(self, waiter: Waiter) -> None:
        for post in self._posts:
            if post.waiter is waiter:
                post.abandon()
                return

    def asked(self, request: Request) -> None:
        """A server's own request; the answer travels by a POST of its own."""
        self._client.send(self._head(""), reply_to(request), _Ignored())

    # -- sessions --------------------------------------------------------------------------------------------------

    @property
    def has_session(self) -> bool:
        """Whether the server gave the hub a session."""
        return self._session is not None

    def welcomed(self, session: str | None) -> None:
        """The server answered `initialize`, with a session or without."""
        if session is None or (0 < len(session) <= SESSION_LENGTH_MAX and session.isascii() and session.isprintable()):
            self._session = session

    def session_gone(self, post: _Post) -> None:
        """A 404 for our session proves that the request did not run: it waits for a new session and goes once more."""
        if self._expired is None:
            self._expired = []
            self._crew.spawn(f"session of {self.server}", self._renew(), on_crash=lambda _: self._lose("a defect"))
        self._expired.append(post)

    async def _renew(self) -> None:
        self._session = None
        self._heads.clear()
        try:
            await self._initialize()
        except (Fault, ConnectFailed) as failed:
            waiting, self._expired = self._expired or [], None
            for post in waiting:
                post.fail(turned_away(self.server, f"its session expired and it gave no new one ({failed})"))
            self._lose(f"its session expired and it gave no new one ({failed})")
            return
        waiting, self._expired = self._expired or [], None
        for post in waiting:
            if not post.is_over:
                self._transmit(post)
        self.on_changed()  # a server that forgot the session may have changed in the meantime

    # -- hearing of changes ----------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Open the stream on which the server announces changes: a GET in the earlier era, a request in the modern."""
        if not self.capabilities.announces_changes or self.lost.done():
            return
        if self.dialect.era == "modern":
            params = self.dialect.params({"notifications": b'{"toolsListChanged":true}'})
            body = jsonrpc.request(self.next_id(), modern.LISTEN, params)
            self._client.send(self._head(modern.LISTEN), body, _Changes(self))
        else:
            headers = {
                "accept": EVENT_STREAM,
                **self._state_headers("", None),
                **self._credentials.headers_for(self.server),
            }
            self._client.send(request_head("GET", self._target, self._origin, headers), None, _Changes(self))

    def heard(self) -> None:
        """The stream of changes is open: the next pause is short again."""
        self._pause = 1.0

    def deaf(self) -> None:
        """The stream of changes ended: open it again in a while, and look for what was missed."""
        if self.lost.done() or self._relisten is not None:
            return
        delay = random.uniform(0.5, 1.0) * self._pause  # noqa: S311 - spread, not secrecy
        self._pause = min(self._pause * 2, RELISTEN_SECONDS)
        self._relisten = asyncio.get_running_loop().call_later(delay, self._listen_again)

    def _listen_again(self) -> None:
        self._relisten = None
        if not self.lost.done():
            self.listen()
            self.on_changed()

    # -- ending ----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """End the session if there is one, and every connection."""
        self._lose("closed by the hub")
        if self._relisten is not None:
            self._relisten.cancel()
        if self._session is not None and self._is_greeted:
            await self._end_session()
        await self._client.aclose()

    async def _end_session(self) -> None:
        done = _Ended()
        headers = {**self._state_headers("", None), **self._credentials.headers_for(self.server)}
        self._client.send(request_head("DELETE", self._target, self._origin, headers), None, done)
        await asyncio.wait([done.over], timeout=LINGER_SECONDS)


class _Post:
    """One POST and its reply: collects JSON or reads events, and tells the waiter how it ended."""

    __slots__ = (
        "_chunks",
        "_decoder",
        "_link",
        "_size",
        "_status",
        "_was_expired",
        "body",
        "id",
        "is_over",
        "method",
        "name",
        "ticket",
        "waiter",
    )

    def __init__(
        self, link: StreamableLink, id: int, method: str, name: str | None, body: bytes, waiter: Waiter
    ) -> None:
        self._link = link
        self.id = id
        self.method = method
        self.name = name
        self.body = body
        self.waiter = waiter
        self.ticket: Ticket | None = None
        self.is_over = False
        self._was_expired = False
        self._status = 0
        self._chunks: list[bytes] = []
        self._size = 0
        self._decoder: SseDecoder | None = None

    @property
    def may_have_left(self) -> bool:
        """False while the request provably has not left, or was provably not run."""
        return self.ticket is not None and self.ticket.may_have_left

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
        if self.method == "initialize" and status == OK:
            self._link.welcomed(headers.get(legacy.SESSION_HEADER))
        if status in REDIRECTS:
            self._link.redirected(headers.get("location", ""))
        elif status == OK and _media_type(headers) == EVENT_STREAM:
            self._decoder = SseDecoder(self._link.limits.reply_bytes)

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
            self.fail(lost(self._link.server, "its stream ended before the answer", may_have_left=True))
        else:
            self._read_whole(b"".join(self._chunks))

    def on_lost(self, lost_: Lost) -> None:
        """The reply never became whole."""
        self.fail(lost(self._link.server, lost_.reason, may_have_left=lost_.may_have_left))

    # -- JSON ------------------------------------------------------------------------------------------------------

    def _read_whole(self, body: bytes) -> None:
        message = jsonrpc.decode(body, max_depth=self._link.limits.depth) if body else None
        if self._status == OK and isinstance(message, Response | ErrorReply):
            self._answer(message)
        elif self._status == NOT_FOUND and self._link.has_session and not self._was_expired:
            self._send_again()
        elif self._status in TURNED_AWAY:
            detail = f"it answered HTTP {self._status}{_words(message)}{_ADVICE.get(self._status, '')}"
            self.fail(turned_away(self._link.server, detail, self._status))
        elif isinstance(message, ErrorReply):
            self._answer(message)
        else:
            self.fail(BadReply(self._link.server, f"HTTP {self._status} without a usable JSON-RPC answer"))

    def _answer(self, message: Response | ErrorReply) -> None:
        if isinstance(message, ErrorReply):
            self._finish()
            self.waiter.error(message)
        elif bytes(message.id) != str(self.id).encode():
            self.fail(BadReply(self._link.server, "the answer to another request"))
        else:
            self._finish()
            self.waiter.result(message.result)

    def _send_again(self) -> None:
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
            if event.data and not self.is_over:
                self._read_event(event.data)

    def _read_event(self, data: bytes) -> None:
        match jsonrpc.decode(data, max_depth=self._link.limits.depth):
            case (Response() | ErrorReply()) as message if message.id is None or _is_own(message.id, self.id):
                self._answer(message)
                self._linger()
            case Notification(method=method, params=params):
                if method == PROGRESS:
                    self.waiter.progress(params)
                elif method == TOOLS_CHANGED:
                    self._link.on_changed()
            case Request() as request:
                self._link.asked(request)
            case _:
                pass  # an answer to nobody, or no message at all: the real one may still come

    def _linger(self) -> None:
        """Let the server end its stream, so that the connection can be used again; but not for ever."""
        if self.ticket is not None:
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self.ticket.abort)

    def _spoil(self, detail: str) -> None:
        ticket = self.ticket
        self.fail(BadReply(self._link.server, detail))
        if ticket is not None:
            ticket.abort()


class _Changes:
    """The stream on which a server announces changes."""

    def __init__(self, link: StreamableLink) -> None:
        self._link = link
        self._decoder = SseDecoder(link.limits.notification_bytes)
        self._is_refused = False
        self._is_stream = False

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """A server without such a stream says so by its status; it is not asked again."""
        self._is_stream = status == OK and _media_type(headers) == EVENT_STREAM
        self._is_refused = not self._is_stream and status < 500
        if self._is_stream:
            self._link.heard()

    def on_body(self, chunk: bytes) -> None:
        """Look for announcements."""
        if not self._is_stream:
            return
        for event in self._decoder.feed(chunk):
            if not isinstance(event, Oversized) and event.data:
                match jsonrpc.decode(event.data):
                    case Notification(method=method) if method == TOOLS_CHANGED:
                        self._link.on_changed()
                    case Request() as request:
                        self._link.asked(request)
                    case _:
                        pass

    def on_end(self) -> None:
        """The server ended the stream."""
        if not self._is_refused:
            self._link.deaf()

    def on_lost(self, lost_: Lost) -> None:
        """The stream broke."""
        if not self._is_refused:
            self._link.deaf()


class _Ignored:
    """The reply to a notification, which has none worth reading."""

    def on_head(self, status: int, headers: Mapping[str, str]) -> None: ...
    def on_body(self, chunk: bytes) -> None: ...
    def on_end(self) -> None: ...
    def on_lost(self, lost_: Lost) -> None: ...


class _Ended(_Ignored):
    """Tells when the reply is there, whatever it is."""

    def __init__(self) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_end(self) -> None:
        self.over.set_result(None)

    def on_lost(self, lost_: Lost) -> None:
        self.over.set_result(None)


_ADVICE = {
    401: "; check the credentials in its headers",
    403: "; check the credentials in its headers",
    405: "; check that its url is an MCP endpoint",
}


def _words(message: object) -> str:
    return f" ({message.message})" if isinstance(message, ErrorReply) and message.message else ""


def _media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_own(id: msgspec.Raw, own: int) -> bool:
    return bytes(id) == str(own).encode()
