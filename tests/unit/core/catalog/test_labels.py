"""What is said of a feature, and who is believed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from isthmus.core.access.policy import HINT, TAG
from isthmus.core.catalog.rules import HINT_MEMBERS, NO_TOOL_RULES, ToolRules, labels_of
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName
from tests.unit.core.doubles import prompt, resource, tool

TRUSTED = ToolRules(is_trusted=True)

FEARED = {"hint:destructive", "hint:open-world"}
"""What is so of a tool as long as nobody who is believed says otherwise."""


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
def test_a_trusted_server_is_believed_and_its_silence_is_what_the_protocol_says(
    members: dict[str, Any], said: set[str]
) -> None:
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
def test_what_is_no_list_of_tags_is_none(meta: object) -> None:
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
def test_what_cannot_be_read_says_nothing(odd: bytes) -> None:
    annotations = msgspec.Raw(b'{"readOnlyHint":true,"n":' + odd)
    strange = Tool.of(ServerName("files"), FeatureName("read"), {"annotations": annotations})
    assert "hint:read-only" not in labels_of(strange, TRUSTED).believed
