"""Streams of what belongs to no request: those of sessions, of earlier callers without one, and subscriptions.

A visit (`visit`) begins one, which stays open until its caller leaves, or the hub does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from isthmus.frontends.http.bodies import STREAM, KeepAlive, say
from isthmus.frontends.http.request_cycle import Peer
from isthmus.frontends.mcp.changes import ChangeFeed
from isthmus.frontends.mcp.marked import MarkedStream
from isthmus.frontends.mcp.sessions import Listener, Session
from isthmus.frontends.mcp.subscription import Subscription
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.model.features import TOPICS, Topic
from isthmus.model.questions import NO_CAPABILITIES, ClientCapabilities
from isthmus.wire import jsonrpc, sse
from isthmus.wire.jsonrpc import Request
from isthmus.wire.mcp.messages import CHANGED
from isthmus.wire.mcp.modern import Wanted

if TYPE_CHECKING:
    from isthmus.frontends.mcp.http import McpHttp


class Listening:
    """What one caller hears on one connection."""

    def __init__(self, face: McpHttp, caller: Caller, surface: Surface, peer: Peer) -> None:
        self._face = face
        self._hub = face.hub
        self._caller = caller
        self._surface = surface
        self._peer = peer

    async def to_changes(self) -> None:
        """Tell a caller without a session that lists have changed."""
        self._open_stream(sse.comment())
        await self._stay(b"", TOPICS, self._tell_change, {})

    async def resume(self, session: Session, last: str) -> None:
        """Go on with a call's stream where the caller lost it."""
        found = session.shelf.find(session.id, last)
        if found is None:
            # Not 404, by which the caller would know that its session is gone.
            return say(self._peer, 400, "This session has no such event, or not any more")
        tape, number = found
        over: asyncio.Future[None] = self._face.loop.create_future()
        tape.resume(self._peer, number, partial(set_over, over))
        return await over

    async def attend(self, session: Session, last: str | None) -> None:
        """Tell a session what belongs to no call, from what it heard last if it says so."""
        over: asyncio.Future[None] = self._face.loop.create_future()
        listener = Listener(self._peer.push, partial(set_over, over), self._peer.buffered_bytes)
        self._open_stream(session.bulletin.mark(last) if session.can_poll else sse.comment())
        session.listen(listener, last)
        for topic in TOPICS:  # what is different from now on is told, here or when it listens again
            session.told.setdefault(topic, session.seen.get(topic) or self._digest(session, topic))
        seen = {**session.told, **session.seen} if last is None else session.told
        try:
            tell = partial(self._tell_session, session, listener)
            return await self._stay(b"", TOPICS, tell, seen, over, session.client_caps)
        finally:
            session.stop_listening(listener)
            session.used_at = self._face.loop.time()
            self._hand_over(session)

    def _hand_over(self, session: Session) -> None:
        """Tell an earlier stream, which is the session's now, what the one that ended had not come to tell."""
        for topic in TOPICS:
            if session.listeners and session.told[topic] != self._digest(session, topic):
                self._tell_session(session, session.listeners[-1], topic)

    def see(self, session: Session, topic: Topic) -> None:
        """Note that a session has been given a list as it is now."""
        session.seen[topic] = session.told[topic] = self._digest(session, topic)

    def _digest(self, session: Session, topic: Topic) -> bytes:
        return self._hub.snapshot.view(self._caller.grants, self._surface, session.client_caps).digest_of(topic)

    def _tell_session(self, session: Session, listener: Listener, topic: Topic) -> None:
        if session.tell_change(topic, listener):
            session.told[topic] = self._digest(session, topic)

    def _tell_change(self, topic: Topic) -> None:
        self._peer.push(sse.frame(jsonrpc.notification(CHANGED[topic], None)))

    async def subscribe(self, request: Request, wanted: Wanted, client_caps: ClientCapabilities) -> None:
        """A modern caller's stream: acknowledged first, every message marked with the subscription's id."""
        stream = MarkedStream(request.id, self._peer.push)
        listening = Subscription(
            self._hub,
            self._caller,
            self._surface,
            client_caps,
            stream,
            is_crowded=lambda: self._peer.buffered_bytes() > 0,
            kept=self._face.dialogue.kept,
        )
        try:
            honoured = await listening.agree(wanted)
            self._open_stream(stream.acknowledge(honoured))
            listening.begin()
            return await self._stay(
                stream.last_word(), honoured.topics, stream.tell_change, {}, client_caps=client_caps
            )
        finally:
            listening.close()

    def _open_stream(self, first: bytes) -> None:
        self._peer.begin(200, STREAM)
        self._peer.push(first)

    async def _stay(
        self,
        last: bytes,
        topics: Iterable[Topic],
        tell: Callable[[Topic], None],
        seen: Mapping[Topic, bytes],
        over: asyncio.Future[None] | None = None,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
    ) -> None:
        """Keep a stream open until the caller leaves or the hub does; `tell` is called for every list that changes."""
        over = over or self._face.loop.create_future()
        self._face.begin_stream(over, self._caller)
        self._peer.on_disconnect(partial(set_over, over))
        feed = ChangeFeed(
            self._hub, self._caller.grants, self._surface, tell, topics, client_caps=client_caps, seen=seen
        )
        alive = KeepAlive(self._peer, self._face.loop)
        try:
            await over
        finally:
            alive.stop()
            self._face.streams.pop(over, None)
            feed.close()
        self._peer.end(last)


def set_over(over: asyncio.Future[None]) -> None:
    """Let who waits for this go on, if nobody has yet."""
    if not over.done():
        over.set_result(None)
