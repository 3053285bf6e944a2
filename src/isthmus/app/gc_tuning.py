"""The cycle collector of a hub, kept from looking again and again at what stays.

A full look at ten thousand servers that have dialled in takes half a second, during which nobody else is served; it
finds nothing, since what goes is freed without it. `app.serve` begins, `app.relay` tells who comes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

COLLECT_AFTER = 20_000
"""Objects between two looks of the cycle collector, instead of 700: what a call allocates dies with it, so that
looking more often finds nothing."""

COLLECT_OLD_AFTER = 2
"""Looks at the young between two at the older, instead of 10: what lived long and ended as a cycle (servers that
were removed, sessions) would otherwise pile up to hundreds of megabytes before anybody looks."""

CROWD = 500
"""Servers from which on a look takes so long that it is put off."""

FREEZE_AFTER = 250
"""Servers that come between two times at which all that is there is taken for what stays: some 20,000 objects, as
many as the collector looks at in any case."""

THOROUGH_AFTER = 4
"""How often as many came as there are, until everything is looked at all the same: what was taken for staying and then
ended as a cycle (sessions, of other ways in) is found by nothing else."""


def spare_the_collector() -> None:
    """Have it look seldom, and never at what there is now."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, COLLECT_OLD_AFTER, COLLECT_OLD_AFTER)


class CrowdCollector:
    """Puts off the looks that a crowd would make long. `servers` tells how many there are, those that are away too."""

    def __init__(self, servers: Callable[[], int]) -> None:
        self._servers = servers
        self._new = 0
        """Who came since the last look."""
        self._came = 0
        """Who came since everything was looked at, up to the last look."""
        self._is_crowded = False

    def joined(self) -> None:
        """One more server comes."""
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
        """Look at everything once the crowd is gone; to be called now and then."""
        if self._is_crowded and self._servers() < CROWD:
            self._is_crowded = False
            self._look_at_all()

    def _look_at_all(self) -> None:
        self._came = 0
        gc.unfreeze()
        _look()


def _look() -> None:
    """Free the cycles among what was not taken for staying yet, and take the rest for it."""
    gc.collect()
    gc.freeze()
