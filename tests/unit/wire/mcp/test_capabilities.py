"""Capabilities of servers, and those shown to callers."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import msgspec
import pytest

from isthmus.model.features import Ability
from isthmus.wire.mcp.messages import (
    APP_TYPE,
    APPS,
    MODERN_EXTENSIONS,
    ServerCapabilities,
    read_client_capabilities,
    write_client_capabilities,
    write_server_capabilities,
)

ABILITIES: tuple[Ability, ...] = get_args(Ability)


def read(received: dict[str, Any]) -> ServerCapabilities:
    return msgspec.json.decode(msgspec.json.encode(received), type=ServerCapabilities)


@pytest.mark.parametrize(
    ("received", "abilities"),
    [
        ({}, set()),
        ({"tools": {}}, {"tools"}),
        ({"tools": None, "prompts": {"listChanged": None}}, {"prompts"}),
        ({"resources": {}}, {"resources"}),
        ({"logging": True, "completions": False, "tools": {"listChanged": "yes"}}, {"logging", "tools"}),
        ({"resources": True, "prompts": ["x"], "tools": 7}, {"resources"}),
        ({"resources": {"subscribe": True}}, {"resources", "subscribe"}),
        ({"resources": {"subscribe": False}}, {"resources"}),
        ({"completions": {}, "logging": {}, "experimental": {"x": 1}}, {"completions", "logging"}),
        ({"extensions": {"io.modelcontextprotocol/ui": {}}}, {"apps"}),
        ({"extensions": {"io.modelcontextprotocol/tasks": {}}}, {"task_handles"}),
        ({"tasks": {"cancel": {}, "list": {}, "requests": {"tools": {"call": {}}}}}, {"tasks"}),
        ({"tasks": {"cancel": {}, "requests": {"tools": {}}}}, set()),
        ({"tasks": {"requests": {"tools": {"call": {}}}}}, set()),
        ({"tasks": {"cancel": {}, "requests": ["tools"]}}, set()),
        ({"extensions": {"com.example/own": {}}}, set()),
        ({"tools": {}, "extensions": ["io.modelcontextprotocol/ui"]}, {"tools"}),
        ({"tools": {}, "extensions": None}, {"tools"}),
    ],
)
def test_a_servers_abilities_follow_its_capabilities(received: dict[str, Any], abilities: set[Ability]) -> None:
    assert read(received).abilities() == abilities


@pytest.mark.parametrize(
    ("received", "announces"),
    [
        ({"tools": {}}, False),
        ({"tools": {"listChanged": True}}, True),
        ({"prompts": {"listChanged": True}}, True),
        ({"resources": {"subscribe": True}}, True),
        ({"logging": {}}, False),
    ],
)
def test_a_server_announces_changes_if_it_says_so_of_any_list(received: dict[str, Any], *, announces: bool) -> None:
    assert read(received).announces_changes is announces


def test_callers_get_the_capabilities_of_the_servers_and_no_others() -> None:
    for size in range(len(ABILITIES) + 1):
        for chosen in itertools.combinations(ABILITIES, size):
            received = write_server_capabilities(frozenset(chosen))
            hidden = {"task_list"} if "resources" in chosen else {"subscribe", "task_list"}  # nothing to subscribe to
            assert ("list" in received.get("tasks", ())) == ({"tasks", "task_list"} <= set(chosen))
            assert read(received).abilities() == set(chosen) - hidden
            assert all(
                received[topic]["listChanged"] for topic in ("tools", "prompts", "resources") if topic in received
            )


def test_an_extension_is_advertised_only_if_all_that_it_needs_is_passed_on() -> None:
    received = write_server_capabilities({"tools", "apps"})
    assert received["extensions"] == {"io.modelcontextprotocol/ui": {}}
    assert "extensions" not in write_server_capabilities({"tools"})


TASKS = "io.modelcontextprotocol/tasks"


def client(**received: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(received))


def test_the_extensions_that_a_client_knows_are_words_of_its_profile() -> None:
    shown = {"mimeTypes": [APP_TYPE]}
    received = client(extensions={TASKS: {}, APPS: shown, "com.example/own": {}}, roots={})
    assert read_client_capabilities(received) == {"roots", f"extensions.{APPS}"}
    client_caps = read_client_capabilities(received, MODERN_EXTENSIONS)
    assert client_caps == {"roots", f"extensions.{APPS}", f"extensions.{TASKS}"}
    assert write_client_capabilities(client_caps) == {"roots": {}, "extensions": {TASKS: {}, APPS: shown}}


@pytest.mark.parametrize("extensions", [{APPS: {}}, {APPS: {"mimeTypes": ["text/plain"]}}, {}, [APPS], None])
def test_a_client_without_apps_is_not_advertised_as_having_them(extensions: object) -> None:
    assert read_client_capabilities(client(extensions=extensions)) == frozenset()


def test_servers_get_no_promise_of_roots_notifications() -> None:
    client_caps = read_client_capabilities(client(roots={"listChanged": True}, elicitation={"form": {}, "url": {}}))
    assert write_client_capabilities(client_caps) == {"roots": {}, "elicitation": {"form": {}, "url": {}}}


def test_client_capabilities_hold_only_those_of_the_protocol() -> None:
    made_up: dict[str, Any] = {f"x{number}": {} for number in range(50)}
    received = client(
        elicitation={**made_up, "url": {}}, sampling={"tools": {}, "context": {}, **made_up}, more=made_up
    )
    assert read_client_capabilities(received) == {
        "elicitation",
        "elicitation.url",
        "sampling",
        "sampling.tools",
        "sampling.context",
    }
