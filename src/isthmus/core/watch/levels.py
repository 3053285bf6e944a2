"""How much servers should log: as much as the most curious caller asks for."""

from __future__ import annotations

from collections.abc import Callable

from isthmus.model.events import LOG_LEVELS, LogLevel


class Levels:
    """Who wants which level. A server has one for everybody; each caller's face leaves out what it did not want."""

    def __init__(self) -> None:
        self._wanted: dict[object, LogLevel] = {}
        self._watchers: set[Callable[[], None]] = set()
        self.lowest: LogLevel | None = None
        """What to ask of servers; None while nobody asked for anything."""

    def want(self, who: object, level: LogLevel | None) -> None:
        """Note that somebody wants this level and above, or nothing any more."""
        if level is None:
            self._wanted.pop(who, None)
        else:
            self._wanted[who] = level
        lowest = min(self._wanted.values(), key=LOG_LEVELS.index, default=None)
        if lowest != self.lowest:
            self.lowest = lowest
            for watcher in tuple(self._watchers):
                watcher()

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` whenever `lowest` changes, until the returned function is called."""
        self._watchers.add(callback)
        return lambda: self._watchers.discard(callback)
