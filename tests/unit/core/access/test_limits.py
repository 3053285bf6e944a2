"""How many calls a tenant has and may have; that the hub goes by it is shown in `tests/security` (T54)."""

from __future__ import annotations

from isthmus.core.access.limits import TenantCalls
from isthmus.core.access.tenants import NO_TENANTS, Tenants, TenantSettings
from isthmus.model.faults import TooManyCalls

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


def test_what_is_said_of_a_tenant_holds_for_it_alone_even_if_there_is_no_other() -> None:
    calls = TenantCalls()
    calls.know(Tenants({"a": TenantSettings(max_calls=1)}), {"a"})
    assert not calls.are_several
    assert calls.enter("a", USUAL) is None
    assert isinstance(calls.enter("a", USUAL), TooManyCalls)


def test_several_that_are_configured_are_several_before_they_call_and_stay_so() -> None:
    calls = TenantCalls()
    calls.know(NO_TENANTS, {"a", "b"})
    assert calls.are_several
    calls.know(Tenants({"a": TenantSettings(max_calls=3)}), {"a"})
    assert calls.are_several
    assert [calls.enter("a", USUAL) is None for _ in range(4)] == [True, True, True, False]
