"""What is to be written, gathered on the event loop until it is worth waking the thread that writes.

To wake it costs both threads, and a sync costs the same for one write as for many. So what comes in one turn of the
loop goes together, and so does what follows while each turn brings more. Where many came together the last time, as
many are likely to come again: the first of them wait for the others a moment. Who writes alone waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

TURNS_MAX = 4
"""Turns of the loop that are waited for while each brings more."""

PATIENCE_SECONDS = 0.001
"""How long those that came first wait for the others: about what a sync takes, which they then share (0.2 to 5 ms)."""


class WriteBatcher(Generic[T]):
    """Hands over what it is given, in order and in batches. On one loop only."""

    def __init__(
        self, hand_over: Callable[[list[T]], None], at_most: int, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """A batch of `at_most` waits for no more; some more may have come with it."""
        self._loop = asyncio.get_running_loop()
        self._hand_over = hand_over
        self._at_most = at_most
        self._patience_seconds = patience_seconds
        self._gathered: list[T] = []
        self._awaited = 1
        """How many are worth waiting for: most of as many as came the last time, since hardly ever all come again."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, item: T) -> None:
        """Have this handed over soon."""
        self._gathered.append(item)
        if len(self._gathered) == 1:
            self._loop.call_soon(self._look)
        elif self._timer is not None and self._is_enough():
            self.flush()

    def flush(self) -> None:
        """Hand over all that came, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            self._awaited = max(1, len(gathered) * 3 // 4)
            self._hand_over(gathered)

    def _look(self, seen: int = 0, turns: int = 0) -> None:
        count = len(self._gathered)
        if turns < TURNS_MAX and seen < count < self._at_most:
            self._loop.call_soon(self._look, count, turns + 1)
        elif count and not self._is_enough():
            self._timer = self._loop.call_later(self._patience_seconds, self.flush)
        else:
            self.flush()

    def _is_enough(self) -> bool:
        return len(self._gathered) >= min(self._awaited, self._at_most)
