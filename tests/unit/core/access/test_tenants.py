"""What holds for everybody of a tenant."""

from __future__ import annotations

import pytest

from isthmus.core.access.tenants import NO_TENANTS, Tenants, TenantSettings
from isthmus.model.callers import Caller, Grants

BOUNDS = Grants(("*",), ("files.delete",))
TENANTS = Tenants({"acme": TenantSettings(BOUNDS), "free": TenantSettings(max_calls=3)})
OWN = Grants(("files.*",))


def test_a_caller_is_held_to_what_its_tenant_is() -> None:
    assert TENANTS.bound(Caller("a", "acme", OWN)) == Caller("a", "acme", Grants(("files.*",), within=BOUNDS))


@pytest.mark.parametrize("tenant", ["free", "default"])
def test_a_tenant_of_which_nothing_is_said_holds_nobody_to_anything(tenant: str) -> None:
    caller = Caller("a", tenant, OWN)
    assert TENANTS.bound(caller) is caller
    assert NO_TENANTS.bound(caller) is caller
    assert TENANTS.loosed(caller) is caller


def test_where_tenants_are_listed_whoever_is_of_another_may_do_nothing() -> None:
    stranger = Caller("a", "acne", OWN)
    assert TENANTS.bound(stranger).grants == OWN.bounded_by(Grants(()))
    assert TENANTS.loosed(TENANTS.bound(stranger)) == stranger
    assert NO_TENANTS.bound(stranger) is stranger


def test_whoever_was_bound_can_be_told_from_who_is_bound_otherwise() -> None:
    caller = Caller("a", "acme", OWN)
    assert TENANTS.loosed(TENANTS.bound(caller)) == caller
    other = Tenants({"acme": TenantSettings(Grants(("web",)))})
    assert other.loosed(TENANTS.bound(caller)) != caller
    assert TENANTS.loosed(caller) == caller


def test_the_number_of_calls_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="max_calls must be at least 1, not 0"):
        TenantSettings(max_calls=0)
