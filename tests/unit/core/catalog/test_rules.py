"""What the operator says of a server's tools."""

from __future__ import annotations

import pytest

from isthmus.core.catalog.rules import CACHE_SECONDS_MAX, NO_TOOL_RULES, ToolRules


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
def test_what_is_hidden_stays_hidden_whatever_else_is_shown(rules: ToolRules, shown: set[str]) -> None:
    assert {name for name in ("read", "write", "*x") if rules.shows(name)} == shown


def test_only_named_tools_are_kept() -> None:
    assert not NO_TOOL_RULES.keeps("read")
    assert [ToolRules(cached=("read",)).keeps(name) for name in ("read", "write")] == [True, False]
    assert ToolRules(cached=("*",)).keeps("write")


@pytest.mark.parametrize("seconds", [0.0, -1.0, CACHE_SECONDS_MAX + 1, float("nan"), float("inf")])
def test_a_time_that_makes_no_sense_is_refused_by_name(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"cache\.ttl must be over 0"):
        ToolRules(cache_seconds=seconds)


def test_rules_are_compared_by_what_they_say() -> None:
    assert ToolRules(defaults={"read": {"root": "/"}}) == ToolRules(defaults={"read": {"root": "/"}})
    assert ToolRules(defaults={"read": {"root": "/"}}) != NO_TOOL_RULES
