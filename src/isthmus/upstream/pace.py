"""When lists that may have changed are read again: each at once the first time, and then at most once a second.

It has no clock and reads nothing: the time comes in, what is to be read goes out. The keeper has one for what everybody
is listed, and each profile of `variants` its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.model.features import Topic

LOOK_AGAIN_SECONDS = 1.0
"""After the first, announcements that a list changed are followed at most this often."""


class Pace:
    """Which lists are stale, and which of these rest because they were announced and read a moment ago.

    A list that was read because nobody knew better does not rest: the next announcement is the first.
    """

    def __init__(self) -> None:
        self._stale: dict[Topic, bool] = {}
        """Whether it was announced."""
        self._rests: dict[Topic, float] = {}

    def __bool__(self) -> bool:
        return bool(self._stale)

    def announce(self, topics: Iterable[Topic]) -> bool:
        """A server said that these changed; False if that is known of all of them."""
        new = [topic for topic in topics if not self._stale.get(topic)]
        self._stale |= dict.fromkeys(new, True)
        return bool(new)

    def doubt(self, topics: Iterable[Topic]) -> None:
        """Nobody said that these changed, and they may have."""
        self._stale = dict.fromkeys(topics, False) | self._stale

    def wait(self, now: float) -> float | None:
        """The seconds until one is to be read, 0 if it is now; None if none is."""
        return max(0.0, min(self._rests.get(topic, now) for topic in self._stale) - now) if self._stale else None

    def take(self, now: float) -> dict[Topic, bool]:
        """Those that are to be read now, and whether each was announced; they are stale no more."""
        due = {topic: told for topic, told in self._stale.items() if self._rests.get(topic, now) <= now}
        self._stale = {topic: told for topic, told in self._stale.items() if topic not in due}
        return due

    def rest(self, topics: Iterable[Topic], now: float) -> None:
        """These were read, or could not be: leave them alone for a while."""
        self._rests |= dict.fromkeys(topics, now + LOOK_AGAIN_SECONDS)

    def clear(self) -> None:
        """Everything has been read just now."""
        self._stale.clear()
        self._rests.clear()
