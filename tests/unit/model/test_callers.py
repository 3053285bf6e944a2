"""Callers and grants are values."""

from __future__ import annotations

import msgspec
import pytest

from isthmus.model.callers import FRONTENDS, Caller, FrontendName, Grants, everywhere, narrowed_on

OWN = Grants(("files.*",))
TENANT = Grants(("*",), ("files.delete",))
HELD = Caller("planner", "acme", OWN.bounded_by(TENANT), frontends=(("mcp", Grants(("a",))), ("sse", Grants(("b",)))))


def test_equal_grants_are_one_key_of_a_table() -> None:
    views = {Grants(("files.*",), ("files.delete",)): "compiled"}
    assert views[Grants(allow=("files.*",), deny=("files.delete",))] == "compiled"
    assert Grants(("files.*",), within=TENANT) != Grants(("files.*",))


def test_grants_deny_nothing_unless_said() -> None:
    assert Grants(("*",)).deny == ()


def test_a_caller_cannot_be_changed() -> None:
    caller = Caller("planner", "default", Grants(()))
    with pytest.raises(AttributeError):
        caller.name = "root"  # type: ignore[misc]


def test_bounds_come_last_and_are_all_kept() -> None:
    inner, outer = Grants(("b",)), Grants(("c",))
    assert OWN.bounded_by(None) is OWN
    assert OWN.bounded_by(inner).bounded_by(outer) == Grants(("files.*",), within=Grants(("b",), within=outer))


# -- frontends -----------------------------------------------------------------------------------------------------


def test_an_anonymous_caller_is_the_same_everywhere() -> None:
    caller = Caller("planner", "default", OWN)
    assert all(caller.on(frontend) is caller for frontend in FRONTENDS)
    assert everywhere([caller]) == {caller}


@pytest.mark.parametrize(
    ("frontend", "layers"),
    [
        ("mcp", [("a",), ("files.*",), ("*",)]),
        ("sse", [("b",), ("a",), ("files.*",), ("*",)]),
        ("a2a", [("files.*",), ("*",)]),
        ("rest", [("files.*",), ("*",)]),
    ],
)
def test_a_caller_is_bounded_per_frontend_and_sse_counts_as_mcp(
    frontend: FrontendName, layers: list[tuple[str, ...]]
) -> None:
    found: list[tuple[str, ...]] = []
    grants: Grants | None = HELD.on(frontend).grants
    while grants is not None:
        found.append(grants.allow)
        grants = grants.within
    assert found == layers
    assert len(narrowed_on(HELD.on(frontend))) == len(layers) - 2


def test_a_caller_owns_the_same_things_on_each_frontend() -> None:
    for frontend in FRONTENDS:
        there = HELD.on(frontend)
        assert (there.tenant, there.name, there.frontend) == (HELD.tenant, HELD.name, frontend)
        assert there is HELD.on(frontend), "it is asked for with every request"
        assert there.at_large == HELD
    assert HELD.at_large is HELD
    assert everywhere([HELD]) == {HELD, *map(HELD.on, FRONTENDS)}


@pytest.mark.parametrize(
    ("bounds", "frontends", "may"),
    [
        (None, (), True),
        (Grants(("*",), ("files.delete",)), (), True),
        (Grants(("files",)), (), False),
        (Grants(()), (), False),
        (Grants(("*",), ("*",)), (), False),
        (Grants(("*",), ("hint:destructive",)), (), False),
        (Grants(("*",), ("tag:careful",)), (), False),
        (None, (("a2a", Grants(("*",), ("*",))),), False),
        (None, (("a2a", Grants(("files",))),), False),
        (None, (("rest", Grants(("files",))),), True),
        (Grants(("*",)), (("a2a", Grants(("*",), ("files",))),), True),
    ],
)
def test_a_bound_caller_cannot_name_targets(
    bounds: Grants | None, frontends: tuple[tuple[FrontendName, Grants], ...], *, may: bool
) -> None:
    caller = Caller("planner", "acme", Grants(()).bounded_by(bounds), may_name_targets=True, frontends=frontends)
    assert caller.on("a2a").can_name_targets is may
    assert not msgspec.structs.replace(caller, may_name_targets=False).on("a2a").can_name_targets
