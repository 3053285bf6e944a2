"""Where clients' files lie, and whose a file is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from isthmus.config.dialects import clients
from isthmus.config.dialects.clients import CLIENTS, OWN, STANDARD, Dialect
from isthmus.config.dialects.places import dialect_of, places_of

HOME, CWD = Path("/home/me"), Path("/srv/shop")


@pytest.mark.parametrize(
    ("path", "table", "dialect"),
    [
        ("isthmus.toml", {}, OWN),
        ("isthmus.yaml", {"extensions": {}}, OWN),
        (".cursor/isthmus.json", {}, OWN),
        ("hub.toml", {"servers": {}}, OWN),
        ("hub.yaml", {"servers": {}}, OWN),
        ("hub.toml", {"mcp_servers": {}}, clients.CODEX),
        ("hub.toml", {"mcp_servers": {}, "hub": {}}, OWN),
        (".codex/hub.toml", {"servers": {}}, OWN),
        ("any.yaml", {"extensions": {}}, clients.GOOSE),
        ("any.json", {"context_servers": {}}, clients.ZED),
        ("any.json", {"mcp_servers": []}, STANDARD),
        ("mcp.json", {"mcpServers": {}}, STANDARD),
        ("goose/mcp.json", {"mcpServers": {}}, STANDARD),
        (".github/mcp.json", {"mcpServers": {}}, clients.COPILOT),
        (".vscode/mcp.json", {"servers": {}}, clients.VSCODE),
        (".vscode/mcp.json", {"a": {"command": "x"}}, STANDARD),
    ],
)
def test_a_file_tells_whose_it_is(path: str, table: dict[str, object], dialect: Dialect) -> None:
    assert dialect_of(CWD / path, table) is dialect


@pytest.mark.parametrize("client", CLIENTS.values(), ids=lambda client: client.name)
def test_every_client_has_a_place_and_its_files_are_known_there(client: Dialect) -> None:
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
    assert places_of(clients.CLAUDE_DESKTOP, HOME, CWD, environment) == [Path(place)]


def test_the_project_s_file_comes_first() -> None:
    assert places_of(clients.CURSOR, HOME, CWD, {}) == [CWD / ".cursor/mcp.json", HOME / ".cursor/mcp.json"]
