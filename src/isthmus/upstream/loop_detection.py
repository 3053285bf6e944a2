"""Hubs behind hubs: whether a server leads back to the hub that it is a server of, and how many stand in a row.

What a hub has behind it, it says when it is greeted, as ids and how far each is. Plain decisions over that; keepers and
those of servers that dial in ask, and `app.links` knows by the same number when to start nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping

HOPS_MAX = 8
"""Hubs in a row, this one included, before somebody has made a mistake, of which the operator is told."""


def find_loop(hubs: Mapping[str, int], own: str) -> str | None:
    """Why a server that is a hub, or has these behind it, cannot be one of the hub whose id is `own`."""
    if own in hubs:
        return "it leads back to this hub" if hubs[own] else "it is this hub itself"
    return None


def depth_notes(hubs: Mapping[str, int]) -> tuple[str, ...]:
    """That there are too many. It is no reason to do without them: any server behind a hub may have made it up."""
    is_long = max(hubs.values(), default=0) + 2 > HOPS_MAX
    return (f"there are more than {HOPS_MAX} hubs in a row, as it or a server behind it says",) if is_long else ()
