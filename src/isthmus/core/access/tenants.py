"""What holds for everybody of a tenant, whoever they are and however they are known.

Values only. `config` fills them in; whoever makes a `Caller` of a credential has it bounded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from isthmus.model.callers import Caller, CallerId, Grants
from isthmus.model.faults import TooManyCalls
from isthmus.model.relay import DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """One tenant."""

    bounds: Grants | None = None
    """What nobody of it gets more than; None if that is not said."""
    max_calls: int | None = None
    """How many calls of all of them may run or wait at once; None if that is not said."""

    def __post_init__(self) -> None:
        if self.max_calls is not None and self.max_calls < 1:
            raise ValueError(f"max_calls must be at least 1, not {self.max_calls}")


STRANGERS = TenantSettings(Grants(()))
"""Where tenants are listed: everybody of one that is not, who may do nothing. A slip in a name must free nobody."""


@dataclass(frozen=True, slots=True)
class Tenants:
    """The tenants of which something is said, by their names."""

    known: Mapping[str, TenantSettings] = field(default_factory=dict)
    has_policies: bool = False
    """Whether callers are held to what policies say of them as well, whichever tenant they are of."""

    @property
    def hold_nobody(self) -> bool:
        """Whether nobody is held to anything here."""
        return not self.known and not self.has_policies

    def bound(self, caller: Caller) -> Caller:
        """A caller that may do no more than its tenant, and than policies let it."""
        grants = caller.grants
        for bounds in self._bounds_of(caller):
            grants = grants.bounded_by(bounds)
        return caller if grants is caller.grants else replace(caller, grants=grants)

    def loosed(self, caller: Caller) -> Caller:
        """The caller that `bound` made this one of; itself if it is held to something else, or to nothing."""
        grants = caller.grants
        for bounds in reversed(self._bounds_of(caller)):
            grants = _without(grants, bounds)
        return caller if grants is caller.grants else replace(caller, grants=grants)

    def _bounds_of(self, caller: Caller) -> list[Grants]:
        settings = self.known.get(caller.tenant, STRANGERS if self.known and caller.tenant != DEFAULT_TENANT else None)
        bounds = [] if settings is None or settings.bounds is None else [settings.bounds]
        if self.has_policies:
            bounds.append(Grants(("*",), whose=CallerId(caller.tenant, caller.name)))
        return bounds


def _without(grants: Grants, bounds: Grants) -> Grants:
    """Grants without what bounds them last, if that is this."""
    if grants.within is None:
        return grants
    within = None if grants.within == bounds else _without(grants.within, bounds)
    return replace(grants, within=within)


NO_TENANTS = Tenants()


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
