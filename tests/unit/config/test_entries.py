"""Where the entries of a file are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.config.codes import CODE_NOT_RUN
from isthmus.config.dialects.clients import CLAUDE_CODE, CURSOR, GEMINI, GOOSE, OPENCODE, VSCODE
from isthmus.config.dialects.dialect import OWN, STANDARD, Dialect
from isthmus.config.entries import Entry, entries_of, has_place_for_servers
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError, Finding

HOME, CWD = Path("/home/me"), Path("/srv/shop")
X = {"command": "x"}


def found(
    table: dict[str, Any], dialect: Dialect = STANDARD, file: Path = CWD / "mcp.json"
) -> tuple[list[Entry], list[Finding]]:
    return entries_of(Document(file, table, dialect), HOME, CWD)


def paths(table: dict[str, Any], dialect: Dialect = STANDARD) -> dict[str, str]:
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
def test_servers_are_found_under_every_root(dialect: Dialect, table: dict[str, Any], expected: Any) -> None:
    assert paths(table, dialect) == expected
    assert has_place_for_servers(Document(CWD / "mcp.json", table, dialect)) == (bool(expected))


@pytest.mark.parametrize(("dialect", "value"), [(OWN, []), (OWN, 5), (STANDARD, "x")])
def test_something_else_under_a_root_refuses_the_file(dialect: Dialect, value: object) -> None:
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
        "mcp.json: projects has servers for 1 other folders, which are left out"
    ]
    assert [entry.name for entry in found(table, CURSOR)[0]] == ["everywhere"]


def test_what_only_the_client_can_run_is_left_out_and_told_of_once() -> None:
    table = {"extensions": {"developer": {"type": "builtin"}, "memory": {"type": "platform"}, "a": X}}
    entries, [told] = found(table, GOOSE)
    assert [entry.name for entry in entries] == ["a"]
    assert str(told) == (
        "mcp.json: extensions has what only Goose itself can run, which is left out: developer, memory"
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


def test_an_input_that_would_run_a_command_is_told_of_and_never_run() -> None:
    table = {
        "inputs": [{"id": "token", "type": "command", "command": "x"}, 5],
        "servers": {"a": {"url": "u", "headers": {"Authorization": "Bearer ${input:token}"}}},
    }
    [entry], _ = found(table, VSCODE)
    [told] = entry.findings
    assert told.code is CODE_NOT_RUN
    assert str(told) == (
        "mcp.json: servers.a.headers.Authorization has ${input:token}, which runs a command of the editor, "
        "and reading a file runs none (set ISTHMUS_INPUT_TOKEN instead)"
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


def test_what_nobody_reads_is_kept_with_its_variables_as_they_are() -> None:
    entry = {"command": "$TOOL", "note": "$HOME", "on": None, "cmd": None, "list": [1, None, 2.0]}
    [kept], _ = found({"mcpServers": {"a": entry}}, GEMINI)
    assert (kept.fields, kept.extra) == (
        {"command": "${TOOL}"},
        {"note": "$HOME", "on": None, "list": [1, None, 2.0]},
    )
