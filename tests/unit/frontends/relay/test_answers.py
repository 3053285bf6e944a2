"""What is read of a device's request, and what the hub answers by itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.frontends.relay.answers import alive, greeting, read_cursor, read_version, title_of
from isthmus.frontends.relay.settings import RelaySettings
from tests.unit.core.doubles import raw
from tests.unit.frontends.relay.doubles import ME, Room, Visit


def members(**values: Any) -> dict[str, Any]:
    return {key: raw(value) for key, value in values.items()}


@pytest.mark.parametrize(
    ("info", "title"),
    [
        ({"name": "Pot", "version": "9"}, "Pot 9"),
        ({"name": "Pot"}, "Pot"),
        ({"name": 7, "version": None}, None),
        ({}, None),
        ("Pot", None),
        ({"name": "a\x1bb"}, None),
        ({"name": "x" * 1000}, "x" * 100),
    ],
)
def test_a_device_is_called_what_it_calls_itself_if_that_can_be_shown(info: Any, title: str | None) -> None:
    assert title_of(members(clientInfo=info)) == title


def test_a_version_is_agreed_on_if_one_is_asked_for() -> None:
    assert read_version(members(protocolVersion="2025-06-18")) == "2025-06-18"
    assert read_version(members(protocolVersion="2026-07-28")) == "2025-11-25"
    assert read_version(members(protocolVersion=7)) is read_version({}) is None


def test_a_cursor_is_a_string_or_none() -> None:
    assert read_cursor(members(cursor="abc")) == "abc"
    assert read_cursor(members(cursor=None)) is read_cursor({}) is None
    assert read_cursor(members(cursor=7)) is not None
    assert len(read_cursor(members(cursor="x" * 1000)) or "") == 64


async def test_a_greeting_that_fits_in_no_other_way_is_only_the_hubs_own() -> None:
    room = Room()
    for number in range(32):
        room.sit(f"{number}" + "厨" * 60)
    visit = Visit(room, RelaySettings(frame_bytes=4096))
    told = json.loads(greeting(visit.agent, ME, "2024-11-05"))
    assert told.keys() == {"protocolVersion", "capabilities", "serverInfo"}


async def test_a_server_without_a_welcome_is_still_named() -> None:
    room = Room()
    room.sit("s1").welcome = b""
    told = json.loads(greeting(Visit(room).agent, ME, "2024-11-05"))
    assert told["responses"] == [{"server_id": "s1"}]


async def test_a_sign_of_life_names_who_is_here_and_who_is_not() -> None:
    room = Room()
    room.sit("s1")
    room.go_away(room.sit("s2"), "gone")
    told = json.loads(alive(Visit(room).agent))
    assert told["responses"] == [{"server_id": "s1"}]
    assert told["missing"] == [{"server_id": "s2", "reason": "gone"}]
