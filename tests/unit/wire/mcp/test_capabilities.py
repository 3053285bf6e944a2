"""What servers say they can do, and what callers are told of it."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import msgspec
import pytest

from isthmus.model.features import Ability
from isthmus.wire.mcp.capabilities import Capabilities, capabilities_of

ABILITIES: tuple[Ability, ...] = get_args(Ability)


def read(told: dict[str, Any]) -> Capabilities:
    return msgspec.convert(msgspec.json.decode(msgspec.json.encode(told)), Capabilities)


@pytest.mark.parametrize(
    ("told", "abilities"),
    [
        ({}, set()),
        ({"tools": {}}, {"tools"}),
        ({"tools": None, "prompts": {"listChanged": None}}, {"prompts"}),
        ({"resources": {}}, {"resources"}),
        ({"resources": {"subscribe": True}}, {"resources", "subscribe"}),
        ({"resources": {"subscribe": False}}, {"resources"}),
        ({"completions": {}, "logging": {}, "experimental": {"x": 1}}, {"completions", "logging"}),
    ],
)
def test_a_server_can_do_what_it_says(told: dict[str, Any], abilities: set[Ability]) -> None:
    assert read(told).abilities() == abilities


@pytest.mark.parametrize(
    ("told", "announces"),
    [
        ({"tools": {}}, False),
        ({"tools": {"listChanged": True}}, True),
        ({"prompts": {"listChanged": True}}, True),
        ({"resources": {"subscribe": True}}, True),
        ({"logging": {}}, False),
    ],
)
def test_a_server_announces_changes_if_it_says_so_of_any_list(told: dict[str, Any], *, announces: bool) -> None:
    assert read(told).announces_changes is announces


def test_callers_are_told_what_the_servers_can_do_and_nothing_else() -> None:
    for size in range(1, len(ABILITIES) + 1):
        for chosen in itertools.combinations(ABILITIES, size):
            told = capabilities_of(frozenset(chosen))
            hidden = set() if "resources" in chosen else {"subscribe"}  # nothing to subscribe to
            assert read(told).abilities() == set(chosen) - hidden
            assert all(told[topic]["listChanged"] for topic in ("tools", "prompts", "resources") if topic in told)


def test_where_nothing_is_known_yet_tools_are_expected() -> None:
    assert capabilities_of(frozenset()) == {"tools": {"listChanged": True}}
