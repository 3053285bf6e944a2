"""Requests in flight of callers and tenants are bounded in bytes."""

from __future__ import annotations

from isthmus.core.access.bytes_in_flight import BytesInFlight
from isthmus.model.callers import Caller, Grants
from isthmus.model.fault_table import TooManyBytes

ANN = Caller(name="ann", tenant="acme", grants=Grants(("*",)))
ABE = Caller(name="abe", tenant="acme", grants=Grants(("*",)))
BEN = Caller(name="ben", tenant="other", grants=Grants(("*",)))


def test_a_caller_over_its_bytes_is_refused_until_a_call_is_answered() -> None:
    flow = BytesInFlight(100, 150)
    assert flow.enter(ANN, 60) is None
    refused = flow.enter(ANN, 60)
    assert isinstance(refused, TooManyBytes)
    assert (refused.executed, refused.retry_after) == ("no", 1.0)
    assert str(refused) == "Too many bytes at once: requests and unread responses of ann hold 60 of at most 100 bytes"
    flow.leave(ANN, 60)
    assert flow.enter(ANN, 60) is None


def test_callers_of_a_tenant_share_its_bound_and_another_tenant_has_its_own() -> None:
    flow = BytesInFlight(100, 150)
    assert flow.enter(ANN, 100) is None
    assert isinstance(flow.enter(ABE, 60), TooManyBytes)
    assert flow.enter(ABE, 50) is None
    assert flow.enter(BEN, 100) is None


def test_a_request_that_is_alone_is_never_too_much() -> None:
    flow = BytesInFlight(100, 150)
    assert flow.enter(ANN, 1000) is None
    assert flow.excess(ANN) is None, "it may go on"
    flow.leave(ANN, 1000)
    assert not flow._all._of_caller
    assert not flow._all._of_tenant


def test_a_caller_with_too_much_unread_may_begin_nothing_until_it_has_read() -> None:
    flow, changes = BytesInFlight(100, 150), []
    flow.on_excess = lambda: changes.append(flow.has_excess)
    read = [flow.hold_response(ANN, 60), flow.hold_response(ANN, 60)]
    assert str(flow.excess(ANN)) == (
        "Too many bytes at once: requests and unread responses of ann hold 120 of at most 100 bytes"
    )
    assert flow.excess(ABE) is None
    abe_read = flow.hold_response(ABE, 60)
    assert "tenant acme hold 180 of at most 150" in str(flow.excess(ABE))
    assert flow.excess(BEN) is None
    read[0]()
    assert (flow.excess(ANN), flow.excess(ABE)) == (None, None)
    read[1]()
    abe_read()
    assert changes == [True, False]
    assert not flow._all._of_caller
