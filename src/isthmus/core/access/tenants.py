"""What applies to all callers of a tenant: bounds of their permissions, and how many calls they may run.

`config` fills in `Tenants`; frontends bound each `Caller` with it. `TenantCalls` counts calls in the whole hub; a
server's own queue sees to it that a tenant leaves room for others there (`core.calls.server_queue`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from isthmus.model.callers import Caller, CallerId, Grants
from isthmus.model.fault_table import TooManyCalls
from isthmus.model.relay import DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """The settings of one tenant."""

    bounds: Grants | None = None
    """The most that any of its callers may do; None if unlimited."""
    max_calls: int | None = None
    """How many calls of all its callers may run or wait; None for the default."""

    def __post_init__(self) -> None:
        if self.max_calls is not None and self.max_calls < 1:
            raise ValueError(f"max_calls must be at least 1, not {self.max_calls}")


STRANGERS = TenantSettings(Grants(()))
"""Where tenants are listed, callers of any other tenant may do nothing: a typo in a name must not grant access."""


@dataclass(frozen=True, slots=True)
class Tenants:
    """The configured tenants, by name."""

    known: Mapping[str, TenantSettings] = field(default_factory=dict)
    has_policies: bool = False
    """Whether the operator's own policies also bound callers, whatever their tenant."""

    @property
    def are_unrestricted(self) -> bool:
        """Whether no caller is bounded."""
        return not self.known and not self.has_policies

    def bound(self, caller: Caller) -> Caller:
        """The caller, bounded by its tenant and by policies."""
        grants = caller.grants
        for bounds in self._bounds_of(caller):
            grants = grants.bounded_by(bounds)
        return caller if grants is caller.grants else replace(caller, grants=grants)

    def unbound(self, caller: Caller) -> Caller:
        """The caller before `bound`; unchanged if it is bounded by something else, or not at all."""
        grants = caller.grants
        for bounds in reversed(self._bounds_of(caller)):
            grants = _without(grants, bounds)
        return caller if grants is caller.grants else replace(caller, grants=grants)

    def _bounds_of(self, caller: Caller) -> list[Grants]:
        settings = self.known.get(caller.tenant, STRANGERS if self.known and caller.tenant != DEFAULT_TENANT else None)
        bounds = [] if settings is None or settings.bounds is None else [settings.bounds]
        if self.has_policies:
            bounds.append(Grants(("*",), caller_id=CallerId(caller.tenant, caller.name)))
        return bounds


def _without(grants: Grants, bounds: Grants) -> Grants:
    """Grants without these bounds, if they are the last."""
    if grants.within is None:
        return grants
    within = None if grants.within == bounds else _without(grants.within, bounds)
    return replace(grants, within=within)


NO_TENANTS = Tenants()


class TenantCalls:
    """Counts the running calls of each tenant, on the path of every call.

    While there is only one tenant, and the operator set no limit for it, nothing is counted: calls that run when a
    second tenant calls for the first time are never counted.
    """

    __slots__ = ("_known", "_under_way", "are_several", "elsewhere", "uncounted")

    def __init__(self) -> None:
        self.are_several = False
        """Whether tenants share the hub: several are configured, or a second one has called."""
        self.uncounted: str | None = None
        """The only tenant, whose calls are not counted because it has no limit."""
        self.elsewhere: Mapping[str, int] = {}
        """Calls of tenants that run at other nodes of a cluster, as of about a second ago."""
        self._known = NO_TENANTS.known
        self._under_way: dict[str, int] = {}

    def configure(self, tenants: Tenants, names: set[str]) -> None:
        """Apply new settings; `names` are all tenants that have callers."""
        self._known = tenants.known
        self.are_several = self.are_several or len(names | set(tenants.known)) > 1
        self.uncounted = None

    def counts(self) -> dict[str, int]:
        """The number of running calls of each tenant that has any."""
        return dict(self._under_way)

    def under_way(self, tenant: str) -> int:
        """The number of a tenant's running calls."""
        return self._under_way.get(tenant, 0)

    def enter(self, tenant: str, usual: int) -> TooManyCalls | None:
        """Count one more call, or return the fault that the tenant has too many; `usual` is the default limit.

        Not called for the tenant that is `uncounted`; every counted call must `leave`.
        """
        if not self.are_several:
            if (self.uncounted is not None and tenant != self.uncounted) or self._under_way.keys() - {tenant}:
                self.are_several, self.uncounted = True, None
            elif self._most(tenant, 0) is None:
                self.uncounted = tenant
        running = self._under_way.get(tenant, 0)
        if (most := self._most(tenant, usual)) is not None and (
            (everywhere := running + self.elsewhere.get(tenant, 0)) >= most
        ):
            return TooManyCalls(tenant, everywhere)
        self._under_way[tenant] = running + 1
        return None

    def leave(self, tenant: str) -> None:
        """Count one call less."""
        left = self._under_way[tenant] - 1
        if left:
            self._under_way[tenant] = left
        else:
            del self._under_way[tenant]

    def _most(self, tenant: str, usual: int) -> int | None:
        if (settings := self._known.get(tenant)) is not None and settings.max_calls is not None:
            return settings.max_calls
        return usual if self.are_several else None
