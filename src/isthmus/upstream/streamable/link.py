"""A server reached over Streamable HTTP: one POST a request, answered by JSON or by a stream of events.

Both eras, with and without sessions. A reply belongs to the POST that asked for it, so ids only guard against a
server that mixes answers up.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from urllib.parse import urljoin

import structlog

from isthmus.core.calls.inflight import InFlight
from isthmus.core.crew import Crew
from isthmus.core.ports.credentials import Credentials
from isthmus.core.settings import Limits
from isthmus.model.faults import Fault, NotConnected
from isthmus.model.names import ServerName
from isthmus.model.tools import Tool
from isthmus.transport.egress import Egress, parse_url
from isthmus.transport.http import HttpClient, header_lines, request_head
from isthmus.transport.http_connection import Lost, Ticket
from isthmus.upstream.link import BaseLink, ConnectFailed, reply_to
from isthmus.upstream.settings import Era
from isthmus.upstream.streamable.changes import Changes
from isthmus.upstream.streamable.post import EVENT_STREAM, LINGER_SECONDS, Post
from isthmus.upstream.waiters import CallWaiter, Waiter, turned_away
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Payload, Request
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.params import Places, annotated, param_headers
from isthmus.wire.mcp.tools import (
    CANCELLED,
    PROGRESS,
    TOOLS_CHANGED,
    Implementation,
    Members,
    cancelled_params,
    token_of,
)

log = structlog.get_logger(__name__)

SPARE_CONNECTIONS = 8
"""Connections beside those for calls: pings, listings, the stream of changes."""

NOTICES_MAX = 256
"""Notifications and answers of ours under way; a server that asks faster than it listens gets no more of them."""

NOTICE_SECONDS = 5.0
"""How long a server may take to acknowledge one, before the connection is taken back."""

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
        self._heads: dict[tuple[str, str | None], bytes] = {}
        self._posts: dict[int, Post] = {}
        self._places: dict[bytes, Places] = {}
        self._notices: set[_Notice] = set()
        self._expired: list[Post] | None = None
        self._stream: Ticket | None = None
        """The request on which the server announces changes."""
        self._relisten: asyncio.TimerHandle | None = None
        self._pause = 1.0
        self._heard_at = 0.0

    # -- heads -----------------------------------------------------------------------------------------------------

    def _head(self, method: str, name: str | None = None) -> bytes:
        """The head of a POST; what a server and a tool have in common is prepared once."""
        key = (method, name)
        if (head := self._heads.get(key)) is not None:
            return head
        head = self._request_head(
            "POST",
            {
                "accept": "application/json, text/event-stream",
                "content-type": "application/json",
                **self._state_headers(method, name),
            },
        )
        if self._is_greeted and self._expired is None:  # not while there is no session to name
            self._heads[key] = head
        return head

    def _request_head(self, verb: str, headers: Mapping[str, str]) -> bytes:
        """A head with the operator's own headers, of which the protocol's take precedence whatever their case."""
        own = {name.lower(): value for name, value in self._credentials.headers_for(self.server).items()}
        return request_head(verb, self._target, self._origin, {**own, **headers})

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
        tool = inflight.tool.tool
        body = jsonrpc.request(id, "tools/call", self.dialect.call_params(inflight.call, tool.name, id))
        post = Post(self, id, "tools/call", tool.name, body, CallWaiter(inflight))
        if self.dialect.era == "modern" and (places := self._places_of(tool)):
            post.lines = header_lines(param_headers(places, inflight.call.arguments))
        inflight.carriage = post
        self._send(post)

    def _places_of(self, tool: Tool) -> Places:
        """Which arguments of a tool are repeated in headers; found out once per description."""
        places = self._places.get(tool.digest)
        if places is None:
            if len(self._places) > self.limits.tools_per_server:
                self._places.clear()
            places = self._places[tool.digest] = annotated(tool.definition.get("inputSchema"))
        return places

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        self._send(Post(self, id, method, None, jsonrpc.request(id, method, params), waiter))

    def _send(self, post: Post) -> None:
        self._posts[post.id] = post
        if self._expired is not None and post.method != "initialize":
            self._expired.append(post)  # a new session is on its way
        else:
            self._transmit(post)

    def _transmit(self, post: Post) -> None:
        post.session = self._session
        head = self._head(post.method, post.name)
        post.ticket = self._client.send(head + post.lines if post.lines else head, post.body, post)

    def _notify(self, method: str, params: Payload | None) -> None:
        self._tell(method, jsonrpc.notification(method, params))

    def _tell(self, method: str, message: bytes) -> None:
        """Send what has no answer worth reading; a server that does not take it costs little, and not for long."""
        if len(self._notices) < NOTICES_MAX:
            notice = _Notice(self._notices)
            notice.watch(self._client.send(self._head(method), message, notice))

    def over(self, post: Post) -> None:
        """A request has ended, one way or the other."""
        self._posts.pop(post.id, None)

    def may_have_run(self, inflight: InFlight) -> bool:
        """What waits for a connection, or for a new session, has not left."""
        post = inflight.carriage
        return not isinstance(post, Post) or post.may_have_left

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Close the connection, which is how the modern era cancels; the earlier one wants it in words as well."""
        post = inflight.carriage
        if isinstance(post, Post):
            if self.dialect.era == "legacy" and post.may_have_left:
                self._notify(CANCELLED, cancelled_params(str(post.id).encode(), reason))
            post.abandon()

    def _forget(self, waiter: Waiter) -> None:
        for post in self._posts.values():
            if post.waiter is waiter:
                post.abandon()
                return

    def noted(self, method: str, params: Members) -> None:
        """The server tells something: a change, or progress of a call that it did not tell on the call's stream."""
        if method == TOOLS_CHANGED:
            self.on_changed()
        elif method == PROGRESS:
            post = self._posts.get(token_of(params))
            if post is not None:
                post.waiter.progress(params)

    def asked(self, request: Request) -> None:
        """A server's own request; the answer travels by a POST of its own."""
        self._tell("", reply_to(request))

    # -- sessions --------------------------------------------------------------------------------------------------

    def welcomed(self, session: str | None) -> None:
        """The server answered `initialize`, with a session or without."""
        if session is None or (0 < len(session) <= SESSION_LENGTH_MAX and session.isascii() and session.isprintable()):
            self._session = session

    def session_gone(self, post: Post) -> None:
        """A 404 for our session proves that the request did not run: it waits for a new session and goes once more."""
        if self._expired is None and post.session != self._session:
            self._transmit(post)  # another's 404 came before, and there is a new session already
            return
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
        self.listen()  # the stream of changes was the old session's
        self.on_changed()  # a server that forgot the session may have changed in the meantime

    # -- hearing of changes ----------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Open the stream for what belongs to no request: a GET in the earlier era, a request in the modern.

        A server with sessions is listened to in any case: some tell the progress of calls there.
        """
        if self.lost.done() or not (self.capabilities.announces_changes or self._session is not None):
            return
        if self._stream is not None:
            self._stream.abort()
        if self.dialect.era == "modern":
            params = self.dialect.params({"notifications": b'{"toolsListChanged":true}'})
            body = jsonrpc.request(self.next_id(), modern.LISTEN, params)
            self._stream = self._client.send(self._head(modern.LISTEN), body, Changes(self))
        else:
            head = self._request_head("GET", {"accept": EVENT_STREAM, **self._state_headers("", None)})
            self._stream = self._client.send(head, None, Changes(self))

    def heard(self) -> None:
        """The stream of changes is open."""
        self._heard_at = asyncio.get_running_loop().time()

    def deaf(self) -> None:
        """The stream of changes ended: open it again in a while, and look for what was missed."""
        if self.lost.done() or self._relisten is not None:
            return
        if asyncio.get_running_loop().time() - self._heard_at > RELISTEN_SECONDS:
            self._pause = 1.0  # it was open for a while, so that opening it again is worth it
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
        try:
            if self._session is not None and self._is_greeted:
                await self._end_session()
        finally:
            await self._client.aclose()

    async def _end_session(self) -> None:
        done = _Ended()
        self._client.send(self._request_head("DELETE", self._state_headers("", None)), None, done)
        await asyncio.wait([done.over], timeout=LINGER_SECONDS)


class _Ignored:
    """The reply to a notification, which has none worth reading."""

    def on_head(self, status: int, headers: Mapping[str, str]) -> None: ...
    def on_body(self, chunk: bytes) -> None: ...
    def on_end(self) -> None: ...
    def on_lost(self, lost_: Lost) -> None: ...


class _Notice(_Ignored):
    """A message of ours that nobody waits for, until it is taken or its time is over."""

    def __init__(self, under_way: set[_Notice]) -> None:
        self._under_way = under_way
        self._timer: asyncio.TimerHandle | None = None
        under_way.add(self)

    def watch(self, ticket: Ticket) -> None:
        """Give it up after a while."""
        self._timer = asyncio.get_running_loop().call_later(NOTICE_SECONDS, self._expire, ticket)

    def _expire(self, ticket: Ticket) -> None:
        self._under_way.discard(self)
        ticket.abort()

    def on_end(self) -> None:
        self._under_way.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def on_lost(self, lost_: Lost) -> None:
        self.on_end()


class _Ended(_Ignored):
    """Tells when the reply is there, whatever it is."""

    def __init__(self) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_end(self) -> None:
        self.over.set_result(None)

    def on_lost(self, lost_: Lost) -> None:
        self.over.set_result(None)
