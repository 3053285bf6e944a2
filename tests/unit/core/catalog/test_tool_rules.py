"""The operator's rules: visibility, defaults and labels."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from isthmus.core.access.policy import HINT, TAG
from isthmus.core.catalog.tool_rules import (
    CACHE_SECONDS_MAX,
    HINT_MEMBERS,
    NO_TOOL_RULES,
    ToolRules,
    compile_defaults,
    fill_defaults,
    labels_of,
    without_required,
)
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName
from tests.unit.core.doubles import prompt, resource, tool


@pytest.mark.parametrize(
    ("rules", "shown"),
    [
        (NO_TOOL_RULES, {"read", "write", "*x"}),
        (ToolRules(only=("read",)), {"read"}),
        (ToolRules(only=()), set()),
        (ToolRules(only=("*",)), {"read", "write", "*x"}),
        (ToolRules(hidden=("read",)), {"write", "*x"}),
        (ToolRules(hidden=("*",)), set()),
        (ToolRules(only=("read", "write"), hidden=("write",)), {"read"}),
        (ToolRules(only=("re*",)), set()),  # a star stands for everything or for nothing
    ],
)
def test_hidden_tools_stay_hidden_beside_shown_ones(rules: ToolRules, shown: set[str]) -> None:
    assert {name for name in ("read", "write", "*x") if rules.shows(name)} == shown


def test_only_named_tools_are_kept() -> None:
    assert not NO_TOOL_RULES.keeps("read")
    assert [ToolRules(cached=("read",)).keeps(name) for name in ("read", "write")] == [True, False]
    assert ToolRules(cached=("*",)).keeps("write")


@pytest.mark.parametrize("seconds", [0.0, -1.0, CACHE_SECONDS_MAX + 1, float("nan"), float("inf")])
def test_a_time_that_makes_no_sense_is_refused_by_name(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"cache\.ttl must be over 0"):
        ToolRules(cache_seconds=seconds)


def test_rules_are_compared_by_value() -> None:
    assert ToolRules(defaults={"read": {"root": "/"}}) == ToolRules(defaults={"read": {"root": "/"}})
    assert ToolRules(defaults={"read": {"root": "/"}}) != NO_TOOL_RULES


DEFAULTS = compile_defaults({"root": "/srv", "depth": 3})


def schema(of: Tool) -> Any:
    return json.loads(bytes(of.definition["inputSchema"]))


def test_defaults_fill_omitted_arguments_only() -> None:
    given = msgspec.Raw(b'{"root": null,"size":1.0e2}')
    assert bytes(fill_defaults(given, DEFAULTS)) == b'{"root":null,"size":1.0e2,"depth":3}'


def test_arguments_that_lack_nothing_are_not_written_anew() -> None:
    given = msgspec.Raw(b'{ "root" : "/", "depth":1 }')
    assert fill_defaults(given, DEFAULTS) is given
    assert fill_defaults(given, {}) is given


@pytest.mark.parametrize("text", [b"[]", b"7", b"{", b'"x"'])
def test_arguments_that_are_no_object_are_left_to_validation(text: bytes) -> None:
    given = msgspec.Raw(text)
    assert fill_defaults(given, DEFAULTS) is given


def test_arguments_with_defaults_are_not_required() -> None:
    properties = {"root": {"type": "string"}, "name": {"type": "string"}}
    own = tool(description="reads", inputSchema={"properties": properties, "required": ["root", "name"]})
    listed = without_required(own, DEFAULTS)
    assert schema(listed) == {"properties": properties, "required": ["name"]}
    assert listed.definition["description"] == own.definition["description"]
    assert (listed.server, listed.name) == (own.server, own.name)
    assert listed.digest != own.digest


@pytest.mark.parametrize(
    "given",
    [{"required": ["name"]}, {}, {"required": "root"}, {"required": [7, "root"]}, ["no schema"]],
)
def test_a_schema_that_requires_nothing_of_it_or_cannot_be_read_is_listed_as_it_is(given: object) -> None:
    own = tool(inputSchema=given)
    assert without_required(own, DEFAULTS) is own


def test_a_tool_without_a_schema_is_listed_as_it_is() -> None:
    own = tool()
    assert without_required(own, DEFAULTS) is own


TRUSTED = ToolRules(is_trusted=True)

FEARED = {"hint:destructive", "hint:open-world"}
"""The hints of a tool without trusted annotations."""


def hints(**members: Any) -> set[str]:
    labels = labels_of(tool(annotations=members), TRUSTED)
    assert labels.believed == labels.suspected
    return {label for label in labels.believed if label.startswith(HINT)}


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({}, FEARED),
        ({"readOnlyHint": True}, {"hint:read-only", "hint:open-world"}),
        ({"readOnlyHint": True, "destructiveHint": True}, {"hint:read-only", "hint:open-world"}),
        ({"destructiveHint": False, "openWorldHint": False}, set()),
        ({"idempotentHint": True}, {*FEARED, "hint:idempotent"}),
        ({"readOnlyHint": "yes", "destructiveHint": 0, "openWorldHint": None}, FEARED),
    ],
)
def test_hints_of_a_trusted_server_count_with_the_protocols_defaults(members: dict[str, Any], said: set[str]) -> None:
    assert hints(**members) == said


@pytest.mark.parametrize("claims", [{}, {member: False for member, _ in HINT_MEMBERS.values()}, {"readOnlyHint": True}])
def test_no_other_server_talks_its_way_into_a_permission_or_out_of_a_denial(claims: dict[str, bool]) -> None:
    labels = labels_of(tool(annotations=claims), NO_TOOL_RULES)
    assert labels.believed == frozenset()
    assert labels.suspected >= FEARED
    assert ("hint:read-only" in labels.suspected) == bool(claims.get("readOnlyHint"))


@pytest.mark.parametrize("member", ["fastmcp", "_fastmcp"])
@pytest.mark.parametrize("is_trusted", [True, False])
def test_tags_of_a_server_are_read_where_fastmcp_writes_them(member: str, *, is_trusted: bool) -> None:
    labels = labels_of(tool(_meta={member: {"tags": ["safe", 5, None]}}), ToolRules(is_trusted=is_trusted))
    assert ("tag:safe" in labels.believed) == is_trusted
    assert [label for label in labels.suspected if label.startswith(TAG)] == ["tag:safe"]


@pytest.mark.parametrize("meta", [None, [], {"fastmcp": 1}, {"fastmcp": {"tags": "safe"}}, {"fastmcp": {}}])
def test_an_invalid_list_of_tags_is_ignored(meta: object) -> None:
    labels = labels_of(tool(_meta=meta), TRUSTED)
    assert not [label for label in labels.suspected if label.startswith(TAG)]


def test_the_operators_own_tags_always_count() -> None:
    rules = ToolRules(tags={"*": ("ours",), "read": ("safe",)})
    assert labels_of(tool("read"), rules).believed == {"tag:ours", "tag:safe"}
    assert labels_of(tool("write"), rules).believed == {"tag:ours"}
    assert labels_of(prompt("read"), rules).believed == {"tag:ours", "tag:safe"}


def test_only_tools_have_hints() -> None:
    assert labels_of(prompt(), TRUSTED).suspected == frozenset()
    assert labels_of(resource("a:b", annotations={"readOnlyHint": True}), NO_TOOL_RULES).suspected == frozenset()


@pytest.mark.parametrize("odd", [b"9" * 5000 + b"}", b"[" * 100_000, b'"\xff"}'])
def test_unreadable_annotations_give_no_hints(odd: bytes) -> None:
    annotations = msgspec.Raw(b'{"readOnlyHint":true,"n":' + odd)
    strange = Tool.of(ServerName("files"), FeatureName("read"), {"annotations": annotations})
    assert "hint:read-only" not in labels_of(strange, TRUSTED).believed
