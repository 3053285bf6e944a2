"""Addresses of a hub, for this machine and for the relay's two ends."""

from __future__ import annotations

import pytest

from isthmus.cli.addresses import configured_origin, device_address, relay_base, server_address
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.config.settings import HubSettings, local_origin


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://127.0.0.1:1"),
        ("::1", "http://[::1]:1"),
        ("[::1]", "http://[::1]:1"),
        ("hub.example", "http://hub.example:1"),
    ],
)
def test_a_hub_is_found_from_this_machine(host: str, origin: str) -> None:
    assert local_origin(host, 1) == origin
    assert configured_origin(HubSettings(host=host, port=1)) == origin


def test_a_port_that_is_left_open_is_known_to_nobody() -> None:
    with pytest.raises(CommandFailed, match="the configuration has port 0") as failed:
        configured_origin(HubSettings(port=0))
    assert failed.value.exit is Exit.USAGE


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("ws://hub:1", "ws://hub:1"),
        ("wss://hub/", "wss://hub"),
        ("http://hub:1", "ws://hub:1"),
        ("https://hub/under/", "wss://hub/under"),
        ("wss://hub/under/mcp_endpoint/mcp/", "wss://hub/under"),
        ("ws://[::1]:1", "ws://[::1]:1"),
    ],
)
def test_any_address_of_the_hub_will_do(url: str, base: str) -> None:
    assert relay_base(url) == base


@pytest.mark.parametrize(
    "url",
    ["", "hub", "hub:1", "ftp://hub", "ws://", "ws://hub:x", "ws://hub?token=a", "ws://u:p@hub", "ws://[", "ws://h u"],
)
def test_what_is_no_address_is_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(CommandFailed, match="--url must be the hub's address") as failed:
        relay_base(url)
    assert failed.value.exit is Exit.USAGE
    assert "token" not in failed.value.message


def test_the_two_ends_of_the_relay() -> None:
    assert server_address("ws://h", "a+b/c=") == "ws://h/mcp_endpoint/mcp/?token=a%2Bb%2Fc%3D"
    assert server_address("ws://h", "t", "the oven") == "ws://h/mcp_endpoint/mcp/?token=t&server_id=the%20oven"
    assert device_address("ws://h", "t") == "ws://h/mcp_endpoint/call/?token=t"
