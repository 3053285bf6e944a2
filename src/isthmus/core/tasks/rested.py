"""Tasks with nothing under way, kept in mind for those who come back at once; the journal has them all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from isthmus.core.tasks.record import Record

if TYPE_CHECKING:
    from isthmus.core.tasks.live import Live

TASKS_MAX = 1_000
TASKS_BYTES = 16 * 1024 * 1024
"""What all of them may take; one that is larger is not kept in mind at all."""

Key: TypeAlias = tuple[str, str]
"""The owner's, and the task's id."""


class Rested:
    """The tasks that were looked at last."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[Key, Live] = OrderedDict()
        self._bytes = 0

    def keep(self, key: Key, live: Live) -> None:
        """Remember one, and forget those that nobody has looked at for the longest."""
        self.take(key)
        self._tasks[key] = live
        self._bytes += live.size_bytes
        while self._is_full() and (oldest := next(self._unheard(), None)) is not None:
            self.take(oldest)

    def _is_full(self) -> bool:
        return self._bytes > TASKS_BYTES or len(self._tasks) > TASKS_MAX

    def _unheard(self) -> Iterator[Key]:
        """Those to which nobody listens; who does would never hear of one that is called back as another."""
        return (key for key, live in self._tasks.items() if not live.listeners)

    def get(self, key: Key) -> Live | None:
        """One of them."""
        live = self._tasks.get(key)
        if live is not None:
            self._tasks.move_to_end(key)
        return live

    def take(self, key: Key) -> None:
        """Forget one."""
        if (live := self._tasks.pop(key, None)) is not None:
            self._bytes -= live.size_bytes

    def drop(self, is_over: Callable[[Record], bool]) -> None:
        """Forget those of which this holds."""
        for key in [key for key, live in self._tasks.items() if is_over(live.record)]:
            self.take(key)
