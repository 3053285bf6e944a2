"""Telling a caller that a list changed: only those who can see it, the first at once, then once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from isthmus.core.calls.hub import Hub
from isthmus.model.callers import Grants
from isthmus.model.calls import Surface
from isthmus.model.features import Topic

QUIET_SECONDS = 1.0
"""After one announcement the next waits this long, however much changes meanwhile."""

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
        seen: Mapping[Topic, bytes] = _NOTHING,
    ) -> None:
        """`seen` are the digests of the lists that the caller has, where that is known; else it has today's."""
        self._hub = hub
        self._grants = grants
        self._surface = surface
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._seen = {topic: seen.get(topic) or self._digest(topic) for topic in topics}
        self._told_at = -QUIET_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self._unwatch = hub.watch(self._look)
        self._look()

    def close(self) -> None:
        """Stop watching."""
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()

    def _digest(self, topic: Topic) -> bytes:
        return self._hub.snapshot.view(self._grants, self._surface).digest_of(topic)

    def _changed(self) -> list[Topic]:
        return [topic for topic, digest in self._seen.items() if self._digest(topic) != digest]

    def _look(self) -> None:
        if self._timer is None and self._changed():
            wait = self._told_at + QUIET_SECONDS - self._loop.time()
            if wait <= 0:
                self._announce()
            else:
                self._timer = self._loop.call_later(wait, self._announce)

    def _announce(self) -> None:
        self._timer = None
        for topic in self._changed():  # they may have changed back while waiting
            self._seen[topic] = self._digest(topic)
            self._told_at = self._loop.time()
            self._tell(topic)
