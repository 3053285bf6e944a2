"""Telling a caller that the list of tools changed: only those who can see it, the first at once, then once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from isthmus.core.calls.hub import Hub
from isthmus.model.callers import Grants
from isthmus.model.calls import Surface

QUIET_SECONDS = 1.0
"""After one announcement the next waits this long, however much changes meanwhile."""


class ChangeFeed:
    """Watches one caller's view and calls `tell` when what it lists is different."""

    def __init__(
        self, hub: Hub, grants: Grants, surface: Surface, tell: Callable[[], None], *, seen: bytes | None = None
    ) -> None:
        """`seen` is the digest of the list that the caller has, if that is known; else it has today's."""
        self._hub = hub
        self._grants = grants
        self._surface = surface
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._seen = self._digest() if seen is None else seen
        self._told_at = -QUIET_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self._unwatch = hub.watch(self._look)
        self._look()

    def close(self) -> None:
        """Stop watching."""
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()

    def _digest(self) -> bytes:
        return self._hub.snapshot.view(self._grants, self._surface).digest

    def _look(self) -> None:
        if self._timer is None and self._digest() != self._seen:
            wait = self._told_at + QUIET_SECONDS - self._loop.time()
            if wait <= 0:
                self._announce()
            else:
                self._timer = self._loop.call_later(wait, self._announce)

    def _announce(self) -> None:
        self._timer = None
        digest = self._digest()
        if digest != self._seen:  # it may have changed back while waiting
            self._seen = digest
            self._told_at = self._loop.time()
            self._tell()
