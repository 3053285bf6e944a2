"""What the tool of a task reported while it worked, of which the newest is remembered for who listens later.

Nothing here is written down, and nothing is turned into bytes: that is for those who listen.
"""

from __future__ import annotations

from collections import deque

import msgspec

from isthmus.model.events import Event

COUNT_MAX = 100
SIZE_BYTES_MAX = 64 * 1024
"""A task remembers no more than this of both; what is older, its new listeners do not hear."""


class Noted(msgspec.Struct, frozen=True):
    """One of them, with the number and the moment that it has for everybody who hears it."""

    number: int
    at: float
    event: Event


class Reports:
    """Those of one task, counted from one."""

    def __init__(self) -> None:
        self.count = 0
        """How many there were."""
        self.turn = 0
        """How many of them, when its caller last said something to a task that waited for it."""
        self._kept: deque[tuple[Noted, int]] = deque()
        self._size_bytes = 0

    def note(self, event: Event, at: float) -> Noted:
        """Remember a report, and forget what that leaves no room for."""
        self.count += 1
        noted = Noted(self.count, at, event)
        size_bytes = _size_bytes(event)
        self._kept.append((noted, size_bytes))
        self._size_bytes += size_bytes
        while len(self._kept) > COUNT_MAX or self._size_bytes > SIZE_BYTES_MAX:
            self._size_bytes -= self._kept.popleft()[1]
        return noted

    def begin_turn(self) -> None:
        """The caller has spoken: an answer to that begins here."""
        self.turn = self.count

    def after(self, number: int) -> list[Noted]:
        """What is remembered after this one; all of it, if there never was one of this number."""
        start = number if number <= self.count else 0
        return [noted for noted, _ in self._kept if noted.number > start]

    def forget(self) -> None:
        """Nobody asks for them any more."""
        self._kept.clear()
        self._size_bytes = 0


def _size_bytes(event: Event) -> int:
    return sum(len(name) + len(memoryview(value)) for name, value in event.members.items())
