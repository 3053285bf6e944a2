"""Telling a caller that a list or a resource changed: only who can see it, the first at once, then not too often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from isthmus.core.calls.hub import Hub
from isthmus.model.callers import Grants
from isthmus.model.calls import Surface
from isthmus.model.features import Topic
from isthmus.model.questions import NO_CAPABILITIES, ClientCapabilities

QUIET_SECONDS = 1.0
"""After one announcement of a list the next waits this long, however much changes meanwhile."""

GATHER_SECONDS = 0.05
"""After a resource was told, its next updates wait this long: in a storm, it is told once for all of them."""

_NOTHING: Mapping[Topic, bytes] = {}


class ChangeFeed:
    """Watches one caller's view and calls `tell` for each list that is different."""

    def __init__(
        self,
        hub: Hub,
        grants: Grants,
        surface: Surface,
        tell: Callable[[Topic], None],
        topics: Iterable[Topic],
        *,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
        seen: Mapping[Topic, bytes] = _NOTHING,
    ) -> None:
        """`seen` are the digests of the lists that the caller has, where that is known; else it has today's."""
        self._hub = hub
        self._grants = grants
        self._surface = surface
        self._profile = client_caps
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._seen = {topic: seen.get(topic) or self._digest(topic) for topic in topics}
        self._told_at: dict[Topic, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unwatch = hub.watch(self._look)
        self._look()

    def close(self) -> None:
        """Stop watching."""
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()

    def _digest(self, topic: Topic) -> bytes:
        return self._hub.snapshot.view(self._grants, self._surface, self._profile).digest_of(topic)

    def _changed(self) -> list[Topic]:
        return [topic for topic, digest in self._seen.items() if self._digest(topic) != digest]

    def _look(self) -> None:
        if changed := self._changed():
            self._announce(changed)

    def _announce(self, changed: Iterable[Topic]) -> None:
        """Tell each list that changed, unless it was told a moment ago: then it is looked at again."""
        now = self._loop.time()
        waits = {topic: self._told_at.get(topic, -QUIET_SECONDS) + QUIET_SECONDS - now for topic in changed}
        for topic in [topic for topic, seconds in waits.items() if seconds <= 0]:
            self._seen[topic] = self._digest(topic)
            self._told_at[topic] = now
            del waits[topic]
            self._tell(topic)
        if waits and self._timer is None:
            self._timer = self._loop.call_later(min(waits.values()), self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._look()  # they may have changed back while waiting


class UpdateFeed:
    """Tells one caller which resources were updated, in the order in which they first were.

    One that was updated again before the caller was told of it, or has taken what it was told, is told once: what
    waits is never more than what the caller follows.
    """

    def __init__(self, tell: Callable[[str], None], is_crowded: Callable[[], bool]) -> None:
        """`is_crowded` says that the caller has not taken yet what it was told."""
        self._tell = tell
        self._is_crowded = is_crowded
        self._loop = asyncio.get_running_loop()
        self._unsent: dict[str, None] = {}
        self._recent: set[str] = set()
        """What was told since the timer was started."""
        self._timer: asyncio.TimerHandle | None = None

    def updated(self, uri: str) -> None:
        """A resource was updated."""
        self._unsent[uri] = None
        if len(self._unsent) == 1 and uri not in self._recent:  # else it comes after those that wait already
            self._flush()

    def forget(self, uri: str) -> None:
        """Nobody wants to know any more."""
        self._unsent.pop(uri, None)

    def close(self) -> None:
        """Tell nothing any more."""
        self._unsent.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _flush(self) -> None:
        if self._unsent and self._timer is None:
            self._timer = self._loop.call_later(GATHER_SECONDS, self._tick)
        if self._unsent and not self._is_crowded():
            unsent, self._unsent = self._unsent, {}
            self._recent.update(unsent)
            for uri in unsent:
                self._tell(uri)

    def _tick(self) -> None:
        self._timer = None
        self._recent.clear()
        self._flush()
