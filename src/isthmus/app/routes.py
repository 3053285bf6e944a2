"""The frontends of a hub together: which paths lead where, the bytes that callers have in progress, open sessions.

Used by `app.serve`.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from isthmus.core.access.bytes_in_flight import COUNTED_BYTES, BytesInFlight
from isthmus.core.admin_ports import CallerSession, CallerStreams, SessionList
from isthmus.frontends.a2a.http import A2aHttp
from isthmus.frontends.console.http import ConsoleHttp
from isthmus.frontends.http.auth import COMING_FROM, Authenticator, Fields
from isthmus.frontends.http.request_cycle import (
    JSON,
    PEER,
    App,
    IncomingRequest,
    Message,
    Peer,
    Receive,
    Send,
    header_lines,
    join_headers,
    respond,
)
from isthmus.frontends.mcp.exchange import code_of, data_of
from isthmus.frontends.mcp.http import NOT_FOUND, McpHttp
from isthmus.frontends.mcp.sse import McpSse
from isthmus.frontends.oauth.http import OauthHttp
from isthmus.frontends.relay.http import RelayHttp
from isthmus.frontends.rest.http import RestHttp, answer_problem
from isthmus.frontends.rest.problem_details import problem_of
from isthmus.frontends.wellknown.http import WellKnown
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.model.names import ServerName
from isthmus.wire import jsonrpc


class Frontend(Protocol):
    """A frontend that is an ASGI application."""

    async def serve(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""


class StreamingFrontend(Protocol):
    """A frontend with open streams."""

    def end_streams(self) -> None:
        """End its streams."""


class Routes:
    """Maps paths to frontends. Paths must match exactly; nothing is normalized."""

    def __init__(
        self,
        surface: Surface,
        mcp: McpHttp,
        rest: RestHttp,
        frontends: Mapping[str, Frontend],
        agent: A2aHttp | None = None,
        well_known: WellKnown | None = None,
        relay: RelayHttp | None = None,
        oauth: OauthHttp | None = None,
    ) -> None:
        """`surface` is that of `/mcp`; `frontends` maps exact paths to frontends."""
        self._everything = surface
        self._mcp = mcp
        self._rest = rest
        self._frontends = frontends
        self._agent = agent
        self._well_known = well_known
        self._relay = relay
        self._oauth = oauth
        self.console: ConsoleHttp | None = None
        """Set unless the console is switched off."""
        self.preflight: Callable[[Fields], bytes | None] = lambda _: None
        """The answer to a CORS preflight; see `Authenticator.preflight`."""

    def take(self, arrival: IncomingRequest) -> bool:
        """Let the path's frontend answer a complete request at once, if it can."""
        path: str = arrival.scope["path"]
        surface = self._surface(path)
        if surface is not None:
            return self._mcp.take(surface, arrival)
        return is_rest(path) and self._rest.take(arrival)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        COMING_FROM.set(scope["client"])
        path: str = scope["path"]
        if scope["method"] == "OPTIONS" and (lines := self.preflight(join_headers(scope["headers"]))) is not None:
            scope["extensions"][PEER].answer(204, lines, b"")
            return
        if self._well_known is not None and self._well_known.is_at(path, scope["method"]):
            await self._well_known.serve(scope, receive, send)
            return
        surface = self._surface(path)
        if surface is not None:
            await self._mcp.serve(surface, scope, receive, send)
        elif is_rest(path):
            await self._rest.serve(scope, receive, send)
        elif (frontend := self._frontends.get(path)) is not None:
            await frontend.serve(scope, receive, send)
        elif self.console is not None and (self.console.is_at(path) or self.console.is_visit(scope)):
            await self.console.serve(scope, receive, send)
        elif self._agent is not None and self._agent.is_at(path):
            await self._agent.serve(scope, receive, send)
        elif self._oauth is not None and self._oauth.is_at(path):
            await self._oauth.serve(scope, receive, send)
        elif self._relay is not None and self._relay.is_at(path):
            await self._relay.serve(scope, receive, send)
        else:
            respond(scope["extensions"][PEER], 404, NOT_FOUND)

    def _surface(self, path: str) -> Surface | None:
        if path == "/mcp":
            return self._everything
        if not path.startswith("/mcp/"):
            return None
        # The frontend decides whether the set or server exists and whether this caller may know.
        name = path[5:]
        if name in self._mcp.hub.sets:
            return Surface(self._everything.style, set=name)
        return Surface("own", ServerName(name))


def is_rest(path: str) -> bool:
    """Whether a path belongs to the REST API."""
    return path.startswith("/v1/") or path in ("/v1", "/openapi.json")


class CountedRequests:
    """Passes requests to an application as long as their callers have room.

    A request that exceeds the bound gets 429 in the form of its path's frontend, before its body is read.
    """

    def __init__(self, app: App, auth: Authenticator, in_flight: BytesInFlight, longest: int) -> None:
        """`longest` is the size that counts for a body without a length."""
        self._app = app
        self._auth = auth
        self._in_flight = in_flight
        self._longest = longest

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        size = 0
        for name, value in scope["headers"]:
            if name in (b"content-length", b"transfer-encoding"):
                size = int(value) if name == b"content-length" else self._longest
                break
        if size <= COUNTED_BYTES:
            return await self._app(scope, receive, send)
        caller = self._auth.caller_of(join_headers(scope["headers"]), scope)
        if caller is None:  # the frontend says why
            return await self._app(scope, receive, send)
        refused = self._in_flight.enter(caller, size)
        if refused is not None:
            peer: Peer = scope["extensions"][PEER]
            if is_rest(scope["path"]):
                return answer_problem(peer, problem_of(refused))
            lines = JSON + header_lines([(b"retry-after", b"1")])
            return peer.answer(429, lines, jsonrpc.error(None, code_of(refused), refused.message, data_of(refused)))
        try:
            return await self._app(scope, receive, send)
        finally:
            self._in_flight.leave(caller, size)

    def hold_response(self, scope: Message, size: int) -> Callable[[], None]:
        """Count a response as unread until the returned function is called; not for callers without a credential.

        These look like one caller, and must not block each other.
        """
        caller = self._auth.caller_of(join_headers(scope["headers"]), scope)
        if caller is None or caller == self._auth.caller_of({}, scope):
            return lambda: None
        return self._in_flight.hold_response(caller, size)


SHOWN_MAX = 500
"""Sessions in one answer; a caller may have a thousand."""


class OpenSessions:
    """The open sessions and event streams of all frontends, for operators; see `core.admin_ports.SessionAdmin`.

    Nothing here lets a reader take a session over: no ids, no cookies, no keys.
    """

    def __init__(self, mcp: McpHttp, sse: McpSse, agent: A2aHttp, auth: Authenticator) -> None:
        """`auth` knows the sessions of the console, if there is one."""
        self._mcp = mcp
        self._sse = sse
        self._agent = agent
        self._auth = auth

    def describe(self, rest_streams: Iterable[Caller]) -> SessionList:
        """All of them; `rest_streams` has the caller of each stream that REST itself has open."""
        total = 0

        def counted() -> Iterator[CallerSession]:
            nonlocal total
            for session in self._sessions():
                total += 1
                yield session

        latest = heapq.nlargest(SHOWN_MAX, counted(), key=lambda session: session.last_used)
        return SessionList(tuple(latest), total, tuple(self._streams(rest_streams)))

    def _sessions(self) -> Iterator[CallerSession]:
        since = time.time() - asyncio.get_running_loop().time()
        yield from self._mcp.sessions.describe(since)
        yield from self._sse.describe(since)
        since = time.time() - time.monotonic()
        for each in () if self._auth.sessions is None else self._auth.sessions.open():
            times = (since + each.opened_at, since + each.used_at)
            yield CallerSession("console", each.caller, each.tenant, None, None, None, *times, calls=0, streams=0)

    def _streams(self, rest_streams: Iterable[Caller]) -> Iterator[CallerStreams]:
        open_streams: dict[str, list[Caller]] = {
            "mcp": self._mcp.streams.callers(),
            "sse": self._sse.stream_callers(),
            "a2a": self._agent.stream_callers(),
            "rest": list(rest_streams),
        }
        for frontend, callers in open_streams.items():
            counts = Counter((caller.name, caller.tenant) for caller in callers)
            for (name, tenant), count in sorted(counts.items()):
                yield CallerStreams(frontend, name, tenant, count)
