"""What one caller wants beside its calls: updates of resources, and how much servers should log.

Held by whatever lasts on a face (a session, a conversation, a subscription's stream) and given up with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from functools import partial

from isthmus.core.calls.hub import Hub
from isthmus.core.ports.announcer import Follower
from isthmus.core.watch.subscriptions import Key, Tell
from isthmus.frontends.mcp.changes import UpdateFeed
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.model.events import LogLevel
from isthmus.model.faults import BadArguments, Fault, TooManySubscriptions, UnknownResource
from isthmus.model.features import Topic
from isthmus.model.names import ServerName
from isthmus.model.questions import NO_CAPABILITIES, ClientCapabilities
from isthmus.wire.mcp.lists import URI_LENGTH_MAX

SUBSCRIPTIONS_MAX = 1_000
"""Resources that one session may follow."""

FOLLOWED_LENGTH_MAX = 256 * 1024
"""What their names may come to: what one session follows must leave room for others in what servers are asked."""


class Interests:
    """One caller's. `tell` is called with the URI, as the caller spelt it, of whatever was updated."""

    def __init__(
        self,
        hub: Hub,
        caller: Caller,
        surface: Surface,
        tell: Callable[[str], None],
        *,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
        session: str = "",
        is_crowded: Callable[[], bool] = lambda: False,
        on_unfollow: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`session` is what its calls name, if they do; `is_crowded` says that it has not taken what it was told.

        `on_unfollow` is called with the URI of whatever is not followed any more, or could not be.
        """
        self._hub = hub
        self._caller = caller
        self._surface = surface
        self.client_caps = client_caps
        """What the caller can be asked."""
        self._session = session
        self._tell = tell
        self._feed = UpdateFeed(self._updated, is_crowded)
        self._on_unfollow = on_unfollow
        self._followed: dict[str, tuple[Key, Tell]] = {}
        self._followed_length = 0
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

    def servers(self) -> Collection[ServerName]:
        """Those that the caller can reach, and hear."""
        return self._hub.snapshot.view(self._caller.grants, self._surface, self.client_caps).servers

    async def topics(self, asked: Set[Topic]) -> frozenset[Topic]:
        """Those lists of which the caller can be told that they changed, since some server that it sees has one."""
        view = await self._hub.view_for(self._caller, self._surface, self.client_caps)
        return frozenset(topic for topic in asked if topic in view.claimed)

    async def follow(self, uri: str) -> Fault | None:
        """Hear of updates of a resource; the fault if it cannot be found or its server does not agree."""
        if len(uri) > URI_LENGTH_MAX:
            return BadArguments("a subscription", f"a URI may have {URI_LENGTH_MAX} characters")
        view = await self._hub.view_for(self._caller, self._surface, self.client_caps)
        found = view.find_resource(uri)
        if found is None:
            return UnknownResource(uri, view.candidates(uri))
        server = found.route.feature.server
        if uri in self._followed or self._is_closed:
            return None
        if len(self._followed) >= SUBSCRIPTIONS_MAX or self._followed_length + len(uri) > FOLLOWED_LENGTH_MAX:
            return TooManySubscriptions(len(self._followed))
        key, tell = (server, found.name), partial(self._feed.updated, uri)
        self._followed[uri] = (key, tell)
        self._followed_length += len(uri)
        follower = Follower(self._caller, self.client_caps, self._session)
        fault = await self._hub.subscriptions.add(key, tell, follower)
        if fault is not None:
            self._pop(uri)
            self._forget(uri)
        return fault

    def _updated(self, uri: str) -> None:
        """Tell it, if the caller may see it still: what is said of it may be something else by now."""
        followed = self._followed.get(uri)
        if followed is None:
            return
        (server, name), _ = followed
        view = self._hub.snapshot.view(self._caller.grants, self._surface, self.client_caps)
        if view.may_hear_of(server, name, uri):
            self._tell(uri)

    def unfollow(self, uri: str) -> None:
        """Hear no more of a resource."""
        followed = self._pop(uri)
        self._forget(uri)
        if followed is not None:
            self._hub.subscriptions.remove(*followed)

    def _pop(self, uri: str) -> tuple[Key, Tell] | None:
        followed = self._followed.pop(uri, None)
        self._followed_length -= 0 if followed is None else len(uri)
        return followed

    def _forget(self, uri: str) -> None:
        self._feed.forget(uri)
        self._on_unfollow(uri)

    def close(self) -> None:
        """Want nothing any more, nor anything that is asked for later."""
        self._is_closed = True
        self._feed.close()
        followed, self._followed, self._followed_length = self._followed, {}, 0
        for uri in followed:
            self._forget(uri)
        self._hub.subscriptions.leave(followed.values())
        self._hub.levels.leave(self)
