"""What holds for everybody of a tenant, whoever they are and however they are known.

Values only. `config` fills them in; whoever makes a `Caller` of a credential has it bounded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from isthmus.model.callers import Caller, Grants, Whose
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
            bounds.append(Grants(("*",), whose=Whose(caller.tenant, caller.name)))
        return bounds


def _without(grants: Grants, bounds: Grants) -> Grants:
    """Grants without what bounds them last, if that is this."""
    if grants.within is None:
        return grants
    within = None if grants.within == bounds else _without(grants.within, bounds)
    return replace(grants, within=within)


NO_TENANTS = Tenants()
