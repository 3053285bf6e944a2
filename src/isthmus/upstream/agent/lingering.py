"""What still holds a connection for a call that is over. Callbacks and timers only; the link owns one.

The lane does not count such connections, so there are few of them at any time: calls that run must find theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LINGERING_MAX = 2
"""Enough to use the connections of most agents again; each is one more that the link has to have to spare."""


class Lingering:
    """Whoever lingers is stopped after a while, and the oldest at once where one too many does."""

    def __init__(self) -> None:
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    def add(self, stop: Callable[[], None], seconds: float) -> None:
        """Have `stop` called after so long, unless it is dropped before."""
        self._timers[stop] = asyncio.get_running_loop().call_later(seconds, self._stop, stop)
        if len(self._timers) > LINGERING_MAX:
            self._stop(next(iter(self._timers)))

    def drop(self, stop: Callable[[], None]) -> None:
        """It has ended by itself, or does not linger at all."""
        timer = self._timers.pop(stop, None)
        if timer is not None:
            timer.cancel()

    def _stop(self, stop: Callable[[], None]) -> None:
        self.drop(stop)
        stop()
