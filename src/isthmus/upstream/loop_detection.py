"""Chains of hubs: whether a server leads back to this hub, and how many hubs are in a row.

In its handshake a hub lists the ids of the hubs behind it, with their distances. Reconnectors and the dial-in registry
check them; `app.links` uses the same limit for child hubs.
"""

from __future__ import annotations

from collections.abc import Mapping

HOPS_MAX = 8
"""Hubs in a row, this one included. A longer chain is probably a mistake; the operator gets a note."""


def find_loop(hubs: Mapping[str, int], own: str) -> str | None:
    """Why a server with these hubs behind it cannot be used by the hub with the id `own`; None if it can."""
    if own in hubs:
        return "it leads back to this hub" if hubs[own] else "it is this hub itself"
    return None


def depth_notes(hubs: Mapping[str, int]) -> tuple[str, ...]:
    """A note if the chain is too long.

    The server is used all the same: any server behind a hub could have made the chain up.
    """
    is_long = max(hubs.values(), default=0) + 2 > HOPS_MAX
    return (f"there are more than {HOPS_MAX} hubs in a row, as it or a server behind it says",) if is_long else ()
