"""MCP over Streamable HTTP: `/mcp` for all servers, `/mcp/{server}` for one under its own names.

Legacy callers have sessions; a modern caller's request stands alone and ends when its connection does. Calls, which
are nearly everything, are taken without a task (`take`); the rest is an ASGI application (`serve`). What one request is
about is its visit's to say (`visit`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Container

from isthmus.core.calls.deadlines import Deadlines
from isthmus.frontends.http.auth import Authenticator, Denied, Fields
from isthmus.frontends.http.bodies import joined, say
from isthmus.frontends.http.request_cycle import PEER, IncomingRequest, Message, Peer, Receive, Send
from isthmus.frontends.mcp.dialogue import Dialogue
from isthmus.frontends.mcp.listening import set_over
from isthmus.frontends.mcp.sessions import Session, Sessions
from isthmus.frontends.mcp.visit import NOT_FOUND, Visit
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Request
from isthmus.wire.mcp.requests import CALLS

SWEEP_SECONDS = 60.0
"""How often sessions are looked for that nobody uses any more."""


class McpHttp:
    """The face over HTTP. It is called with the surface that the path stands for."""

    def __init__(self, dialogue: Dialogue, auth: Authenticator) -> None:
        self.dialogue = dialogue
        self.hub = dialogue.hub
        self.sessions = Sessions(on_close=dialogue.hub.left)
        self.streams: dict[asyncio.Future[None], Caller] = {}
        """Open streams of changes, each as what ends it, and whose they are."""
        self.loop = asyncio.get_running_loop()
        self.slow = Deadlines(self.loop)
        """Calls of which it is not known yet whether they are answered soon."""
        self._auth = auth
        self._callers: Container[Caller] | None = None
        """Those who may still hear something, once others may not."""
        self._sweeping: asyncio.TimerHandle | None = None

    def end_streams(self) -> None:
        """Let every stream of changes end, because the hub goes away; running calls are not touched."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for stream in list(self.streams):
            set_over(stream)

    def retain(self, callers: Container[Caller]) -> None:
        """End the sessions, parked calls and streams of everybody else: who was removed, or may now do other things.

        Streams that they are about to begin, too: what is agreed on with servers first may take its time.
        """
        self._callers = callers
        self.sessions.retain(callers)
        if self.dialogue.comebacks is not None:
            self.dialogue.comebacks.retain(callers)
        for stream, caller in list(self.streams.items()):
            if caller not in callers:
                set_over(stream)

    def begin_stream(self, over: asyncio.Future[None], caller: Caller) -> None:
        """Have a stream of changes be ended by this once the hub goes away, or who it is for is known no more."""
        self.streams[over] = caller
        if self._callers is not None and caller not in self._callers:
            set_over(over)

    def open_session(self, caller: Caller, surface: Surface, version: str) -> Session:
        """A new session; while there are any, those that nobody uses are looked for."""
        if self._sweeping is None:
            self._sweeping = self.loop.call_later(SWEEP_SECONDS, self._sweep)
        return self.sessions.open(caller, surface, self.loop.time(), version)

    def _sweep(self) -> None:
        self.sessions.sweep(self.loop.time())
        self._sweeping = self.loop.call_later(SWEEP_SECONDS, self._sweep) if len(self.sessions) else None

    def take(self, surface: Surface, arrival: IncomingRequest) -> bool:
        """Start a call at once, if the request is one and nothing has to be waited for."""
        scope = arrival.scope
        if scope["method"] != "POST" or self.hub.is_settling():
            return False
        fields = joined(scope["headers"])
        caller = self._auth.admit(fields, "mcp", scope)
        if isinstance(caller, Denied):
            return False
        visit = Visit(self, caller, surface, scope["headers"], fields, arrival)
        if visit.is_refused():
            return False
        request = jsonrpc.decode(arrival.body, max_depth=self.hub.limits.depth)
        if not isinstance(request, Request) or request.method not in CALLS:
            return False
        visit.start_call(request)
        return True

    async def serve(self, surface: Surface, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        peer: Peer = scope["extensions"][PEER]
        fields = joined(scope["headers"])
        caller = self.admit(fields, peer, scope)
        if caller is None:
            return
        visit = Visit(self, caller, surface, scope["headers"], fields, peer)
        if not visit.is_welcome():
            say(peer, 404, NOT_FOUND)
            return
        match scope["method"]:
            case "POST":
                await visit.post(receive, scope)
            case "GET":
                await visit.listen()
            case "DELETE":
                visit.delete()
            case _:
                say(peer, 405, "Use POST, GET or DELETE", ((b"allow", b"GET, POST, DELETE"),))

    def admit(self, fields: Fields, peer: Peer, scope: Message) -> Caller | None:
        """Who sent these headers; None if nobody who is let in, and who it is has been told so."""
        caller = self._auth.admit(fields, "mcp", scope)
        if not isinstance(caller, Denied):
            return caller
        self._auth.on_turned_away("mcp", caller.status)
        say(peer, caller.status, caller.message, caller.headers)
        return None
