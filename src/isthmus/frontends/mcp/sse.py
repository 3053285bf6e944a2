"""MCP over the earlier HTTP+SSE transport: a stream at `/sse`, on which everything is told, and `/messages` to speak.

A session is its stream: it begins and ends with it, because nobody could be told anything afterwards. Its id is
random and belongs to the caller that opened it; every request is authenticated by itself. A stream on which nobody
says anything for a day is ended as well.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import parse_qs

from isthmus.core.background import BackgroundTasks
from isthmus.frontends.http.auth import Authenticator, Denied
from isthmus.frontends.http.bodies import CROWDED_BYTES, JSON, STREAM, KeepAlive, is_json, joined, read_body, say
from isthmus.frontends.http.request_cycle import PEER, Message, Peer, Receive, Send
from isthmus.frontends.mcp.conversation import Conversation
from isthmus.frontends.mcp.dialogue import Answer, Dialogue
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.wire import sse

STREAM_PATH = "/sse"
MESSAGES_PATH = "/messages"
PATHS = frozenset({STREAM_PATH, MESSAGES_PATH, MESSAGES_PATH + "/"})

SESSIONS_MAX = 1_000
"""Streams that one caller may have open at once."""

IDLE_SECONDS = 86_400.0
"""A session in which nobody said anything for this long is ended. Its stream is alive all the time, which shows that
somebody has it open: an hour, as for sessions without streams, would cut desktop clients whose people are at lunch."""

SWEEP_SECONDS = 3600.0
"""How often idle sessions are looked for."""

SESSION_PARAMETERS = ("sessionId", "session_id")
"""What the session is called in the address; the official clients repeat whatever they were given."""


@dataclass(eq=False, slots=True)
class _Session:
    id: str
    caller: Caller
    peer: Peer
    over: asyncio.Future[None]
    clock: Callable[[], float]
    used_at: float
    conversation: Conversation = field(init=False)

    def tell(self, message: bytes) -> None:
        """Say something on the stream."""
        self.used_at = self.clock()
        self.peer.push(sse.frame(message))

    def take(self, body: bytes) -> Answer | None:
        """Take what the caller said; what is no message comes back refused."""
        self.used_at = self.clock()
        return self.conversation.take(body)

    def is_crowded(self) -> bool:
        """Whether the caller reads slowly."""
        return self.peer.buffered_bytes() > CROWDED_BYTES

    def is_idle(self, now: float) -> bool:
        """Whether nobody needs it any more, by all that can be seen."""
        return now - self.used_at > IDLE_SECONDS and self.conversation.is_idle


class McpSse:
    """The face over HTTP+SSE."""

    def __init__(
        self, dialogue: Dialogue, auth: Authenticator, background: BackgroundTasks, surface: Surface, prefix: str = ""
    ) -> None:
        """`prefix` is the path under which a proxy shows the hub, if it does."""
        self._dialogue = dialogue
        dialogue.face = "sse"
        self._auth = auth
        self._background = background
        self._surface = surface
        self._prefix = prefix
        self._sessions: dict[str, _Session] = {}
        self._streams: Counter[tuple[str, str]] = Counter()
        self._sweeping: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def end_streams(self) -> None:
        """Let every stream end once its calls have, because the hub goes away."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for session in list(self._sessions.values()):
            _set(session.over)

    def retain(self, callers: Container[Caller]) -> None:
        """End the sessions of everybody else: who was removed, or may now do other things."""
        for session in list(self._sessions.values()):
            if session.caller not in callers:
                session.conversation.cancel_all("the session was ended")
                _set(session.over)

    def sweep(self, now: float) -> None:
        """End every session in which nobody said anything for too long."""
        for session in list(self._sessions.values()):
            if session.is_idle(now):
                _set(session.over)

    async def serve(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        peer: Peer = scope["extensions"][PEER]
        caller = self._admit(scope, peer)
        if caller is None:
            return
        match (scope["path"].rstrip("/"), scope["method"]):
            case ("/sse", "GET"):
                await self._listen(caller, peer)
            case ("/messages", "POST"):
                await self._take(caller, scope, receive, peer)
            case ("/messages", "DELETE"):
                self._delete(caller, scope, peer)
            case ("/sse", _):
                say(peer, 405, "Use GET; Streamable HTTP is at /mcp", ((b"allow", b"GET"),))
            case _:
                say(peer, 405, "Use POST or DELETE", ((b"allow", b"POST, DELETE"),))

    def _admit(self, scope: Message, peer: Peer) -> Caller | None:
        """Who sent a request; None if nobody who is let in, and who it is has been told so."""
        caller = self._auth.admit(joined(scope["headers"]), "sse", scope)
        if not isinstance(caller, Denied):
            return caller
        self._auth.on_turned_away("sse", caller.status)
        say(peer, caller.status, caller.message, caller.headers)
        return None

    # -- the stream ------------------------------------------------------------------------------------------------

    async def _listen(self, caller: Caller, peer: Peer) -> None:
        if self._streams[caller.tenant, caller.name] >= SESSIONS_MAX:
            return say(peer, 429, f"This caller has {SESSIONS_MAX} streams open already")
        session = self._open(caller, peer)
        try:
            await self._converse(session, peer)
        finally:
            self._close(session)
        peer.end(b"")
        return None

    def _open(self, caller: Caller, peer: Peer) -> _Session:
        loop = asyncio.get_running_loop()
        session = _Session(secrets.token_urlsafe(24), caller, peer, loop.create_future(), loop.time, loop.time())
        session.conversation = Conversation(
            self._dialogue, caller, self._surface, self._background, session.tell, session.is_crowded
        )
        self._sessions[session.id] = session
        self._streams[caller.tenant, caller.name] += 1
        if self._sweeping is None:
            self._sweeping = loop.call_later(SWEEP_SECONDS, self._sweep)
        return session

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self.sweep(loop.time())
        self._sweeping = loop.call_later(SWEEP_SECONDS, self._sweep) if self._sessions else None

    async def _converse(self, session: _Session, peer: Peer) -> None:
        """Tell the caller where to speak, and stay until it leaves, ends the session, or the hub goes."""
        left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        peer.on_disconnect(partial(_leave, session.over, left))
        peer.begin(200, STREAM)
        address = f"{self._prefix}{MESSAGES_PATH}?{SESSION_PARAMETERS[0]}={session.id}"
        peer.push(sse.named("endpoint", address))
        alive = KeepAlive(peer, asyncio.get_running_loop())
        try:
            await session.over
            if not left.done():  # what was asked is answered before the stream ends
                await session.conversation.finish()
        finally:
            alive.stop()

    def _close(self, session: _Session) -> None:
        self._sessions.pop(session.id, None)
        self._streams -= Counter({(session.caller.tenant, session.caller.name): 1})
        session.conversation.stop_telling()
        session.conversation.cancel_all("the caller closed its stream")

    # -- what the caller says --------------------------------------------------------------------------------------

    async def _take(self, caller: Caller, scope: Message, receive: Receive, peer: Peer) -> None:
        session = self._find(caller, scope)
        if session is None:
            return say(peer, 404, "Session not found: open a stream at /sse")
        if not is_json(joined(scope["headers"])):
            return say(peer, 415, "Content-Type must be application/json")
        body = peer.take_body()
        if body is None:
            # It may take its time, and the key be revoked meanwhile.
            if (body := await read_body(receive)) is None or (caller_now := self._admit(scope, peer)) is None:
                return None
            if self._find(caller_now, scope) is not session:
                return say(peer, 404, "Session not found: open a stream at /sse")
        refused = session.take(body)
        if refused is not None:
            peer.answer(400, JSON, refused.body)
        else:
            say(peer, 202, "")
        return None

    def _delete(self, caller: Caller, scope: Message, peer: Peer) -> None:
        session = self._find(caller, scope)
        if session is None:
            return say(peer, 404, "Session not found")
        session.conversation.cancel_all("the session was ended")
        _set(session.over)
        return say(peer, 204, "")

    def _find(self, caller: Caller, scope: Message) -> _Session | None:
        """The caller's own session; another's is as unknown as one that never was."""
        query = parse_qs(scope["query_string"].decode("latin-1"))
        ids = [id for name in SESSION_PARAMETERS for id in query.get(name, ())]
        session = self._sessions.get(ids[0]) if len(ids) == 1 else None
        return session if session is not None and session.caller == caller else None


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _leave(over: asyncio.Future[None], left: asyncio.Future[None]) -> None:
    _set(left)
    _set(over)
