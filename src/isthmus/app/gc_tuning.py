"""Tunes the garbage collector of a hub, so that it does not scan long-lived objects again and again.

A full collection with ten thousand dial-in servers blocks the hub for half a second and finds nothing, because
reference counting frees removed servers. `app.serve` starts it; `app.relay` reports new servers.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

COLLECT_AFTER = 20_000
"""Allocations between two collections, instead of 700. A call's objects die with it, so more frequent collections
find nothing."""

COLLECT_OLD_AFTER = 2
"""Young collections between two older ones, instead of 10. Otherwise long-lived cycles (removed servers, sessions)
would grow to hundreds of megabytes before a collection."""

CROWD = 500
"""From this many servers on, full collections take so long that they are postponed."""

FREEZE_AFTER = 250
"""New servers between two freezes of all existing objects: some 20,000 objects, as many as one collection scans
anyway."""

THOROUGH_AFTER = 4
"""After this many times the current number of servers have joined, everything is scanned once. Nothing else finds
frozen objects that became cycles, such as sessions of other frontends."""


def spare_the_collector() -> None:
    """Collect rarely, and never scan the objects that exist now."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, COLLECT_OLD_AFTER, COLLECT_OLD_AFTER)


class CrowdCollector:
    """Postpones full collections while there are many servers. `servers` returns their number, including away ones."""

    def __init__(self, servers: Callable[[], int]) -> None:
        self._servers = servers
        self._new = 0
        """Servers that joined since the last freeze."""
        self._came = 0
        """Servers that joined between the last full collection and the last freeze."""
        self._is_crowded = False

    def joined(self) -> None:
        """A server joined."""
        self._new += 1
        if self._new < FREEZE_AFTER or (servers := self._servers()) < CROWD:
            return
        self._is_crowded = True
        self._came += self._new
        self._new = 0
        if self._came > THOROUGH_AFTER * servers:
            self._look_at_all()
        else:
            _look()

    def look(self) -> None:
        """Run a full collection once the crowd is gone; call it now and then."""
        if self._is_crowded and self._servers() < CROWD:
            self._is_crowded = False
            self._look_at_all()

    def _look_at_all(self) -> None:
        self._came = 0
        gc.unfreeze()
        _look()


def _look() -> None:
    """Collect cycles among objects that are not frozen yet, then freeze the rest."""
    gc.collect()
    gc.freeze()
