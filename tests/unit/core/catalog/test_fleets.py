"""Fleets: which servers are members, and which definition of a tool is listed when members differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from isthmus.core.catalog.fleets import Fleet, FleetSettings, hidden_by
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.catalog.tool_rules import ToolRules
from isthmus.model.names import ServerName
from tests.unit.core.doubles import ready, tool

OPEN = {"type": "object", "properties": {"text": {"type": "string"}}}
STRICT = {**OPEN, "required": ["text"]}
LAB = ServerName("lab")


def member(name: str, schema: Mapping[str, Any] = OPEN, **members: Any) -> ServerStatus:
    return ready(tool("read", name, inputSchema=schema, **members), server=name)


def fleet_of(*statuses: ServerStatus, members: str = "*", **settings: Any) -> Fleet:
    fleet = Fleet(LAB, FleetSettings((members,), **settings))
    fleet.update({status.server: status for status in statuses})
    return fleet


def listed(fleet: Fleet) -> dict[str, Any]:
    """The listed definition of `read`."""
    return {key: json.loads(bytes(value)) for key, value in fleet.tools["read"].tool.definition.items()}


# -- patterns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("sensor-*", ["sensor-1"]),
        ("*-1", ["sensor-1"]),
        ("sensor-1", ["sensor-1"]),
        ("dialin:*", ["plant_1"]),
        ("dialin:sensor-*", []),
        ("plant_*", []),
        ("agent:plant", ["plant_1"]),
        ("agent:other", []),
        ("tag:outside", ["sensor-1"]),
        ("*", ["sensor-1"]),
    ],
)
def test_a_pattern_matches_configured_servers_or_those_that_dialled_in(pattern: str, matched: list[str]) -> None:
    statuses = (
        ready(server="sensor-1", rules=ToolRules(tags={"*": ("outside",)})),
        replace(ready(server="plant_1"), agent="plant"),
        ready(server=BUILTIN),
        replace(ready(server="other"), carrier="fleet"),
        replace(ready(server="sensor-off"), state="disabled"),
    )
    assert list(fleet_of(*statuses, members=pattern).members) == matched


@pytest.mark.parametrize("pattern", ["a.b", "", "dialin:", "agent:", "tag:", "a b", "hint:read-only"])
def test_a_malformed_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        FleetSettings((pattern,))


@pytest.mark.parametrize(
    "settings", [{"members": ()}, {"deadline": 0}, {"deadline": 3601}, {"at_once": 0}, {"at_once": 257}]
)
def test_settings_have_bounds(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        FleetSettings(**{"members": ("a",), **settings})


def test_members_are_hidden_unless_a_fleet_shows_them() -> None:
    shown, hiding = FleetSettings(("a*",), hide_members=False), FleetSettings(("a*",))
    assert hidden_by([shown]) is None
    hides = hidden_by([shown, hiding])
    assert hides is not None
    assert (hides(ready(server="a1")), hides(ready(server="b1"))) == (True, False)


# -- tools that differ -------------------------------------------------------------------------------------------------


def test_the_schema_of_most_members_is_listed_and_only_these_are_called() -> None:
    fleet = fleet_of(member("a", STRICT), member("b"), member("c"))
    assert "required" not in listed(fleet)["inputSchema"]
    assert sorted(fleet.variant("read")) == ["b", "c"]
    assert fleet.status.notes == ("'read' has another input schema at a: the fleet does not call it there",)


def test_on_a_tie_the_listed_schema_stays_and_at_first_the_first_member_decides() -> None:
    fleet = fleet_of(member("a", STRICT), member("b"))
    assert sorted(fleet.variant("read")) == ["a"]
    fleet.update({ServerName("c"): member("c")})
    assert sorted(fleet.variant("read")) == ["b", "c"]
    fleet.update({ServerName("d"): member("d", STRICT)})
    assert sorted(fleet.variant("read")) == ["b", "c"], "it is listed already"
    fleet.update({ServerName("b"): None})
    assert sorted(fleet.variant("read")) == ["a", "d"]


def test_other_words_are_not_another_tool_and_the_most_frequent_are_listed() -> None:
    fleet = fleet_of(member("a", description="odd"), member("b", description="usual"), member("c", description="usual"))
    assert listed(fleet)["description"] == "usual"
    assert sorted(fleet.variant("read")) == ["a", "b", "c"]


def test_joining_and_leaving_does_not_change_the_list() -> None:
    fleet = fleet_of(member("a"))
    before = fleet.status
    fleet.update({ServerName("b"): member("b")})
    assert fleet.status is before
    fleet.update({ServerName("a"): replace(member("a"), state="away")})
    assert fleet.status is before
    fleet.update({ServerName("a"): None, ServerName("b"): None})
    assert (fleet.status.state, fleet.status.tools) == ("away", ())
    assert fleet.status.reason == "the fleet has no members: no server matches *"


def test_a_fleet_whose_members_are_all_away_keeps_its_list_and_says_so() -> None:
    fleet = fleet_of(*(replace(member(f"s{number}"), state="away") for number in range(7)))
    assert (fleet.status.state, len(fleet.status.tools)) == ("away", 2)
    assert fleet.status.reason == "no member of the fleet is connected (s0, s1, s2, s3, s4 and 2 more)"


def test_rules_of_members_hold() -> None:
    rules = ToolRules(hidden=("secret",), defaults={"read": {"text": "x"}})
    status = ready(
        tool("read", "a", inputSchema=STRICT), tool("secret", "a", inputSchema=OPEN), server="a", rules=rules
    )
    fleet = fleet_of(status)
    assert list(fleet.tools) == ["read"]
    assert listed(fleet)["inputSchema"]["required"] == []


def test_members_of_a_definition_that_differ_in_a_fleet_are_not_listed() -> None:
    meta = {"isthmus/flags": ["long-description"], "ui": {"resourceUri": "ui://a"}}
    fleet = fleet_of(member("a", outputSchema={"type": "object"}, execution={"taskSupport": "required"}, _meta=meta))
    assert listed(fleet).keys() == {"name", "inputSchema", "_meta"}
    assert listed(fleet)["_meta"] == {"isthmus/flags": ["long-description"]}


def test_a_tool_whose_schema_cannot_be_extended_is_left_out_with_a_note() -> None:
    fleet = fleet_of(member("a", {"properties": 7}), ready(tool("fleet_members", "b"), server="b"))
    assert fleet.tools == {}
    assert fleet.status.notes == (
        "'fleet_members' left out: the fleet has a tool of that name",
        "'read' left out: its inputSchema declares no arguments",
    )
    assert fleet.status.reason == "the members of the fleet list no tools (a, b)"


def test_only_believed_readers_may_race() -> None:
    reads = {"annotations": {"readOnlyHint": True}}
    trusted = replace(member("a", **reads), rules=ToolRules(is_trusted=True))
    fleet = fleet_of(trusted, member("b", **reads))
    assert fleet.readers("read") == {"a"}
    assert fleet_of(member("b"), read_only=("read",)).readers("read") == {"b"}
    assert fleet_of(member("b"), read_only=("*",)).readers("read") == {"b"}


def test_a_member_with_the_name_of_a_mode_is_noted() -> None:
    (note,) = fleet_of(member("all")).status.notes
    assert note == "the member 'all' cannot be called by its name, which means something else"
