"""Work that may come for thousands at once, done a little in each turn of the loop, so that others have theirs between.

When a network fails, all sockets that came through it end together. What a door opens has one of these together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

AT_ONCE = 8
"""What is done in one turn: to see off whoever has gone takes some tenths of a millisecond."""


class Turns:
    """Does things in the order in which they come, the first few at once."""

    def __init__(self) -> None:
        self._left = AT_ONCE
        self._is_counting = False
        self._waiting: deque[Callable[[], None]] = deque()

    def do(self, work: Callable[[], None]) -> None:
        """Do it now, or in one of the next turns if enough was done in this one."""
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._begin)
        if self._left and not self._waiting:
            self._left -= 1
            work()
        else:
            self._waiting.append(work)

    def _begin(self) -> None:
        """A turn begins."""
        self._left = AT_ONCE
        self._is_counting = bool(self._waiting)
        if self._is_counting:
            asyncio.get_running_loop().call_soon(self._begin)
        while self._waiting and self._left:
            self._left -= 1
            self._waiting.popleft()()
