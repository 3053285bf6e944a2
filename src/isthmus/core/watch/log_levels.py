"""How much servers should log: as much as the lowest level that any caller wants.

A server has one level for all callers, and each frontend filters for its own caller. A server's default level is
unknown: once one caller has chosen a level, the others must not lose anything, so the server is set to `debug`. The
same holds in a cluster, whose nodes do not know what callers at other nodes want.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Container

from isthmus.model.calls import LOG_LEVELS, LogLevel, is_at_least
from isthmus.model.names import ServerName

TAKE_SECONDS = 2.0
"""How long a caller that sets a level waits for servers to accept it: a silent one must not delay the response."""


class LogLevels:
    """The callers that receive log messages, and the levels that they chose."""

    def __init__(self) -> None:
        self._wanted: dict[object, LogLevel | None] = {}
        self._counts: Counter[LogLevel | None] = Counter()
        self._called: LogLevel | None = None
        """The lowest level that a single call has requested."""
        self._watchers: set[Callable[[], None]] = set()
        self._requests: dict[asyncio.Future[None], ServerName] = {}
        """Requests to servers that are not answered."""
        self.is_shared = False
        """Whether other nodes set levels at the same servers: their callers must not lose anything, either."""
        self.lowest: LogLevel | None = None
        """The level to set at servers; None until any caller has chosen one: then servers keep their defaults."""

    def listen(self, subscriber: object) -> None:
        """Add a caller that receives what servers log by default."""
        self._note(subscriber, None)

    def want(self, subscriber: object, level: LogLevel) -> None:
        """Add a caller that wants this level and above."""
        self._note(subscriber, level)

    def call(self, level: LogLevel) -> None:
        """A single call wants this level and above, from servers that have one level for all calls.

        More such calls will follow, and filtering is cheap: the level is lowered once and not raised again.
        """
        if self._called is None or not is_at_least(level, self._called):
            self._called = level
            self._apply()

    def leave(self, subscriber: object) -> None:
        """Remove a caller."""
        if subscriber in self._wanted:
            self._counts[self._wanted.pop(subscriber)] -= 1
            self._apply()

    def _note(self, subscriber: object, level: LogLevel | None) -> None:
        if subscriber in self._wanted:
            self._counts[self._wanted[subscriber]] -= 1
        self._wanted[subscriber] = level
        self._counts[level] += 1
        self._apply()

    def _apply(self) -> None:
        chosen = next((level for level in LOG_LEVELS if self._counts[level] or level == self._called), None)
        if chosen is None and self.lowest is None:
            return
        lowest: LogLevel = "debug" if chosen is None or self._counts[None] or self.is_shared else chosen
        if lowest != self.lowest:
            self.lowest = lowest
            for watcher in tuple(self._watchers):
                watcher()

    def track(self, server: ServerName, asking: asyncio.Future[None]) -> None:
        """Track a request that sets a server's level, until it is done."""
        self._requests[asking] = server
        asking.add_done_callback(self._requests.pop)

    async def settled(self, servers: Container[ServerName]) -> None:
        """Wait until these servers have accepted the level, so that no call overtakes that request."""
        waiting = [asking for asking, server in self._requests.items() if server in servers]
        if waiting:
            await asyncio.wait(waiting, timeout=TAKE_SECONDS)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` whenever `lowest` changes, until the returned function is called."""
        self._watchers.add(callback)
        return lambda: self._watchers.discard(callback)
