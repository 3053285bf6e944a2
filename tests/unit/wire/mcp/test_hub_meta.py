"""Which hubs are behind an address: read as it is written, and nothing else is believed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.messages import HUBS_KEY, HUBS_MAX, STEPS_MAX, Implementation, read_hubs, write_hubs

ME = Implementation("isthmus", "1")
HUBS = {"near": 0, "far": 3}


def test_hub_metadata_is_read_back_in_both_eras() -> None:
    discovery = modern.read_discover_result(modern.discover_result(modern.VERSIONS, ME, frozenset(), HUBS))
    welcome = legacy.read_initialize_result(legacy.initialize_result(legacy.LATEST, ME, frozenset(), HUBS))
    assert discovery is not None
    assert not isinstance(welcome, str)
    assert read_hubs(discovery.meta) == read_hubs(welcome.meta) == HUBS


def test_a_server_that_is_no_hub_says_nothing_of_hubs() -> None:
    assert write_hubs({}) == {}
    assert "_meta" not in json.loads(legacy.initialize_result(legacy.LATEST, ME, frozenset()))
    welcome = legacy.read_initialize_result(legacy.initialize_result(legacy.LATEST, ME, frozenset()))
    assert not isinstance(welcome, str)
    assert read_hubs(welcome.meta) == {}


@pytest.mark.parametrize(
    "hubs", [None, 5, [], ["a"], {"a": "b"}, {"a": -1}, {"a": 1e9}, {"a" * 65: 0}, {str(n): 0 for n in range(257)}]
)
def test_nonsense_names_no_hub(hubs: Any) -> None:
    assert read_hubs(json.dumps({HUBS_KEY: hubs}).encode()) == {}


@pytest.mark.parametrize("meta", [b"null", b"[]", b"7", b"{", b""])
def test_metadata_that_is_no_object_names_no_hub(meta: bytes) -> None:
    assert read_hubs(meta) == {}


def test_of_too_many_the_nearest_are_sent() -> None:
    many = {str(steps): steps % 100 for steps in range(1000)}
    received = write_hubs(many)[HUBS_KEY]
    assert len(received) == HUBS_MAX
    assert max(received.values()) < 30


def test_a_hub_that_is_said_to_be_far_away_costs_none_of_the_others() -> None:
    received = write_hubs({"here": 0, "far": STEPS_MAX + 1})
    assert read_hubs(json.dumps(received).encode()) == {"here": 0, "far": STEPS_MAX}
