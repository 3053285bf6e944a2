"""Batches writes on the event loop until waking the writer thread is worth it.

Waking the thread costs both threads, and one sync costs as much for one write as for many. So the writes of one turn of
the loop go together, and so do those of the next turns while each turn brings more. After a large batch, another one is
likely: then the first writes wait a moment for the others. A single write does not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

TURNS_MAX = 4
"""How many turns of the loop a batch may grow."""

PATIENCE_SECONDS = 0.001
"""How long the first writes wait for the others: about one sync (0.2 to 5 ms), which they then share."""


class WriteBatcher(Generic[T]):
    """Passes items on in batches, in order. On one loop only."""

    def __init__(
        self, send: Callable[[list[T]], None], batch_max: int, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """A batch of `batch_max` items is sent at once; it may hold a few more."""
        self._loop = asyncio.get_running_loop()
        self._send = send
        self._batch_max = batch_max
        self._patience_seconds = patience_seconds
        self._items: list[T] = []
        self._expected = 1
        """How many items are worth waiting for: three quarters of the last batch, since rarely all come again."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, item: T) -> None:
        """Add an item; it is sent soon."""
        self._items.append(item)
        if len(self._items) == 1:
            self._loop.call_soon(self._check)
        elif self._timer is not None and self._is_enough():
            self.flush()

    def flush(self) -> None:
        """Send all items now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._items:
            items, self._items = self._items, []
            self._expected = max(1, len(items) * 3 // 4)
            self._send(items)

    def _check(self, seen: int = 0, turns: int = 0) -> None:
        count = len(self._items)
        if turns < TURNS_MAX and seen < count < self._batch_max:
            self._loop.call_soon(self._check, count, turns + 1)
        elif count and not self._is_enough():
            self._timer = self._loop.call_later(self._patience_seconds, self.flush)
        else:
            self.flush()

    def _is_enough(self) -> bool:
        return len(self._items) >= min(self._expected, self._batch_max)
