"""What the operator says of a server's tools."""

from __future__ import annotations

import pytest

from isthmus.core.catalog.rules import CACHE_SECONDS_MAX, NO_RULES, Rules


@pytest.mark.parametrize(
    ("rules", "shown"),
    [
        (NO_RULES, {"read", "write", "*x"}),
        (Rules(only=("read",)), {"read"}),
        (Rules(only=()), set()),
        (Rules(only=("*",)), {"read", "write", "*x"}),
        (Rules(hidden=("read",)), {"write", "*x"}),
        (Rules(hidden=("*",)), set()),
        (Rules(only=("read", "write"), hidden=("write",)), {"read"}),
        (Rules(only=("re*",)), set()),  # a star stands for everything or for nothing
    ],
)
def test_what_is_hidden_stays_hidden_whatever_else_is_shown(rules: Rules, shown: set[str]) -> None:
    assert {name for name in ("read", "write", "*x") if rules.shows(name)} == shown


def test_only_named_tools_are_kept() -> None:
    assert not NO_RULES.keeps("read")
    assert [Rules(cached=("read",)).keeps(name) for name in ("read", "write")] == [True, False]
    assert Rules(cached=("*",)).keeps("write")


@pytest.mark.parametrize("seconds", [0.0, -1.0, CACHE_SECONDS_MAX + 1, float("nan"), float("inf")])
def test_a_time_that_makes_no_sense_is_refused_by_name(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"cache\.ttl must be over 0"):
        Rules(cache_seconds=seconds)


def test_rules_are_compared_by_what_they_say() -> None:
    assert Rules(defaults={"read": {"root": "/"}}) == Rules(defaults={"read": {"root": "/"}})
    assert Rules(defaults={"read": {"root": "/"}}) != NO_RULES
