"""MCP over the earlier HTTP+SSE transport: a stream at `/sse` for everything the hub sends, `/messages` to send to it.

A session is its stream and ends with it. Its id is random and belongs to the caller that opened it; every request is
authenticated by itself. A session without any message for a day is closed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from isthmus.core.admin_ports import CallerSession
from isthmus.core.background import BackgroundTasks
from isthmus.frontends.http.auth import Authenticator, Denied
from isthmus.frontends.http.nodes import ALONE, Nodes, new_id
from isthmus.frontends.http.request_cycle import (
    CROWDED_BYTES,
    JSON,
    PEER,
    STREAM,
    KeepAlive,
    Message,
    Peer,
    Receive,
    Send,
    is_json,
    join_headers,
    read_body,
    respond,
)
from isthmus.frontends.mcp.duplex import DuplexSession
from isthmus.frontends.mcp.exchange import JsonRpcReply
from isthmus.frontends.mcp.http_streams import describe_session, set_over
from isthmus.frontends.mcp.methods import McpMethods
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.wire import sse

STREAM_PATH = "/sse"
MESSAGES_PATH = "/messages"
PATHS = frozenset({STREAM_PATH, MESSAGES_PATH, MESSAGES_PATH + "/"})

SESSIONS_MAX = 1_000
"""Streams that one caller may have open at once."""

IDLE_SECONDS = 86_400.0
"""A session without a message for this long is closed. Its open stream shows that the client is alive, so the hour of
sessions without streams would be too short: it would disconnect desktop clients during lunch."""

SWEEP_SECONDS = 3600.0
"""How often idle sessions are closed."""

SESSION_PARAMETERS = ("sessionId", "session_id")
"""Query parameters that name the session; the official clients repeat the one they were given."""


@dataclass(eq=False, slots=True)
class _SseSession:
    id: str
    caller: Caller
    peer: Peer
    over: asyncio.Future[None]
    clock: Callable[[], float]
    used_at: float
    opened_at: float
    duplex: DuplexSession = field(init=False)

    def send(self, message: bytes) -> None:
        """Send a message on the stream."""
        self.used_at = self.clock()
        self.peer.push(sse.frame(message))

    async def receive(self, body: bytes) -> JsonRpcReply | None:
        """Receive a message; returns the error response to an unreadable one."""
        self.used_at = self.clock()
        read: asyncio.Future[JsonRpcReply | None] = asyncio.get_running_loop().create_future()
        self.duplex.receive(body, read.set_result)
        return await read

    def is_crowded(self) -> bool:
        """Whether the caller reads slowly."""
        return self.peer.buffered_bytes() > CROWDED_BYTES

    def is_idle(self, now: float) -> bool:
        """Whether nothing happened for too long and no call runs."""
        return now - self.used_at > IDLE_SECONDS and self.duplex.is_idle


class McpSse:
    """The frontend."""

    def __init__(
        self,
        mcp_methods: McpMethods,
        auth: Authenticator,
        background: BackgroundTasks,
        surface: Surface,
        prefix: str = "",
        nodes: Nodes = ALONE,
    ) -> None:
        """`prefix` is the path under which a proxy publishes the hub, if any."""
        self._methods = mcp_methods
        mcp_methods.frontend = "sse"
        self._auth = auth
        self._background = background
        self._surface = surface
        self._prefix = prefix
        self._nodes = nodes
        self._sessions: dict[str, _SseSession] = {}
        self._stream_counts: Counter[tuple[str, str]] = Counter()
        self._sweeping: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def describe(self, since: float) -> Iterator[CallerSession]:
        """All sessions; `since` is the time of day at which their clock started."""
        for session in self._sessions.values():
            yield describe_session(
                "sse",
                session.caller,
                session.duplex.client_info,
                session.duplex.version,
                (since + session.opened_at, since + session.used_at),
                calls=session.duplex.running_calls,
                streams=1,
            )

    def stream_callers(self) -> list[Caller]:
        """The caller of each open stream."""
        return [session.caller for session in self._sessions.values()]

    def end_streams(self) -> None:
        """End every stream after its calls, because the hub stops."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for session in list(self._sessions.values()):
            set_over(session.over)

    def retain(self, callers: Container[Caller]) -> None:
        """End the sessions of all other callers: those removed, or whose permissions changed."""
        for session in list(self._sessions.values()):
            if session.caller not in callers:
                session.duplex.cancel_all("the session was ended")
                set_over(session.over)

    def sweep(self, now: float) -> None:
        """End every idle session."""
        for session in list(self._sessions.values()):
            if session.is_idle(now):
                set_over(session.over)

    async def serve(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        peer: Peer = scope["extensions"][PEER]
        caller = self._admit(scope, peer)
        if caller is None:
            return None
        match (scope["path"].rstrip("/"), scope["method"]):
            case ("/sse", "GET"):
                await self._stream(caller, peer)
            case ("/messages", "POST"):
                await self._message(caller, scope, receive, peer)
            case ("/messages", "DELETE"):
                session = self._find(caller, scope)
                if session is None:
                    return respond(peer, 404, "Session not found")
                session.duplex.cancel_all("the session was ended")
                set_over(session.over)
                respond(peer, 204, "")
            case ("/sse", _):
                respond(peer, 405, "Use GET; Streamable HTTP is at /mcp", ((b"allow", b"GET"),))
            case _:
                respond(peer, 405, "Use POST or DELETE", ((b"allow", b"POST, DELETE"),))
        return None

    def _admit(self, scope: Message, peer: Peer) -> Caller | None:
        """Authenticate a request; None if it was denied and answered so."""
        caller = self._auth.admit(join_headers(scope["headers"]), "sse", scope)
        if not isinstance(caller, Denied):
            return caller
        self._auth.on_turned_away("sse", caller.status)
        respond(peer, caller.status, caller.message, caller.headers)
        return None

    # -- the stream ------------------------------------------------------------------------------------------------

    async def _stream(self, caller: Caller, peer: Peer) -> None:
        owner = caller.tenant, caller.name
        if self._stream_counts[owner] >= SESSIONS_MAX:
            return respond(peer, 429, f"This caller has {SESSIONS_MAX} open streams; close one first")
        loop = asyncio.get_running_loop()
        now = loop.time()
        session = _SseSession(new_id(self._nodes, 24), caller, peer, loop.create_future(), loop.time, now, now)
        session.duplex = DuplexSession(
            self._methods, caller, self._surface, self._background, session.send, session.is_crowded
        )
        session.duplex.is_counted_on_arrival = True
        self._sessions[session.id] = session
        self._stream_counts[owner] += 1
        if self._sweeping is None:
            self._sweeping = loop.call_later(SWEEP_SECONDS, self._sweep)
        try:
            await self._run(session, peer)
        finally:
            self._sessions.pop(session.id, None)
            self._stream_counts -= Counter({owner: 1})
            session.duplex.stop_notifying()
            session.duplex.cancel_all("the caller closed its stream")
        peer.end(b"")
        return None

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self.sweep(loop.time())
        self._sweeping = loop.call_later(SWEEP_SECONDS, self._sweep) if self._sessions else None

    async def _run(self, session: _SseSession, peer: Peer) -> None:
        """Send the address for messages, and stay until the caller leaves, the session ends, or the hub stops."""
        is_gone = False

        def disconnected() -> None:
            nonlocal is_gone
            is_gone = True
            set_over(session.over)

        peer.on_disconnect(disconnected)
        peer.begin(200, STREAM)
        address = f"{self._prefix}{MESSAGES_PATH}?{SESSION_PARAMETERS[0]}={session.id}"
        peer.push(sse.named("endpoint", address))
        keep_alive = KeepAlive(peer, asyncio.get_running_loop())
        try:
            await session.over
            if not is_gone:  # running calls are answered before the stream ends
                await session.duplex.finish()
        finally:
            keep_alive.stop()

    # -- messages --------------------------------------------------------------------------------------------------

    async def _message(self, caller: Caller, scope: Message, receive: Receive, peer: Peer) -> None:
        session = self._find(caller, scope)
        if session is None:
            return respond(peer, 404, "Session not found: open a stream at /sse")
        if not is_json(join_headers(scope["headers"])):
            return respond(peer, 415, "Content-Type must be application/json")
        body = peer.take_body()
        if body is None:
            # The body may be slow, and the key may be revoked meanwhile.
            if (body := await read_body(receive)) is None or (caller_now := self._admit(scope, peer)) is None:
                return None
            if self._find(caller_now, scope) is not session:
                return respond(peer, 404, "Session not found: open a stream at /sse")
        refused = await session.receive(body)
        if refused is not None:
            peer.answer(400, JSON, refused.body)
        else:
            respond(peer, 202, "")
        return None

    def _find(self, caller: Caller, scope: Message) -> _SseSession | None:
        """The caller's own session; another caller's is answered like one that does not exist."""
        query = parse_qs(scope["query_string"].decode("latin-1"))
        ids = [id for name in SESSION_PARAMETERS for id in query.get(name, ())]
        session = self._sessions.get(ids[0]) if len(ids) == 1 else None
        return session if session is not None and session.caller == caller else None
