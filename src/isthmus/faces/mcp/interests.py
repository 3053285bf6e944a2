"""What one caller wants beside its calls: updates of resources, and how much servers should log.

Held by whatever lasts on a face (a session, a conversation, a subscription's stream) and given up with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from isthmus.core.calls.hub import Hub
from isthmus.core.watch.subscriptions import Key, Tell
from isthmus.faces.mcp.changes import UpdateFeed
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.model.events import LogLevel
from isthmus.model.faults import Fault, TooManySubscriptions, UnknownResource
from isthmus.model.questions import NOTHING, Profile

SUBSCRIPTIONS_MAX = 1_000
"""Resources that one session may follow."""


class Interests:
    """One caller's. `tell` is called with the URI, as the caller spelt it, of whatever was updated."""

    def __init__(
        self,
        hub: Hub,
        caller: Caller,
        surface: Surface,
        tell: Callable[[str], None],
        *,
        profile: Profile = NOTHING,
        is_crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_crowded` says that the caller has not taken yet what it was told."""
        self._hub = hub
        self._caller = caller
        self._surface = surface
        self.profile = profile
        """What the caller can be asked."""
        self._feed = UpdateFeed(tell, is_crowded)
        self._followed: dict[str, tuple[Key, Tell]] = {}
        self.level: LogLevel | None = None
        self._is_closed = False

    def attend(self) -> None:
        """Hear what servers log by themselves, until a level is chosen."""
        if self.level is None:
            self._hub.levels.hear(self)

    def set_level(self, level: LogLevel) -> None:
        """Hear what servers log from this level on."""
        self.level = level
        if not self._is_closed:  # a request may be read after its caller has left
            self._hub.levels.want(self, level)

    async def follow(self, uri: str) -> Fault | None:
        """Hear of updates of a resource; the fault if it cannot be found or its server does not agree."""
        view = await self._hub.view_for(self._caller, self._surface, self.profile)
        found = view.find_resource(uri)
        if found is None:
            return UnknownResource(uri, view.candidates(uri))
        server = found.route.feature.server
        if uri in self._followed or self._is_closed:
            return None
        if len(self._followed) >= SUBSCRIPTIONS_MAX:
            return TooManySubscriptions(len(self._followed))
        key, tell = (server, found.name), partial(self._feed.updated, uri)
        self._followed[uri] = (key, tell)
        fault = await self._hub.subscriptions.add(key, tell)
        if fault is not None:
            self._followed.pop(uri, None)
        return fault

    def unfollow(self, uri: str) -> None:
        """Hear no more of a resource."""
        followed = self._followed.pop(uri, None)
        self._feed.forget(uri)
        if followed is not None:
            self._hub.subscriptions.remove(*followed)

    def close(self) -> None:
        """Want nothing any more, nor anything that is asked for later."""
        self._is_closed = True
        self._feed.close()
        for uri in list(self._followed):
            self.unfollow(uri)
        self._hub.levels.leave(self)
