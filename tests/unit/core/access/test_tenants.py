"""Tenants bound their callers, and their calls are counted."""

from __future__ import annotations

import pytest

from isthmus.core.access.tenants import NO_TENANTS, TenantCalls, Tenants, TenantSettings
from isthmus.model.callers import Caller, Grants
from isthmus.model.fault_table import TooManyCalls

BOUNDS = Grants(("*",), ("files.delete",))
TENANTS = Tenants({"acme": TenantSettings(BOUNDS), "free": TenantSettings(max_calls=3)})
OWN = Grants(("files.*",))


def test_a_caller_is_bounded_by_its_tenant() -> None:
    assert TENANTS.bound(Caller("a", "acme", OWN)) == Caller("a", "acme", Grants(("files.*",), within=BOUNDS))


@pytest.mark.parametrize("tenant", ["free", "default"])
def test_an_unconfigured_tenant_bounds_no_caller(tenant: str) -> None:
    caller = Caller("a", tenant, OWN)
    assert TENANTS.bound(caller) is caller
    assert NO_TENANTS.bound(caller) is caller
    assert TENANTS.unbound(caller) is caller


def test_where_tenants_are_listed_callers_of_others_may_do_nothing() -> None:
    stranger = Caller("a", "acne", OWN)
    assert TENANTS.bound(stranger).grants == OWN.bounded_by(Grants(()))
    assert TENANTS.unbound(TENANTS.bound(stranger)) == stranger
    assert NO_TENANTS.bound(stranger) is stranger


def test_differently_bound_callers_are_distinguished() -> None:
    caller = Caller("a", "acme", OWN)
    assert TENANTS.unbound(TENANTS.bound(caller)) == caller
    other = Tenants({"acme": TenantSettings(Grants(("web",)))})
    assert other.unbound(TENANTS.bound(caller)) != caller
    assert TENANTS.unbound(caller) == caller


def test_the_number_of_calls_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="max_calls must be at least 1, not 0"):
        TenantSettings(max_calls=0)


USUAL = 2


def test_the_only_tenant_is_held_to_nothing() -> None:
    calls = TenantCalls()
    assert [calls.enter("a", USUAL) for _ in range(5)] == [None] * 5
    assert (calls.under_way("a"), calls.are_several) == (5, False)


def test_where_a_second_one_calls_each_has_as_many_as_is_usual() -> None:
    calls = TenantCalls()
    assert [calls.enter(tenant, USUAL) for tenant in ("a", "b", "a")] == [None] * 3
    refused = calls.enter("a", USUAL)
    assert isinstance(refused, TooManyCalls)
    assert (refused.executed, refused.retry_after) == ("no", 1.0)
    calls.leave("a")
    assert calls.enter("a", USUAL) is None
    for tenant in ("a", "a", "b"):
        calls.leave(tenant)
    assert (calls.under_way("a"), calls.under_way("b")) == (0, 0)


def test_a_tenants_limit_applies_even_if_it_is_the_only_tenant() -> None:
    calls = TenantCalls()
    calls.configure(Tenants({"a": TenantSettings(max_calls=1)}), {"a"})
    assert not calls.are_several
    assert calls.enter("a", USUAL) is None
    assert isinstance(calls.enter("a", USUAL), TooManyCalls)


def test_several_that_are_configured_are_several_before_they_call_and_stay_so() -> None:
    calls = TenantCalls()
    calls.configure(NO_TENANTS, {"a", "b"})
    assert calls.are_several
    calls.configure(Tenants({"a": TenantSettings(max_calls=3)}), {"a"})
    assert calls.are_several
    assert [calls.enter("a", USUAL) is None for _ in range(4)] == [True, True, True, False]
