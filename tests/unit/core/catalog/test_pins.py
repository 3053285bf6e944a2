"""Withheld tools: their known definitions, the callers that see them, and the bounds of the store."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from isthmus.core.catalog import pins as module
from isthmus.core.catalog.definition_review import Review
from isthmus.core.catalog.pins import PinKey, Pinning, Pins, Sighting, canonical_definition, fingerprint_of
from isthmus.core.catalog.snapshot import FeatureLists, ServerStatus
from isthmus.model.calls import ClientCapabilities
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName

SERVER = ServerName("s")
SOME: ClientCapabilities = frozenset({"sampling"})
OTHERS: ClientCapabilities = frozenset({"elicitation"})


def tool(description: str, name: str = "t", server: str = SERVER) -> Tool:
    definition = {"description": msgspec.Raw(msgspec.json.encode(description))}
    return Tool.of(ServerName(server), FeatureName(name), definition)


class Watched:
    """Pins, and their sightings."""

    def __init__(self, mode: Pinning = "strict", known: Mapping[PinKey, bytes] | None = None, *waiting: PinKey) -> None:
        self.mode: Pinning = mode
        self.recorded: list[Sighting] = []
        self.pins = Pins(known or {}, lambda _: self.mode, self.recorded.append, waiting)


def test_a_change_is_withheld_and_reported_once() -> None:
    seen = Watched()
    assert seen.pins.passes(tool("a"))
    assert [seen.pins.passes(tool("b")) for _ in range(3)] == [False, False, False]
    assert [(each.is_change, each.is_withheld) for each in seen.recorded] == [(False, False), (True, True)]


@pytest.mark.parametrize("is_approved", [False, True])
async def test_lists_are_reviewed_before_they_are_published_unless_pins_change_meanwhile(*, is_approved: bool) -> None:
    seen = Watched("approve")
    review = Review(seen.pins)
    tools = (tool("a", "one"), tool("b", "two"))
    await review.prepare_lists(SERVER, FeatureLists(tools))
    assert [each.tool for each in seen.recorded] == ["one", "two"]
    if is_approved:
        seen.pins.approve(SERVER, "", FeatureName("two"), fingerprint_of(canonical_definition(tools[1])))
    shown = review.reviewed(ServerStatus(SERVER, tools=tools))
    assert shown.withheld == (("one",) if is_approved else ("one", "two"))
    assert [each.name for each in shown.tools] == (["two"] if is_approved else [])
    assert [each.tool for each in seen.recorded] == ["one", "two"]


def test_a_definition_that_changes_back_is_no_longer_withheld() -> None:
    """Else its operator would approve of what is gone, and with that withhold what is there."""
    seen = Watched()
    for description in "aba":
        seen.pins.passes(tool(description))
    assert [each.is_withheld for each in seen.recorded] == [False, True, False]
    assert not seen.recorded[-1].is_change
    assert not seen.pins.passes(tool("b"))
    assert seen.recorded[-1].is_withheld


def test_and_so_it_does_after_a_restart() -> None:
    key = (SERVER, "", FeatureName("t"))
    seen = Watched("strict", {key: fingerprint_of(canonical_definition(tool("a")))}, key)
    assert seen.pins.passes(tool("a"))
    assert [each.is_withheld for each in seen.recorded] == [False]


def test_a_definition_listed_differently_to_all_is_a_change() -> None:
    seen = Watched()
    assert seen.pins.passes(tool("a"), SOME)
    assert not seen.pins.passes(tool("b"))
    assert not seen.pins.passes(tool("b"), OTHERS)
    assert seen.pins.passes(tool("a"))


def test_one_server_takes_no_room_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PINS_PER_SERVER_MAX", 3)
    seen = Watched()
    passed = [seen.pins.passes(tool("a", f"t{number}")) for number in range(5)]
    assert passed == [True, True, True, False, False]
    assert seen.pins.passes(tool("a", "t0", "other"))
    seen.pins.approve(SERVER, "", FeatureName("t4"), fingerprint_of(canonical_definition(tool("a", "t4"))))
    assert seen.pins.passes(tool("a", "t4")), "what was approved is remembered though there is no room"


@pytest.mark.parametrize("mode", ["warn", "approve"])
def test_a_change_that_cannot_be_stored_is_not_reported_for_ever(
    mode: Pinning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PINS_PER_SERVER_MAX", 3)
    seen = Watched(mode)
    for number in range(10):
        assert seen.pins.passes(tool("a", f"t{number}")) is (mode == "warn")
    assert len(seen.recorded) == 3


@pytest.mark.parametrize("raw", [b'{"a": "\xff"}', b"[" * 3000 + b"]" * 3000, b'{"a": 1' + b"0" * 5000 + b"}"])
def test_unparsable_definitions_can_be_shown(raw: bytes) -> None:
    shown = canonical_definition(Tool.of(SERVER, FeatureName("t"), {"inputSchema": msgspec.Raw(raw)}))
    assert msgspec.json.decode(msgspec.json.format(shown))
