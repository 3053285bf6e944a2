"""Server entries translated into our keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.config.client_entries_to_hub import Entry, entries_of, has_place_for_servers, mapped_servers
from isthmus.config.client_formats import (
    CLAUDE_CODE,
    CURSOR,
    GEMINI,
    GOOSE,
    OPENCODE,
    OWN,
    STANDARD,
    VSCODE,
    ClientDialect,
)
from isthmus.config.files import ParsedFile
from isthmus.config.finding_codes import CODE_NOT_RUN, SERVER_MAP
from isthmus.config.findings import ConfigError, Finding
from isthmus.config.load import load
from isthmus.config.settings import Configuration
from isthmus.config.tables import call_seconds
from isthmus.upstream.server_settings import HttpSettings, JsonRpcSettings, Reach

# -- Where the entries of a file are found ------------------------------------------------------------------

HOME, CWD = Path("/home/me"), Path("/srv/shop")
X = {"command": "x"}


def found(
    table: dict[str, Any], dialect: ClientDialect = STANDARD, file: Path = CWD / "mcp.json"
) -> tuple[list[Entry], list[Finding]]:
    return entries_of(ParsedFile(file, table, dialect), HOME, CWD)


def paths(table: dict[str, Any], dialect: ClientDialect = STANDARD) -> dict[str, str]:
    entries, findings = found(table, dialect)
    assert findings == []
    return {entry.name: entry.place.path for entry in entries}


@pytest.mark.parametrize(
    ("dialect", "table", "expected"),
    [
        (STANDARD, {"mcpServers": {"a": X}}, {"a": "mcpServers.a"}),
        (STANDARD, {"mcpServers": {"a": X}, "servers": {"b": X}}, {"a": "mcpServers.a", "b": "servers.b"}),
        (STANDARD, {"mcp_servers": {"a": X}}, {"a": "mcp_servers.a"}),
        (STANDARD, {"context_servers": {"a": X}, "extensions": {"b": X}}, {"a": "context_servers.a"}),
        (STANDARD, {"mcp": {"servers": {"a": X}}}, {"a": "mcp.servers.a"}),
        (STANDARD, {"mcp": {"a": X}}, {"a": "mcp.a"}),
        (STANDARD, {"mcpServers": [{"name": "a", **X}, X]}, {"a": "mcpServers.0", "server-0832dc": "mcpServers.1"}),
        (STANDARD, {"mcpServers": None}, {}),
        (STANDARD, {"a": X, "b": {"url": "u"}}, {"a": "a", "b": "b"}),
        (STANDARD, {"a": X, "theme": "dark"}, {}),
        (OWN, {"a": X}, {}),
        (OPENCODE, {"mcp": {"servers": {"type": "local", "command": ["x"]}}}, {"servers": "mcp.servers"}),
        (OPENCODE, {"mcp": {"servers": {"a": {"type": "local", "command": ["x"]}}}}, {"a": "mcp.servers.a"}),
        (GEMINI, {"mcp": {"allowed": []}, "mcpServers": {"a": X}}, {"a": "mcpServers.a"}),
    ],
)
def test_servers_are_found_under_every_root(dialect: ClientDialect, table: dict[str, Any], expected: Any) -> None:
    assert paths(table, dialect) == expected
    assert has_place_for_servers(ParsedFile(CWD / "mcp.json", table, dialect)) == (bool(expected))


@pytest.mark.parametrize(("dialect", "value"), [(OWN, []), (OWN, 5), (STANDARD, "x")])
def test_something_else_under_a_root_refuses_the_file(dialect: ClientDialect, value: object) -> None:
    with pytest.raises(ConfigError, match="mcpServers must be a table, not"):
        found({"mcpServers": value}, dialect)


def test_servers_of_the_project_that_is_open_are_found_and_others_counted() -> None:
    table = {
        "mcpServers": {"everywhere": X},
        "projects": {
            "/srv/shop": {"mcpServers": {"here": X}},
            "/srv": {"mcpServers": {"around": X}},
            "/other": {"mcpServers": {"elsewhere": X}},
            "/empty": {"mcpServers": {}},
            "/odd": 5,
        },
    }
    entries, findings = found(table, CLAUDE_CODE)
    assert [entry.name for entry in entries] == ["everywhere", "here", "around"]
    assert entries[1].place.path == 'projects."/srv/shop".mcpServers.here'
    assert [str(finding) for finding in findings] == [
        "mcp.json: projects has servers for 1 other folders; the hub skips them"
    ]
    assert [entry.name for entry in found(table, CURSOR)[0]] == ["everywhere"]


def test_entries_that_only_the_client_can_run_are_left_out_and_reported_once() -> None:
    table = {"extensions": {"developer": {"type": "builtin"}, "memory": {"type": "platform"}, "a": X}}
    entries, [received] = found(table, GOOSE)
    assert [entry.name for entry in entries] == ["a"]
    assert str(received) == (
        "mcp.json: extensions has entries that only Goose can run; the hub skips them: developer, memory"
    )


@pytest.mark.parametrize(
    ("switches", "off"),
    [
        ({"excluded": ["a"]}, ["a"]),
        ({"allowed": ["a"]}, ["b"]),
        ({"allowed": ["a", "b"], "excluded": ["b"]}, ["b"]),
        ({"allowed": []}, []),
        ({"allowed": 5, "excluded": 5}, []),
        (5, []),
    ],
)
def test_servers_that_are_excluded_by_name_are_off(switches: object, off: list[str]) -> None:
    entries, _ = found({"mcp": switches, "mcpServers": {"a": X, "b": X}}, GEMINI)
    assert [entry.name for entry in entries if entry.fields.get("disabled")] == off


def test_an_input_that_would_run_a_command_is_reported_and_never_run() -> None:
    table = {
        "inputs": [{"id": "token", "type": "command", "command": "x"}, 5],
        "servers": {"a": {"url": "u", "headers": {"Authorization": "Bearer ${input:token}"}}},
    }
    [entry], _ = found(table, VSCODE)
    [received] = entry.findings
    assert received.code is CODE_NOT_RUN
    assert str(received) == (
        "mcp.json: servers.a.headers.Authorization has ${input:token}, which runs a command of the editor; "
        "the hub does not run it (set ISTHMUS_INPUT_TOKEN instead)"
    )


@pytest.mark.parametrize(
    ("file", "folder"),
    [
        (CWD / ".cursor" / "mcp.json", CWD),
        (CWD / "sub" / ".kiro" / "settings" / "mcp.json", CWD / "sub"),
        (HOME / ".cursor" / "mcp.json", CWD),
        (CWD / "mcp.json", CWD),
    ],
)
def test_relative_paths_are_seen_from_the_project(file: Path, folder: Path) -> None:
    table = {"mcpServers": {"a": {**X, "cwd": "sub", "envFile": ".env"}, "b": {**X, "cwd": "${env:W}/x"}}}
    [a, b], _ = found(table, CURSOR, file)
    assert a.fields["cwd"] == str(folder / "sub")
    assert a.fields["env_file"] == str(folder / ".env")
    assert b.fields["cwd"] == "${env:W}/x"


def test_unread_keys_are_kept_with_their_variables_unchanged() -> None:
    entry = {"command": "$TOOL", "note": "$HOME", "on": None, "cmd": None, "list": [1, None, 2.0]}
    [kept], _ = found({"mcpServers": {"a": entry}}, GEMINI)
    assert (kept.fields, kept.extra) == (
        {"command": "${TOOL}"},
        {"note": "$HOME", "on": None, "list": [1, None, 2.0]},
    )


# -- Servers and limits that the environment gives ----------------------------------------------------------


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
def test_an_unreadable_map_is_reported_without_its_text(text: str) -> None:
    entries, [received] = mapped_servers({"MCP_SERVER_MAP": text})
    assert (entries, received.code) == ([], SERVER_MAP)
    assert str(received) == "MCP_SERVER_MAP must be a JSON object of names and addresses, not another text"


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
def test_a_senseless_time_is_reported(text: str) -> None:
    seconds, [received] = call_seconds({"MCP_CALL_TIMEOUT": text})
    assert (seconds, str(received)) == (None, "MCP_CALL_TIMEOUT must be a positive number of seconds")


def test_an_empty_environment_is_not_reported() -> None:
    assert mapped_servers({"MCP_SERVER_MAP": " "}) == ([], [])
    assert call_seconds({}) == (None, [])
