"""How each client writes servers and variables, and where its files are."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.config.client_entries_to_hub import Entry, entry_of
from isthmus.config.client_formats import (
    CLAUDE_DESKTOP,
    CLIENTS,
    CODEX,
    COPILOT,
    CURSOR,
    DIALECTS,
    FASTMCP,
    GEMINI,
    GOOSE,
    MCPPROXY,
    OPENCODE,
    OWN,
    STANDARD,
    VSCODE,
    ZED,
    ClientDialect,
    WorkspaceContext,
    dialect_of,
    inputs_used,
    places_of,
    with_hub_variables,
)
from isthmus.config.finding_codes import CODE_NOT_RUN
from isthmus.config.findings import Place

PLACE = Place(Path("/etc/mcp.json"), "mcpServers.a")


def entry(fields: dict[str, Any], dialect: ClientDialect = STANDARD) -> Entry:
    return entry_of("a", fields, PLACE, dialect)


@pytest.mark.parametrize(
    ("dialect", "fields", "ours"),
    [
        (STANDARD, {"serverUrl": "u"}, {"url": "u"}),
        (STANDARD, {"endpoint": "u"}, {"url": "u"}),
        (STANDARD, {"command": None, "url": "u"}, {"url": "u"}),
        (GEMINI, {"httpUrl": "new", "url": "old"}, {"url": "new", "type": "http"}),
        (GEMINI, {"httpUrl": "new", "type": "sse"}, {"url": "new", "type": "sse"}),
        (GOOSE, {"uri": "u", "type": "sse"}, {"url": "u", "type": "sse"}),
        (GOOSE, {"cmd": "x", "envs": {"A": "b"}}, {"command": "x", "env": {"A": "b"}}),
        (GOOSE, {"cmd": "x", "env_keys": ["K"]}, {"command": "x", "env": {"K": "${K}"}}),
        (GOOSE, {"enabled": False, "config": {"cmd": "x"}}, {"enabled": False, "command": "x"}),
        (OPENCODE, {"command": ["x", "-y"]}, {"command": "x", "args": ["-y"]}),
        (OPENCODE, {"command": ["x", "-y"], "args": ["z"]}, {"command": "x", "args": ["-y", "z"]}),
        (OPENCODE, {"environment": {"A": "b"}}, {"env": {"A": "b"}}),
        (OPENCODE, {"url": "u", "timeout": {"startup": 5, "request": 9}}, {"url": "u", "timeout": 9}),
        (ZED, {"command": {"path": "x", "args": ["y"], "env": {}}}, {"command": "x", "args": ["y"], "env": {}}),
        (MCPPROXY, {"working_dir": "/w", "protocol": "stdio"}, {"cwd": "/w", "type": "stdio"}),
        (MCPPROXY, {"quarantined": True}, {"disabled": True}),
        (COPILOT, {"tools": ["*"]}, {"include_tools": ["*"]}),
        (COPILOT, {"tools": {"a": {}}}, {}),
        (FASTMCP, {"auth": "token"}, {"headers": {"Authorization": "Bearer token"}}),
        (FASTMCP, {"auth": "oauth"}, {}),
        (CODEX, {"tool_timeout_sec": 5}, {"timeout": 5}),
        (CODEX, {"http_headers": {"A": "b"}}, {"headers": {"A": "b"}}),
        (
            CODEX,
            {"http_headers": {"A": "b"}, "env_http_headers": {"B": "VAR"}},
            {"headers": {"A": "b", "B": "${VAR}"}},
        ),
        (CODEX, {"bearer_token_env_var": "T"}, {"headers": {"Authorization": "Bearer ${T}"}}),
        (CODEX, {"env_vars": ["A", {"name": "B", "source": "local"}]}, {"env": {"A": "${A}", "B": "${B}"}}),
        (STANDARD, {"headers": ["A: b", "C:d: e"]}, {"headers": {"A": "b", "C": "d: e"}}),
        (STANDARD, {"transport": {"type": "sse", "url": "u"}}, {"type": "sse", "url": "u"}),
        (STANDARD, {"type": "http", "transport": {"type": "sse"}}, {"type": "http"}),
    ],
)
def test_a_client_s_entry_is_put_into_our_words(dialect: ClientDialect, fields: Any, ours: dict[str, Any]) -> None:
    assert entry(fields, dialect).fields == ours


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    "fields",
    [
        {"env_vars": [5]},
        {"env_keys": "K"},
        {"env_http_headers": {"A": 5}},
        {"bearer_token_env_var": 5},
        {"headers": ["no colon"], "env": [], "env_keys": ["K"]},
        {"command": [], "transport": [], "timeout": [], "config": 5, "tools": 5, "auth": {}},
        {"command": [5, "x"]},
    ],
)
def test_an_unexpected_shape_is_left_for_the_checks(dialect: ClientDialect, fields: dict[str, Any]) -> None:
    entry(fields, dialect)


def test_where_a_key_was_written_is_remembered() -> None:
    made = entry({"transport": {"url": "u"}, "cmd": ["x", "y"], "bearer_token_env_var": "T"})
    assert made.at("url").path == "mcpServers.a.transport.url"
    assert made.at("command").path == "mcpServers.a.cmd"
    assert made.at("args", 0).path == "mcpServers.a.cmd.0"
    assert made.at("headers", "Authorization").path == "mcpServers.a.bearer_token_env_var.Authorization"
    assert made.at("env").path == "mcpServers.a.env"


def test_settings_of_one_client_are_kept_unchanged() -> None:
    made = entry({"command": "x", "isolation": {"docker": True}, "tools": {"a": 1}, "cache": 5}, MCPPROXY)
    assert made.fields == {"command": "x"}
    assert made.extra == {"isolation": {"docker": True}, "tools": {"a": 1}, "cache": 5}


@pytest.mark.parametrize("key", ["headersHelper", "http_headers_helper"])
def test_a_program_that_prints_headers_is_reported_and_never_run(key: str) -> None:
    made = entry({"url": "u", key: "touch /tmp/ran"})
    [received] = made.findings
    assert received.code is CODE_NOT_RUN
    assert str(received) == f"mcp.json: mcpServers.a.{key} is a program that prints headers; the hub does not run it"
    assert made.extra == {key: "touch /tmp/ran"}


# -- variables of clients ---------------------------------------------------------------------------------------


AROUND = WorkspaceContext(
    Path("/srv/shop"),
    Path("/home/me"),
    {"team": {"id": "team", "default": "blue"}, "odd": {"default": "{x}"}, "none": {}},
)


@pytest.mark.parametrize(
    ("dialect", "text", "ours"),
    [
        (CURSOR, "${userHome}/bin", "/home/me/bin"),
        (CURSOR, "${workspaceFolder}|${workspaceRoot}|${cwd}", "/srv/shop|/srv/shop|/srv/shop"),
        (CURSOR, "${workspaceFolderBasename}", "shop"),
        (CURSOR, "a${pathSeparator}b${/}c", f"a{os.sep}b{os.sep}c"),
        (CURSOR, "${env:TOKEN} ${VAR:-x} ${file:/a}", "${env:TOKEN} ${VAR:-x} ${file:/a}"),
        (CURSOR, "$HOME %PATH% {env:X}", "$HOME %PATH% {env:X}"),
        (GEMINI, "$TOKEN ${TOKEN} %TOKEN% $5 100%", "${TOKEN} ${TOKEN} ${TOKEN} $5 100%"),
        (OPENCODE, "{env:TOKEN} {file:~/x} ${env:A}", "${TOKEN} ${file:~/x} ${env:A}"),
        (VSCODE, "${input:api-key}", "${ISTHMUS_INPUT_API_KEY}"),
        (VSCODE, "${input:team}", "${ISTHMUS_INPUT_TEAM:-blue}"),
        (VSCODE, "${input:odd}${input:none}", "${ISTHMUS_INPUT_ODD}${ISTHMUS_INPUT_NONE}"),
    ],
)
def test_every_way_to_write_a_variable_is_put_into_ours(dialect: ClientDialect, text: str, ours: str) -> None:
    assert with_hub_variables(text, dialect, AROUND) == ours


def test_the_inputs_of_a_text_are_named() -> None:
    assert inputs_used("${input:a} ${input:b-c} ${env:input}") == ["a", "b-c"]


@given(st.text(alphabet="${}%:/-AB input"), st.sampled_from(list(DIALECTS.values())))
def test_no_text_is_too_odd(text: str, dialect: ClientDialect) -> None:
    with_hub_variables(text, dialect, AROUND)


# -- where the files are ----------------------------------------------------------------------------------------


HOME, CWD = Path("/home/me"), Path("/srv/shop")


@pytest.mark.parametrize(
    ("path", "table", "dialect"),
    [
        ("isthmus.toml", {}, OWN),
        ("isthmus.yaml", {"extensions": {}}, OWN),
        (".cursor/isthmus.json", {}, OWN),
        ("hub.toml", {"servers": {}}, OWN),
        ("hub.yaml", {"servers": {}}, OWN),
        ("hub.toml", {"mcp_servers": {}}, CODEX),
        ("hub.toml", {"mcp_servers": {}, "hub": {}}, OWN),
        (".codex/hub.toml", {"servers": {}}, OWN),
        ("any.yaml", {"extensions": {}}, GOOSE),
        ("any.json", {"context_servers": {}}, ZED),
        ("any.json", {"mcp_servers": []}, STANDARD),
        ("mcp.json", {"mcpServers": {}}, STANDARD),
        ("goose/mcp.json", {"mcpServers": {}}, STANDARD),
        (".github/mcp.json", {"mcpServers": {}}, COPILOT),
        (".vscode/mcp.json", {"servers": {}}, VSCODE),
        (".vscode/mcp.json", {"a": {"command": "x"}}, STANDARD),
    ],
)
def test_a_file_reveals_its_client(path: str, table: dict[str, object], dialect: ClientDialect) -> None:
    assert dialect_of(CWD / path, table) is dialect


@pytest.mark.parametrize("client", CLIENTS.values(), ids=lambda client: client.name)
def test_every_client_has_a_place_and_its_files_are_known_there(client: ClientDialect) -> None:
    places = places_of(client, HOME, CWD, {})
    assert places
    table: dict[str, object] = {client.roots[0][0]: {}}
    assert {dialect_of(place, table) for place in places} == {client}


@pytest.mark.parametrize(
    ("platform", "environment", "place"),
    [
        ("linux", {}, "/home/me/.config/Claude/claude_desktop_config.json"),
        ("linux", {"XDG_CONFIG_HOME": "/xdg"}, "/xdg/Claude/claude_desktop_config.json"),
        ("darwin", {}, "/home/me/Library/Application Support/Claude/claude_desktop_config.json"),
        ("win32", {"APPDATA": "/appdata"}, "/appdata/Claude/claude_desktop_config.json"),
        ("win32", {}, "/home/me/AppData/Roaming/Claude/claude_desktop_config.json"),
    ],
)
def test_each_system_keeps_settings_elsewhere(
    monkeypatch: pytest.MonkeyPatch, platform: str, environment: dict[str, str], place: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert places_of(CLAUDE_DESKTOP, HOME, CWD, environment) == [Path(place)]


def test_the_project_s_file_comes_first() -> None:
    assert places_of(CURSOR, HOME, CWD, {}) == [CWD / ".cursor/mcp.json", HOME / ".cursor/mcp.json"]
