"""The handshake of the earlier era, both ends of it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from isthmus.wire.mcp import legacy
from isthmus.wire.mcp.messages import Implementation

ME = Implementation("isthmus", "1")


def test_the_hub_asks_for_the_newest_version_and_claims_nothing() -> None:
    assert json.loads(legacy.initialize_params(ME)) == {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "isthmus", "version": "1"},
    }


@pytest.mark.parametrize("version", legacy.VERSIONS)
def test_an_initialize_result_is_read_with_its_capabilities(version: str) -> None:
    received = {"protocolVersion": version, "capabilities": {"tools": {}, "resources": {"subscribe": True}}, "new": 1}
    welcome = legacy.read_initialize_result(json.dumps(received).encode())
    assert isinstance(welcome, legacy.InitializeResult)
    assert welcome.capabilities.abilities() == {"tools", "resources", "subscribe"}


@pytest.mark.parametrize(
    ("received", "words"),
    [
        ([], "invalid result"),
        ({"protocolVersion": 7}, "invalid result"),
        ({"capabilities": {"tools": {}}}, "it speaks MCP ''"),
        ({"protocolVersion": "2019-01-01"}, "it speaks MCP '2019-01-01'"),
    ],
)
def test_an_invalid_initialize_result_is_reported(received: object, words: str) -> None:
    welcome = legacy.read_initialize_result(json.dumps(received).encode())
    assert isinstance(welcome, str)
    assert words in welcome


@pytest.mark.parametrize(
    ("received", "version"), [({"protocolVersion": "x"}, "x"), ({"protocolVersion": 7}, None), ({}, None)]
)
def test_a_callers_version_is_read(received: dict[str, Any], version: str | None) -> None:
    members = {key: msgspec.Raw(json.dumps(value).encode()) for key, value in received.items()}
    assert legacy.requested_version(members) == version


def test_a_spoken_version_is_agreed_to_and_another_answered_with_the_newest() -> None:
    assert [legacy.negotiate(version) for version in legacy.VERSIONS] == list(legacy.VERSIONS)
    assert legacy.negotiate("2026-07-28") == legacy.LATEST


def test_the_initialize_result_has_the_servers_capabilities() -> None:
    response = json.loads(legacy.initialize_result("2025-06-18", ME, frozenset({"prompts"})))
    assert response["capabilities"] == {"prompts": {"listChanged": True}}
    assert response["protocolVersion"] == "2025-06-18"


def test_a_list_names_missing_servers_only_if_there_are_some() -> None:
    assert legacy.list_result("prompts", b"[1]", None) == b'{"prompts":[1]}'
    assert legacy.list_result("prompts", b"[]", b'{"m":1}') == b'{"prompts":[],"_meta":{"m":1}}'


@pytest.mark.parametrize(
    ("info", "who"),
    [
        ({"name": "calc", "version": "1.2", "title": "Calculator"}, Implementation("calc", "1.2", "Calculator")),
        ({"name": "calc"}, Implementation("calc", "")),
        ({"name": "calc", "version": 7, "title": ["x"]}, Implementation("calc", "")),
        ({"name": "x" * 5000, "version": "y" * 5000}, Implementation("x" * 200, "y" * 200)),
        ({"name": " \x1b[2Jcalc\n", "version": "1"}, Implementation("[2Jcalc", "1")),
        ({"name": ""}, None),
        ({"name": 7}, None),
        ({}, None),
        ([], None),
        ("calc", None),
        (None, None),
    ],
)
def test_a_servers_info_is_read_as_far_as_possible(info: object, who: Implementation | None) -> None:
    received = {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": info}
    welcome = legacy.read_initialize_result(json.dumps(received).encode())
    assert isinstance(welcome, legacy.InitializeResult)
    assert legacy.read_server_info(welcome.serverInfo) == who


def test_a_server_need_not_send_its_info() -> None:
    welcome = legacy.read_initialize_result(b'{"protocolVersion":"2024-11-05"}')
    assert isinstance(welcome, legacy.InitializeResult)
    assert legacy.read_server_info(welcome.serverInfo) is None
