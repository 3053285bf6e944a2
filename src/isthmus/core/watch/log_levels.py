"""How much servers should log: as much as the most curious caller wants.

A server has one level for everybody, and each caller's face leaves out what its own caller did not want. Nobody can
tell what a server says by itself, so once somebody has chosen, whoever has not must be kept from losing anything: the
server is asked for everything.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Container

from isthmus.model.calls import LOG_LEVELS, LogLevel, is_at_least
from isthmus.model.names import ServerName

TAKE_SECONDS = 2.0
"""How long who chooses a level waits for its servers to take it: a silent one must not hold up the answer."""


class LogLevels:
    """Who hears servers, and from which level on, if they chose one."""

    def __init__(self) -> None:
        self._wanted: dict[object, LogLevel | None] = {}
        self._counts: Counter[LogLevel | None] = Counter()
        self._called: LogLevel | None = None
        """The lowest that a single call has asked for."""
        self._watchers: set[Callable[[], None]] = set()
        self._asking: dict[asyncio.Future[None], ServerName] = {}
        """Servers that have not answered what they were asked."""
        self.lowest: LogLevel | None = None
        """What to ask of servers; None while nobody has ever chosen, and they say what they like."""

    def hear(self, who: object) -> None:
        """Note that somebody hears whatever servers say by themselves."""
        self._note(who, None)

    def want(self, who: object, level: LogLevel) -> None:
        """Note that somebody wants this level and above."""
        self._note(who, level)

    def call(self, level: LogLevel) -> None:
        """Note that a call wants this level and above, from whoever can be told only once for all calls.

        There will be more such calls, and it costs little that faces leave out what they did not ask for: servers are
        told once, and not back and forth with every call.
        """
        if self._called is None or not is_at_least(level, self._called):
            self._called = level
            self._settle()

    def leave(self, who: object) -> None:
        """Note that somebody hears nothing any more."""
        if who in self._wanted:
            self._counts[self._wanted.pop(who)] -= 1
            self._settle()

    def _note(self, who: object, level: LogLevel | None) -> None:
        if who in self._wanted:
            self._counts[self._wanted[who]] -= 1
        self._wanted[who] = level
        self._counts[level] += 1
        self._settle()

    def _settle(self) -> None:
        lowest = self._decide()
        if lowest != self.lowest:
            self.lowest = lowest
            for watcher in tuple(self._watchers):
                watcher()

    def _decide(self) -> LogLevel | None:
        chosen = next((level for level in LOG_LEVELS if self._counts[level] or level == self._called), None)
        if chosen is None and self.lowest is None:
            return None
        return "debug" if chosen is None or self._counts[None] else chosen

    def ask(self, server: ServerName, asking: asyncio.Future[None]) -> None:
        """Note that a server is being asked for what is wanted, until this is done."""
        self._asking[asking] = server
        asking.add_done_callback(self._asking.pop)

    async def settled(self, servers: Container[ServerName]) -> None:
        """Wait until these servers have taken what is wanted, so that no call overtakes it on its way to one."""
        waiting = [asking for asking, server in self._asking.items() if server in servers]
        if waiting:
            await asyncio.wait(waiting, timeout=TAKE_SECONDS)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` whenever `lowest` changes, until the returned function is called."""
        self._watchers.add(callback)
        return lambda: self._watchers.discard(callback)
