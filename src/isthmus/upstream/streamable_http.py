"""A link over Streamable HTTP: one POST per request, answered by JSON or by a stream of events.

Both eras, with and without sessions. A response belongs to its POST (`Post`), so ids only guard against a server that
mixes responses up. A POST collects JSON or reads events, and reports the end to the waiter. A stream of events that
ends too soon is resumed after its last event, if the server gave its events ids. A second stream
(`NotificationStream`) carries notifications that belong to no request.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Set
from contextlib import suppress
from functools import partial
from typing import Literal

import msgspec

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.running_call import InFlight
from isthmus.core.event_loop import read_then
from isthmus.core.ports import Credentials
from isthmus.core.settings import Limits
from isthmus.core.watch.server_tasks import LinkSession
from isthmus.model.calls import ClientCapabilities
from isthmus.model.fault_table import BadReply, Fault, NotConnected, ServerError, UnknownTool
from isthmus.model.features import TOPICS, Feature, Topic
from isthmus.model.names import ServerName
from isthmus.model.trace_context import TRACEPARENT, trace_headers
from isthmus.transport.egress import Egress
from isthmus.transport.http_client import EVENT_STREAM, ConnectionLost, Ticket, header_lines, media_type
from isthmus.upstream.base_link import BaseLink, ConnectFailed, WrongCarrier
from isthmus.upstream.credential_redaction import redact_error
from isthmus.upstream.http_shared import (
    ADVICE,
    OK,
    TURNED_AWAY,
    UNAUTHORIZED,
    CallerHeaders,
    HttpEndpoint,
    HttpRequest,
    OneWayPosts,
    advice_for,
    login_url,
    same_origin_target,
)
from isthmus.upstream.listing import Listing, leave_out
from isthmus.upstream.response_waiters import (
    LATER_BYTES,
    CallWaiter,
    PendingRequest,
    Waiter,
    lost,
    turned_away,
    waiter_for,
)
from isthmus.upstream.server_settings import Era
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Notification, Payload, Request, Response
from isthmus.wire.lines import Collected, Oversized
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.forwarded_methods import METHODS, QUESTIONS
from isthmus.wire.mcp.lists import TOOLS
from isthmus.wire.mcp.messages import LOGGED, PROGRESS, Implementation, read_log, token_of
from isthmus.wire.mcp.modern import HeaderParams, annotated_params, is_annotation_valid, param_headers
from isthmus.wire.sse import SseDecoder

SPARE_CONNECTIONS = 8
"""Connections beside those for calls: pings, listings, the notification stream."""

RELISTEN_SECONDS = 30.0
"""The longest pause before the notification stream is opened again."""

RELISTEN_SECONDS_MIN = 0.5
"""The shortest pause that a server may ask for: after each, everything is listed again."""

SESSION_LENGTH_MAX = 1024

HEADS_MAX = 10_000
"""Cached request heads; callers can name any number of resources and tasks."""

EVENT_ID_LENGTH_MAX = 1024
HOPS_MAX = 3

STREAM_OPEN_SECONDS = 1.0
"""How long a call waits for the stream on which its server may ask; a server without one may not say so."""

BAD_REQUEST = 400
NOT_FOUND = 404
REDIRECTS = (307, 308)
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


class StreamableLink(BaseLink):
    """A server's endpoint: its session, if it has one, and the pending requests."""

    carrier = "http"
    start_seconds = 20.0
    takes_methods = True

    def __init__(
        self,
        server: ServerName,
        me: Implementation,
        limits: Limits,
        *,
        url: str,
        credentials: Credentials,
        egress: Egress,
        background: BackgroundTasks,
        max_calls: int,
    ) -> None:
        super().__init__(server, me, limits)
        self._background = background
        connections = max_calls + SPARE_CONNECTIONS
        self._endpoint = HttpEndpoint(server, url, limits, credentials, egress, background, connections=connections)
        self._client = self._endpoint.client
        self._credentials = credentials
        self._generation = credentials.generation
        """The generation of the credentials in the cached heads."""
        self._session: str | None = None
        self._is_initialized = False
        self._is_endpoint = False
        self._wrong: str | None = None
        self._location: str | None = None
        self.stays = False
        """Whether a redirect may only add or remove a trailing slash."""
        self.caller_headers = CallerHeaders()
        self._heads: dict[tuple[str, str | None], bytes] = {}
        self._places: dict[bytes, HeaderParams] = {}
        self._one_way_posts = OneWayPosts(self._client)
        self._expired: list[Post] | None = None
        self._is_rechecking = False
        """A new session exists, and its tools are read before anything else is sent."""
        self._stream: NotificationStream | None = None
        """The stream on which the server announces changes."""
        self._next_stream: NotificationStream | None = None
        """The stream that replaces it as soon as the server uses it."""
        self._last_event_id: str | None = None
        """The id of the last event of a notification stream that ended."""
        self._resumes: dict[Post, tuple[asyncio.TimerHandle, str]] = {}
        """Requests whose streams ended too soon, until they are resumed from their last event."""
        self._relisten: asyncio.TimerHandle | None = None
        self._pause = 1.0
        self._opened_at = 0.0
        self._missed_changes = False
        """The notification stream ended; changes since then were missed."""

    # -- heads -----------------------------------------------------------------------------------------------------

    def _head(self, method: str, name: str | None = None) -> bytes:
        """The head of a POST; cached per method and name."""
        key = (method, name)
        if self._generation != self._credentials.generation:
            self._generation = self._credentials.generation
            self._heads.clear()
        if (head := self._heads.get(key)) is not None:
            return head
        head = self._endpoint.head(
            "POST",
            {
                "accept": "application/json, text/event-stream",
                "content-type": "application/json",
                **self._state_headers(method, name),
            },
        )
        if self._is_initialized and self._expired is None:  # without a session there is nothing to cache
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
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

    async def handshake(self, era: Era) -> None:
        """Detect the era, and follow redirects within the origin."""
        for _ in range(HOPS_MAX):
            try:
                await super().handshake(era)
            except (NotConnected, BadReply):
                if self._location is None:
                    if self._wrong is not None and not self._is_endpoint:
                        raise WrongCarrier(f"it answered a POST of MCP with {self._wrong}") from None
                    raise
                # Only within the origin: credentials must not reach another.
                origin, target = self._endpoint.origin, self._endpoint.target
                place = same_origin_target(origin, target, self._location, "redirects to", stays=self.stays)
                self._endpoint.target, self._location = place, None
            else:
                self._is_initialized = True
                self.closing_cancels = self.dialect.era == "modern"
                if self.questions.client_caps and self.dialect.era == "legacy" and self._session is not None:
                    # A legacy server may ask on the stream, unless it names the call (those on the TypeScript SDK do).
                    # Questions before the stream is open are lost, so it opens before a call can make the server ask.
                    await self._open_stream_first()
                return
        raise ConnectFailed("it redirects in circles")

    async def _open_stream_first(self) -> None:
        self._expect_listening()
        self.listen()
        if (listen_ack := self.listen_ack) is not None:
            await asyncio.wait({listen_ack}, timeout=STREAM_OPEN_SECONDS)

    async def subscribe(self, uri: str) -> None:
        """Subscribe to a resource. A legacy server reports updates on the notification stream, so open that first."""
        is_deaf = self._stream is None and self._next_stream is None and self.listen_ack is None
        if is_deaf and self.dialect.era == "legacy" and self._session is not None:
            await self._open_stream_first()
        await super().subscribe(uri)

    def on_redirect(self, location: str) -> None:
        """Remember a redirect; it is followed during the handshake only."""
        if not self._is_initialized:
            self._location = location

    def on_carrier_judged(self, answer: str, *, is_endpoint: bool) -> None:
        """Remember whether a reply looks like an MCP endpoint; one such reply is enough."""
        if not self._is_initialized:
            self._is_endpoint |= is_endpoint
            self._wrong = answer

    # -- sending ---------------------------------------------------------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """POST the call."""
        lines = self.caller_headers.lines_for(inflight) if inflight.call.headers else b""
        if lines is None:
            return
        if TRACEPARENT in inflight.call.meta:
            lines += header_lines(trace_headers(inflight.call.meta))
        id = self.requests.next_id()
        waiter = waiter_for(inflight) if self.dialect.era == "legacy" else CallWaiter(inflight)
        call, name = waiter.request()
        method = METHODS.get(call.kind, name)
        body = jsonrpc.request(id, method, self.dialect.call_params(call, name, id))
        post = Post(self, id, method, None if call.kind == "method" else name, body, waiter)
        if call.request_id is not None:
            post.wire_id = self.requests.caller_request_id(call)
            if post.wire_id is not None:
                post.body = jsonrpc.request_as(post.wire_id, method, self.dialect.call_params(call, name, id))
        if self.dialect.era == "modern":
            target = inflight.target
            if places := self._places_of(target.own or target.feature):
                lines += header_lines(param_headers(places, inflight.call.arguments))
        post.lines = lines
        inflight.carriage = post
        self._send(post)
        if self.questions.early:
            self.questions.deliver_early()

    def _places_of(self, tool: Feature) -> HeaderParams:
        """The tool's arguments that are repeated in headers; cached per definition."""
        places = self._places.get(tool.digest)
        if places is None:
            if len(self._places) > self.limits.tools_per_server:
                self._places.clear()
            places = self._places[tool.digest] = annotated_params(tool.definition.get("inputSchema"))
        return places

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        self._send(Post(self, id, method, None, jsonrpc.request(id, method, params), waiter))

    def _send(self, post: Post) -> None:
        self.requests.pending[post.id] = post
        if self._expired is not None:  # a new session is being opened
            is_part_of_that = post.method == "initialize" or (self._is_rechecking and post.method == TOOLS.method)
            if not is_part_of_that:
                self._expired.append(post)
                return
        self._transmit(post)

    def _transmit(self, post: Post) -> None:
        post.session = self._session
        head = self._head(post.method, post.name)
        post.ticket = self._client.send(head + post.lines if post.lines else head, post.body, post)

    def _say(self, message: bytes, *, about: PendingRequest | None = None, is_awaited: bool = False) -> None:
        post = self._one_way_posts.answer if is_awaited else self._one_way_posts.send
        post(self._head(""), message)

    def _notify(self, method: str, params: Payload | None, about: PendingRequest | None = None) -> None:
        head = self._head(method) + (b"" if about is None else about.lines)
        message = jsonrpc.notification(method, params)
        # A server without sessions cannot match a request id to a call: repeating the cancellation is useless.
        if about is None or about.was_read or self._session is None:
            self._one_way_posts.send(head, message)
        else:
            self._one_way_posts.cancel_unread(head, message, partial(self._is_cancel_wanted, about))

    # -- streams that ended too soon -------------------------------------------------------------------------------

    def resume(self, post: Post, event_id: str, seconds: float) -> bool:
        """Resume a request's stream after a pause; False if that is impossible."""
        if self.dialect.era == "modern" or self.lost.done() or not _is_header(event_id):
            return False
        timer = asyncio.get_running_loop().call_later(seconds, self._request_rest, post)
        self._resumes[post] = (timer, event_id)
        return True

    def _request_rest(self, post: Post) -> None:
        _, event_id = self._resumes.pop(post)
        if post.is_done:
            return
        if post.session != self._session:
            post.fail(lost(self.server, "its session expired while the stream was away", may_have_left=True))
            return
        post.ticket = self._client.send(self._listen_head(event_id) + post.lines, None, post)

    def _listen_head(self, event_id: str | None = None) -> bytes:
        """The head of a GET for a stream, from the beginning or after an event."""
        last = {} if event_id is None else {legacy.EVENT_HEADER: event_id}
        return self._endpoint.head("GET", {"accept": EVENT_STREAM, **last, **self._state_headers("", None)})

    # -- ending a call, and what the server says by itself ---------------------------------------------------------

    def link_session_of(self, inflight: InFlight) -> LinkSession | None:
        """The scope of a call's task ids; None if its session is gone."""
        post = inflight.carriage
        return self.place if isinstance(post, Post) and post.session == self._session else None

    def asked(self, request: Request, waiter: Waiter | None = None) -> None:
        """Handle a request of the server, on a call's stream or the shared one; the reply is a POST of its own."""
        if waiter is not None:
            self.questions.ask_caller(request, waiter, self._say)
            return
        if request.method in QUESTIONS:
            self.questions.note_question()
        self.questions.ask_only_caller(request, self._say)

    async def _read_lists(self, topics: Set[Topic], known: Listing | None, client_caps: ClientCapabilities) -> Listing:
        """The server's lists, without tools whose header parameters cannot be written.

        The specification forbids them.
        """
        listing = await super()._read_lists(topics, known, client_caps)
        if self.dialect.era == "legacy":
            return listing
        ill = {tool.name for tool in listing.tools if not is_annotation_valid(tool.definition.get("inputSchema"))}
        return leave_out(listing, ill, "its x-mcp-header cannot be sent") if ill else listing

    # -- sessions --------------------------------------------------------------------------------------------------

    def on_session(self, session: str | None) -> None:
        """The server answered `initialize`, with a session or without."""
        if session is None or (0 < len(session) <= SESSION_LENGTH_MAX and session.isascii() and session.isprintable()):
            self._session = session

    def on_session_gone(self, post: Post) -> None:
        """A 404 for our session proves that the request did not run: send it again in a new session."""
        if self._expired is None and post.session != self._session:
            if not self._fail_if_barred(post):
                self._transmit(post)  # another request's 404 came first, and a new session exists already
            return
        if self._expired is None:
            self._expired = []
            self._background.spawn(
                f"session of {self.server}", self._renew(), on_crash=lambda _: self._lose("a defect")
            )
        self._expired.append(post)

    async def _renew(self) -> None:
        self._session = self._last_event_id = None
        self.place.is_lost = True
        self.place = LinkSession()
        self._heads.clear()
        try:
            await self._initialize()
            if self.recheck is not None:
                self._is_rechecking = True
                await self.recheck()
        except (Fault, ConnectFailed) as failed:
            waiting, self._expired = self._expired or [], None
            for post in waiting:
                post.fail(turned_away(self.server, f"its session expired and it gave no new one ({failed})"))
            self._lose(f"its session expired and it gave no new one ({failed})")
            return
        finally:
            self._is_rechecking = False
        waiting, self._expired = self._expired or [], None
        for post in waiting:
            if not post.is_done and not self._fail_if_barred(post):
                self._transmit(post)
        self.listen()  # the notification stream belonged to the old session
        self.on_renewed()  # with its session a server forgets subscriptions, and its lists may have changed

    def _fail_if_barred(self, post: Post) -> bool:
        """Whether the call may not be sent to the server as it is now; if so, fail it."""
        if self.may_send is None or not isinstance(post.waiter, CallWaiter):
            return False
        inflight = post.waiter.inflight
        if self.may_send(inflight):
            return False
        post.fail(UnknownTool(inflight.call.name))
        return True

    # -- notification stream ---------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Open the notification stream: a GET in the legacy era, a request in the modern one.

        A server with sessions gets one in any case: some report the progress of calls there.
        """
        if self.lost.done() or not (self.capabilities.announces_changes or self._session is not None):
            return
        if self.dialect.era == "modern":
            self._modern_subscriptions.resubscribe()
            return
        last, self._last_event_id = self._last_event_id, None
        stream = self._open_next_stream()
        stream.is_resumed = last is not None
        stream.ticket = self._client.send(self._listen_head(last), None, stream)

    def _listen_to(self, uris: Collection[str]) -> None:
        stream = self._open_next_stream()
        body = jsonrpc.request(self.requests.next_id(), modern.LISTEN, self._listen_params(uris))
        stream.ticket = self._client.send(self._head(modern.LISTEN), body, stream)

    def _open_next_stream(self) -> NotificationStream:
        if self._stream is None:
            self._stream = self._next_stream  # it may become active before the next one
        elif self._next_stream is not None:
            self._next_stream.close()
        self._expect_listening()
        self._next_stream = NotificationStream(self, self.dialect.era)
        return self._next_stream

    def on_stream_open(self, stream: NotificationStream, honoured: Collection[str] | None = None) -> None:
        """The server uses a new notification stream: close the one before it."""
        if stream is self._next_stream:
            before, self._stream, self._next_stream = self._stream, stream, None
            if before is not None:
                before.close()
            self._opened_at = asyncio.get_running_loop().time()
            self._listen_done()
            self._modern_subscriptions.acknowledged(honoured)
            if self._missed_changes:
                self._missed_changes = self._modern_subscriptions.has_pending
                self.on_gap()

    def on_stream_refused(self, stream: NotificationStream, refusal: Fault) -> None:
        """The server refused a notification stream; an earlier one stays open."""
        if stream.is_resumed:  # it may only have forgotten the last event
            self.on_stream_ended(stream)
            return
        if stream is self._next_stream:
            self._next_stream = None
            self._listen_done(refusal)
            self._modern_subscriptions.refused(refusal)
        elif stream is self._stream:
            self.on_stream_ended(stream)

    def on_stream_ended(self, stream: NotificationStream) -> None:
        """The notification stream ended: open it again after a pause, and look for missed changes."""
        if stream is self._stream:
            self._stream = None
            self._modern_subscriptions.closed()
        if stream is self._next_stream:
            self._next_stream = None
            self._modern_subscriptions.interrupted()
        self._missed_changes = True
        if self.lost.done() or self._relisten is not None:
            return
        self._last_event_id = stream.event_id if _is_header(stream.event_id or "") else None
        if asyncio.get_running_loop().time() - self._opened_at > RELISTEN_SECONDS:
            self._pause = 1.0  # it was open for a while: opening it again makes sense
        delay = random.uniform(0.5, 1.0) * self._pause  # noqa: S311 - spread, not secrecy
        if stream.retry is not None and stream.event_id is not None:
            delay = min(max(stream.retry, RELISTEN_SECONDS_MIN), RELISTEN_SECONDS)
        self._pause = min(self._pause * 2, RELISTEN_SECONDS)
        self._relisten = asyncio.get_running_loop().call_later(delay, self._listen_again)

    def _listen_again(self) -> None:
        self._relisten = None
        if not self.lost.done():
            self.listen()
            for topic in TOPICS:
                self.on_changed(topic)

    # -- ending ----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """End the session, if there is one, and every connection."""
        self._lose("closed by the hub")
        waiting, self._resumes = self._resumes, {}
        for post, (timer, _) in waiting.items():
            timer.cancel()
            post.fail(lost(self.server, "closed by the hub", may_have_left=True))
        if self._relisten is not None:
            self._relisten.cancel()
        try:
            if self._session is not None and self._is_initialized:
                self._one_way_posts.send(self._endpoint.head("DELETE", self._state_headers("", None)), None)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_SECONDS):
                        await self._one_way_posts.wait_sent()
        finally:
            await self._client.aclose()


def _is_header(event_id: str) -> bool:
    """Whether an event id can be sent in a header."""
    return 0 < len(event_id) <= EVENT_ID_LENGTH_MAX and event_id.isascii() and event_id.isprintable()


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


class Post(HttpRequest):
    """One POST and its response."""

    __slots__ = (
        "_advice",
        "_after_reading",
        "_body",
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
        "is_done",
        "method",
        "name",
        "session",
    )

    def __init__(
        self, link: StreamableLink, id: int, method: str, name: str | None, body: bytes, waiter: Waiter
    ) -> None:
        super().__init__(id, waiter)
        self._link = link
        self.method = method
        self.name = name
        self.body = body
        self.session: str | None = None
        """The session it was sent in; the link may have another one when the response comes."""
        self.is_done = False
        self._was_expired = False
        self._status = 0
        self._login: str | None = None
        """The URL where the server describes its login."""
        self._advice = ""
        """What the operator can do about the status."""
        self._body = Collected()
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

    @property
    def was_read(self) -> bool:
        """Whether the server has begun to answer."""
        return self._status != 0 or self._rest is not None

    def abandon(self) -> None:
        """Close the connection of this request."""
        self._finish()
        super().abandon()

    def fail(self, fault: Fault) -> None:
        """There will be no response."""
        if not self.is_done:
            self._finish()
            self.waiter.fail(fault)

    def _finish(self) -> None:
        self.is_done = True
        self._link.requests.pending.pop(self.id, None)

    # -- the reply, as the client hands it over --------------------------------------------------------------------

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Read the status and choose how to read the body."""
        self._status = status
        if status in ADVICE:
            self._login = login_url(status, headers)
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
                if self.is_done:
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
            self._body.add(chunk)

    def on_end(self) -> None:
        """The response is complete."""
        if self.is_done:
            return
        if self._is_reading:
            self._after_reading = self.on_end
        elif self._decoder is not None:
            self._break_off("its stream ended before the answer", self._decoder, is_polite=True)
        elif self._rest is not None:
            self._miss(f"it answered HTTP {self._status} to the request to resume its stream", self._rest)
        elif self._size > LATER_BYTES:
            self._read_late()
        else:
            body = bytes(self._body.take())
            self._receive(jsonrpc.decode(body, max_depth=self._link.limits.depth, max_values=None) if body else None)

    def _read_late(self) -> None:
        """Read a long response in turns of the event loop of its own."""
        body = self._body.take()
        whole = partial(jsonrpc.decode_long, body, max_depth=self._link.limits.depth, max_values=None)
        read_then(whole, jsonrpc.decode_passes, self._receive_late, jsonrpc.unreadable, self._link.server)

    def _receive_late(self, message: jsonrpc.Message) -> None:
        if not self.is_done:
            self._receive(message)

    def on_lost(self, lost_: ConnectionLost) -> None:
        """The connection broke; after the response, that does not matter."""
        if self.is_done:
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
        self._body.take()
        if rest.event_id is None or self.method == "initialize" or rest.times >= RESUMES_MAX:
            return False
        rest.times += 1
        return self._link.resume(self, rest.event_id, rest.seconds)

    # -- JSON ------------------------------------------------------------------------------------------------------

    def _receive(self, message: jsonrpc.Message | None) -> None:
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
            self._body.take()
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
        elif not self._is_own(message.id):
            self.fail(BadReply(self._link.server, "the answer to another request"))
        else:
            self._finish()
            self.waiter.result(message.result)

    def _is_own(self, id: msgspec.Raw) -> bool:
        """Whether a response has the id of this request: the link's own, or the caller's that it carries."""
        return bytes(id) == b"%d" % self.id or (self.wire_id is not None and jsonrpc.same_id(id, self.wire_id))

    # -- events ----------------------------------------------------------------------------------------------------

    def _read_event(self, data: bytes) -> None:
        whole = partial(jsonrpc.decode, data, max_depth=self._link.limits.depth, max_values=None)
        id = jsonrpc.answer_start(data) if len(data) > LATER_BYTES and not self._is_reading else None
        if id is not None and self._is_own(id):
            self._is_reading = True
            read_then(whole, jsonrpc.decode_passes, self._answer_was_read, jsonrpc.unreadable, self._link.server)
        else:
            self._receive_event(whole())

    def _answer_was_read(self, message: jsonrpc.Message) -> None:
        """A long answer was read; the stream may have ended meanwhile."""
        self._is_reading = False
        happened, self._after_reading = self._after_reading, None
        if not self.is_done:
            self._receive_event(message)
        if not self.is_done and happened is not None:
            happened()

    def _receive_event(self, message: jsonrpc.Message) -> None:
        match message:
            case Response() | ErrorReply() if message.id is None or self._is_own(message.id):
                self._answer(message)
                if self.ticket is not None:
                    # The server may end its stream, so that the connection can be reused; but not for ever.
                    asyncio.get_running_loop().call_later(LINGER_SECONDS, self.ticket.abort)
            # On a request's own stream, progress and logs belong to that request.
            case Notification(method=method, params=params) if method == PROGRESS and token_of(params) == self.id:
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


class NotificationStream:
    """The stream on which a server announces changes.

    In the legacy era it is open with its response head; a modern server acknowledges it in its first message.
    """

    def __init__(self, link: StreamableLink, era: Literal["legacy", "modern"]) -> None:
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
