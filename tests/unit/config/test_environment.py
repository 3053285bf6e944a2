"""Servers and limits that the environment gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.config.codes import SERVER_MAP
from isthmus.config.environment import call_seconds, mapped_servers
from isthmus.config.load import load
from isthmus.config.settings import Configuration
from isthmus.upstream.settings import HttpSettings, JsonRpcSettings, Reach


def loaded(folder: Path, **environment: str) -> Configuration:
    return load(None, environment, folder, folder / "home")


@pytest.mark.parametrize(
    ("url", "reach"),
    [
        ("http://tools:8001", JsonRpcSettings("http://tools:8001/rpc")),
        ("http://tools:8001/", JsonRpcSettings("http://tools:8001/rpc")),
        ("http://tools:8001/rpc", JsonRpcSettings("http://tools:8001/rpc")),
        ("http://tools:8001/base", JsonRpcSettings("http://tools:8001/base/rpc")),
        ("http://tools:8001?team=a/b", JsonRpcSettings("http://tools:8001/rpc?team=a/b")),
        ("http://tools:8001/base/?k=v", JsonRpcSettings("http://tools:8001/base/rpc?k=v")),
        ("http://tools:8001/rpc?k=v", JsonRpcSettings("http://tools:8001/rpc?k=v")),
        ("http://tools:8001/mcp", HttpSettings("http://tools:8001/mcp")),
        ("http://tools:8001/sse/", HttpSettings("http://tools:8001/sse/")),
    ],
)
def test_a_map_of_names_and_addresses_gives_servers(tmp_path: Path, url: str, reach: Reach) -> None:
    configuration = loaded(tmp_path, MCP_SERVER_MAP=json.dumps({"tools": url}))
    assert configuration.warnings == ()
    assert [(server.name, server.reach) for server in configuration.servers] == [("tools", reach)]


def test_a_file_wins_over_the_map(tmp_path: Path) -> None:
    (tmp_path / "isthmus.toml").write_text('[servers.a]\nrpc = "http://file/rpc"')
    configuration = loaded(tmp_path, MCP_SERVER_MAP='{"a": "http://map", "b": "http://map"}')
    assert configuration.warnings == ()
    assert [server.reach for server in configuration.servers] == [
        JsonRpcSettings("http://file/rpc"),
        JsonRpcSettings("http://map/rpc"),
    ]


@pytest.mark.parametrize("text", ["hunter22", "[]", '"x"', "{" * 10_000, "[" * 100_000])
def test_a_map_that_cannot_be_read_is_told_of_without_its_text(text: str) -> None:
    entries, [told] = mapped_servers({"MCP_SERVER_MAP": text})
    assert (entries, told.code) == ([], SERVER_MAP)
    assert str(told) == "MCP_SERVER_MAP must be a JSON object of names and addresses, not another text"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (5, "MCP_SERVER_MAP.a must be an address, not another value"),
        ("tools", "MCP_SERVER_MAP.a must start with http:// or https://, not 'tools/rpc'"),
        ("http://[", "MCP_SERVER_MAP.a must be an address, not a text that cannot be split (Invalid IPv6 URL)"),
    ],
)
def test_an_address_that_makes_no_sense_costs_only_itself(tmp_path: Path, url: object, message: str) -> None:
    configuration = loaded(tmp_path, MCP_SERVER_MAP=json.dumps({"a": url, "b": "http://b"}))
    assert [server.name for server in configuration.servers] == ["b"]
    assert [str(warning) for warning in configuration.warnings] == [message]


def test_a_call_may_take_as_long_as_the_environment_says(tmp_path: Path) -> None:
    (tmp_path / "isthmus.toml").write_text('[servers.a]\ncommand = "x"\n[servers.b]\ncommand = "x"\ntimeout = 5')
    configuration = loaded(tmp_path, MCP_CALL_TIMEOUT="61.5")
    assert [server.timeout for server in configuration.servers] == [61.5, 5]
    assert configuration.hub.limits.call_seconds == 61.5


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_time_that_makes_no_sense_is_told_of(text: str) -> None:
    seconds, [told] = call_seconds({"MCP_CALL_TIMEOUT": text})
    assert (seconds, str(told)) == (None, "MCP_CALL_TIMEOUT must be a positive number of seconds")


def test_nothing_in_the_environment_is_nothing_to_tell() -> None:
    assert mapped_servers({"MCP_SERVER_MAP": " "}) == ([], [])
    assert call_seconds({}) == (None, [])
