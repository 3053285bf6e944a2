"""Event streams over HTTP that belong to no call: GET streams of legacy callers and `subscriptions/listen`.

`http` opens them. A stream stays open until its caller disconnects, the caller is removed, or the hub stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial

from isthmus.core.calls.hub import Hub
from isthmus.frontends.http.request_cycle import STREAM, KeepAlive, Peer, respond
from isthmus.frontends.mcp.hub_tasks import HubTasks
from isthmus.frontends.mcp.sessions import HttpSession, SessionStream
from isthmus.frontends.mcp.subscriptions import ListChangeFeed, ListenSubscription, SubscriptionStream
from isthmus.model.callers import Caller
from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities, Surface
from isthmus.model.features import TOPICS, Topic
from isthmus.wire import jsonrpc, sse
from isthmus.wire.jsonrpc import Request
from isthmus.wire.mcp.messages import CHANGED
from isthmus.wire.mcp.modern import ListenFilter


class OpenStreams:
    """All open streams with their callers. Setting a stream's future ends it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._callers: dict[asyncio.Future[None], Caller] = {}
        self._retained: Container[Caller] | None = None
        """The callers that may still have streams; None before the first `retain`."""

    def __len__(self) -> int:
        return len(self._callers)

    def add(self, over: asyncio.Future[None], caller: Caller) -> None:
        """A stream is opened; it ends at once if its caller was removed meanwhile."""
        self._callers[over] = caller
        if self._retained is not None and caller not in self._retained:
            set_over(over)

    def remove(self, over: asyncio.Future[None]) -> None:
        """A stream has ended."""
        self._callers.pop(over, None)

    def end_all(self) -> None:
        """End every stream, because the hub stops."""
        for over in list(self._callers):
            set_over(over)

    def retain(self, callers: Container[Caller]) -> None:
        """End the streams of all other callers, also of those that are still being opened."""
        self._retained = callers
        for over, caller in list(self._callers.items()):
            if caller not in callers:
                set_over(over)


class HttpEventStream:
    """One caller's stream on one connection."""

    def __init__(self, streams: OpenStreams, hub: Hub, caller: Caller, surface: Surface, peer: Peer) -> None:
        self._streams = streams
        self._loop = streams.loop
        self._hub = hub
        self._caller = caller
        self._surface = surface
        self._peer = peer

    async def notify_list_changes(self) -> None:
        """Notify a caller without a session of changed lists."""

        def notify(topic: Topic) -> None:
            self._peer.push(sse.frame(jsonrpc.notification(CHANGED[topic], None)))

        self._peer.begin(200, STREAM)
        self._peer.push(sse.comment())
        await self._run(b"", TOPICS, notify, {})

    async def resume_call(self, session: HttpSession, last: str) -> None:
        """Resume a call's stream after the event that the caller received last."""
        found = session.store.find(session.id, last)
        if found is None:
            # A 404 would mean that the session is gone.
            return respond(self._peer, 400, "This session has no event with this Last-Event-ID, or not any more")
        log, number = found
        over: asyncio.Future[None] = self._loop.create_future()
        log.resume(self._peer, number, partial(set_over, over))
        return await over

    async def serve_session(self, session: HttpSession, last: str | None) -> None:
        """Send a session what belongs to no call, after the event `last` if given."""
        over: asyncio.Future[None] = self._loop.create_future()
        stream = SessionStream(self._peer.push, partial(set_over, over), self._peer.buffered_bytes)
        self._peer.begin(200, STREAM)
        self._peer.push(session.notifications.mark(last) if session.can_resume else sse.comment())
        session.open_stream(stream, last)
        for topic in TOPICS:  # later changes are notified, on this stream or on the next
            session.notified.setdefault(topic, session.seen.get(topic) or self._digest(session, topic))
        seen = {**session.notified, **session.seen} if last is None else session.notified
        try:
            notify = partial(self._notify_session, session, stream)
            return await self._run(b"", TOPICS, notify, seen, over, session.client_caps)
        finally:
            session.streams.remove(stream)
            session.used_at = self._loop.time()
            for topic in TOPICS:  # an earlier stream takes over, with the changes that this one did not send
                if session.streams and session.notified[topic] != self._digest(session, topic):
                    self._notify_session(session, session.streams[-1], topic)

    def list_returned(self, session: HttpSession, topic: Topic) -> None:
        """Note that the session has received a list as it is now."""
        session.seen[topic] = session.notified[topic] = self._digest(session, topic)

    def _digest(self, session: HttpSession, topic: Topic) -> bytes:
        return self._hub.snapshot.view(self._caller.grants, self._surface, session.client_caps).digest_of(topic)

    def _notify_session(self, session: HttpSession, stream: SessionStream, topic: Topic) -> None:
        if session.list_changed(topic, stream):
            session.notified[topic] = self._digest(session, topic)

    async def serve_subscription(
        self,
        request: Request,
        wanted: ListenFilter,
        client_caps: ClientCapabilities,
        hub_tasks: HubTasks | None,
    ) -> None:
        """A `subscriptions/listen` stream: the acknowledgement comes first, and every message has the request's id."""
        stream = SubscriptionStream(request.id, self._peer.push)
        subscription = ListenSubscription(
            self._hub,
            self._caller,
            self._surface,
            client_caps,
            stream,
            is_crowded=lambda: self._peer.buffered_bytes() > 0,
            hub_tasks=hub_tasks,
        )
        try:
            granted = await subscription.open(wanted)
            self._peer.begin(200, STREAM)
            self._peer.push(stream.acknowledgement(granted))
            subscription.start()
            return await self._run(
                stream.final_result(), granted.topics, stream.list_changed, {}, client_caps=client_caps
            )
        finally:
            subscription.close()

    async def _run(
        self,
        last: bytes,
        topics: Iterable[Topic],
        notify: Callable[[Topic], None],
        seen: Mapping[Topic, bytes],
        over: asyncio.Future[None] | None = None,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
    ) -> None:
        """Keep the stream open until `over`; `notify` is called for every list that changes, `last` is sent last."""
        over = over or self._loop.create_future()
        self._streams.add(over, self._caller)
        self._peer.on_disconnect(partial(set_over, over))
        feed = ListChangeFeed(
            self._hub, self._caller.grants, self._surface, notify, topics, client_caps=client_caps, seen=seen
        )
        keep_alive = KeepAlive(self._peer, self._loop)
        try:
            await over
        finally:
            keep_alive.stop()
            self._streams.remove(over)
            feed.close()
        self._peer.end(last)


def set_over(over: asyncio.Future[None]) -> None:
    """Set the future's result, unless it is set already."""
    if not over.done():
        over.set_result(None)
