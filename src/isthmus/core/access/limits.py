"""How many calls each tenant has under way in the whole hub, and how many it may have.

The hub counts a call when it has found its lane, and no more once it has ended. In a lane, which is one server's, the
lane itself sees to it that a tenant leaves something to others (`core.calls.server_queue`). Where there is only one tenant,
nobody is held to anything here unless the operator says so, and nothing is counted: what is under way when a second one
calls for the first time is never counted.
"""

from __future__ import annotations

from isthmus.core.access.tenants import NO_TENANTS, Tenants
from isthmus.model.faults import TooManyCalls


class TenantCalls:
    """Integers, counted on the way of every call that anybody is held to."""

    __slots__ = ("_known", "_under_way", "are_several", "uncounted")

    def __init__(self) -> None:
        self.are_several = False
        """Whether tenants share the hub: several are configured, or a second one has called."""
        self.uncounted: str | None = None
        """The one tenant whose calls nobody counts, since there is no other and it may have as many as it likes."""
        self._known = NO_TENANTS.known
        self._under_way: dict[str, int] = {}

    def know(self, tenants: Tenants, names: set[str]) -> None:
        """Go by what is said of tenants from now on; `names` are those that are known to call."""
        self._known = tenants.known
        self.are_several = self.are_several or len(names | set(tenants.known)) > 1
        self.uncounted = None

    def under_way(self, tenant: str) -> int:
        """How many calls a tenant has."""
        return self._under_way.get(tenant, 0)

    def enter(self, tenant: str, usual: int) -> TooManyCalls | None:
        """Count one more call, or say that the tenant has as many as it may; `usual` is for whom nothing is said.

        Not asked for the one that is `uncounted`; each that was counted leaves.
        """
        self._notice(tenant)
        running = self._under_way.get(tenant, 0)
        if (most := self._most(tenant, usual)) is not None and running >= most:
            return TooManyCalls(tenant, running)
        self._under_way[tenant] = running + 1
        return None

    def leave(self, tenant: str) -> None:
        """One call less."""
        left = self._under_way[tenant] - 1
        if left:
            self._under_way[tenant] = left
        else:
            del self._under_way[tenant]

    def _notice(self, tenant: str) -> None:
        if self.are_several:
            return
        if (self.uncounted is not None and tenant != self.uncounted) or self._under_way.keys() - {tenant}:
            self.are_several, self.uncounted = True, None
        elif self._most(tenant, 0) is None:
            self.uncounted = tenant

    def _most(self, tenant: str, usual: int) -> int | None:
        if (said := self._known.get(tenant)) is not None and said.max_calls is not None:
            return said.max_calls
        return usual if self.are_several else None
