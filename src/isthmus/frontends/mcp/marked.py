"""A modern caller's subscription: acknowledged first, and every message marked with its id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from isthmus.frontends.mcp.dialogue import updated_params
from isthmus.frontends.mcp.interests import SUBSCRIPTIONS_MAX, Interests
from isthmus.model.features import Topic
from isthmus.wire import jsonrpc, sse
from isthmus.wire.jsonrpc import Payload
from isthmus.wire.mcp import modern
from isthmus.wire.mcp.messages import CHANGED, UPDATED
from isthmus.wire.mcp.tasks import TOLD

FOLLOW_SECONDS = 2.0
"""How long servers have to agree; what one agrees to later can be asked for again."""


async def follow_all(interests: Interests, wanted: modern.Wanted) -> modern.Wanted:
    """Follow every resource that is asked for; returns what will be honoured, without what nobody can tell of.

    All servers are asked at once: one that says nothing holds up the others no longer than `FOLLOW_SECONDS`, and
    what it has is not followed.
    """
    asked = wanted.uris[:SUBSCRIPTIONS_MAX]
    agreed: set[str] = set()

    async def follow(uri: str) -> None:
        if await interests.follow(uri) is None:
            agreed.add(uri)

    try:
        async with asyncio.timeout(FOLLOW_SECONDS):
            await asyncio.gather(*map(follow, asked))
    except TimeoutError:
        for uri in asked:
            if uri not in agreed:
                interests.unfollow(uri)
    return modern.Wanted(await interests.topics(wanted.topics), tuple(uri for uri in asked if uri in agreed))


class MarkedStream:
    """What is told on one subscription, framed by `frame`. Updates that come before the acknowledgement wait for it."""

    def __init__(
        self, id: msgspec.Raw, push: Callable[[bytes], None], frame: Callable[[bytes], bytes] = sse.frame
    ) -> None:
        self._id = id
        self._push = push
        self._frame = frame
        self._early: dict[str, None] | None = {}

    def acknowledge(self, honoured: modern.Wanted) -> bytes:
        """The first message."""
        return self._frame(jsonrpc.notification(modern.ACKNOWLEDGED, modern.acknowledged_params(self._id, honoured)))

    def release(self) -> None:
        """The acknowledgement is out: tell what came before it, and the rest as it comes."""
        early, self._early = self._early or {}, None
        for uri in early:
            self.tell_update(uri)

    def tell_change(self, topic: Topic) -> None:
        """A list changed."""
        self._push(self._frame(jsonrpc.notification(CHANGED[topic], modern.marked_params(self._id))))

    def tell_update(self, uri: str) -> None:
        """A resource was updated."""
        if self._early is not None:
            self._early[uri] = None
            return
        params = modern.marked_params(self._id, updated_params(uri))
        self._push(self._frame(jsonrpc.notification(UPDATED, params)))

    def tell_task(self, members: Mapping[str, Payload]) -> None:
        """How a task stands."""
        self._push(self._frame(jsonrpc.notification(TOLD, modern.marked_params(self._id, members))))

    def last_word(self) -> bytes:
        """What ends the stream in good order."""
        return self._frame(jsonrpc.result(self._id, modern.listen_result(self._id)))
