"""The files that people have: a sample of each client's, loading to the same servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from isthmus.config.client_formats import CLIENTS
from isthmus.config.files import read_document
from isthmus.config.load import load
from isthmus.config.settings import Configuration
from isthmus.core.catalog.tool_rules import NO_TOOL_RULES, ToolRules
from isthmus.core.settings import CALL_SECONDS
from isthmus.model.names import ServerName
from isthmus.upstream.server_settings import Carrier, HttpSettings, ServerSettings, StdioSettings

SAMPLES = Path(__file__).parent / "samples"
TOKEN = "s3arch-t0ken"
ENVIRONMENT = {"SEARCH_TOKEN": TOKEN, "ISTHMUS_INPUT_SEARCH_TOKEN": TOKEN}
SHOWN, HIDDEN = ("read_file", "list_directory"), ("write_file",)


@dataclass(frozen=True)
class Sample:
    """What one client's file can say besides the servers themselves."""

    path: str
    carrier: Carrier = "http"
    seconds: float = 45.0
    can_switch_off: bool = True
    rules: ToolRules = NO_TOOL_RULES
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What is kept of `files` although nobody here reads it."""


CASES = {
    "claude-desktop": Sample("Claude/claude_desktop_config.json", seconds=CALL_SECONDS, can_switch_off=False),
    "claude-code": Sample(".mcp.json", can_switch_off=False, extra={"alwaysLoad": True}),
    "cursor": Sample(".cursor/mcp.json", "auto", CALL_SECONDS, can_switch_off=False),
    "vscode": Sample(
        "Code/User/mcp.json", "auto", CALL_SECONDS, can_switch_off=False, extra={"dev": {"watch": "src/**/*.ts"}}
    ),
    "windsurf": Sample(".codeium/windsurf/mcp_config.json", "auto", CALL_SECONDS, rules=ToolRules(hidden=HIDDEN)),
    "cline": Sample("saoudrizwan.claude-dev/settings/cline_mcp_settings.json", extra={"autoApprove": ["read_file"]}),
    "roo": Sample(
        ".roo/mcp.json",
        rules=ToolRules(hidden=HIDDEN),
        extra={"alwaysAllow": ["read_file"], "watchPaths": ["build/index.js"]},
    ),
    "gemini": Sample(".gemini/settings.json", rules=ToolRules(only=SHOWN, hidden=HIDDEN), extra={"trust": False}),
    "codex": Sample(
        ".codex/config.toml",
        rules=ToolRules(only=SHOWN, hidden=HIDDEN),
        extra={"startup_timeout_sec": 20, "tools": {"read_file": {"approval_mode": "approve"}}},
    ),
    "goose": Sample(
        "goose/config.yaml",
        rules=ToolRules(only=SHOWN),
        extra={"name": "files", "description": "Files of the team", "bundled": None},
    ),
    "zed": Sample("zed/settings.json", "auto", extra={"source": "custom"}),
    "kiro": Sample(
        ".kiro/settings/mcp.json", "auto", rules=ToolRules(hidden=HIDDEN), extra={"autoApprove": ["read_file"]}
    ),
    "copilot": Sample(
        ".copilot/mcp-config.json", seconds=CALL_SECONDS, can_switch_off=False, rules=ToolRules(only=SHOWN)
    ),
    "opencode": Sample("opencode.jsonc", "auto"),
    "mcpproxy": Sample(
        ".mcpproxy/mcp_config.json",
        seconds=CALL_SECONDS,
        rules=ToolRules(only=SHOWN),
        extra={"quarantined": False, "isolation": {"enabled": False}},
    ),
    "fastmcp": Sample(
        "fastmcp.json",
        can_switch_off=False,
        extra={"keep_alive": True, "tools": {"read_file": {"name": "read"}}},
    ),
}


def file_of(client: str) -> Path:
    return SAMPLES / client / CASES[client].path


def loaded(client: str) -> Configuration:
    return load(file_of(client), ENVIRONMENT, SAMPLES / client, Path("/home/me"))


def search_of(client: str, sample: Sample) -> HttpSettings | StdioSettings:
    if client == "claude-desktop":  # it starts every server, and reaches others through a bridge
        bridge = ("-y", "mcp-remote", "https://search.example/mcp", "--header", f"Authorization: Bearer {TOKEN}")
        return StdioSettings("npx", bridge)
    return HttpSettings("https://search.example/mcp", {"Authorization": f"Bearer {TOKEN}"}, carrier=sample.carrier)


def test_there_is_a_sample_of_every_client() -> None:
    assert set(CASES) == set(CLIENTS)
    assert len(CASES) == 16


@pytest.mark.parametrize("client", CASES)
def test_a_file_is_known_by_where_it_lies(client: str) -> None:
    assert read_document(file_of(client)).dialect is CLIENTS[client]


@pytest.mark.parametrize("client", CASES)
def test_every_client_s_file_has_the_same_servers(client: str) -> None:
    sample, configuration = CASES[client], loaded(client)
    servers = {server.name: server for server in configuration.servers}
    files, search, clock = (servers.pop(ServerName(name)) for name in ("files", "search", "clock"))
    assert servers == {}
    assert files.reach == StdioSettings(
        "npx", ("-y", "@modelcontextprotocol/server-filesystem", "/srv/data"), {"LOG_LEVEL": "info"}
    )
    assert search.reach == search_of(client, sample)
    assert clock.reach == StdioSettings("uvx", ("mcp-server-time",))
    assert (files.disabled, search.disabled, clock.disabled) == (False, False, sample.can_switch_off)
    assert (files.timeout, search.timeout) == (sample.seconds, CALL_SECONDS)
    assert files.rules == sample.rules


@pytest.mark.parametrize("client", CASES)
def test_unread_keys_are_kept(client: str) -> None:
    [files] = [server for server in loaded(client).servers if server.name == "files"]
    assert files.extra == CASES[client].extra


@pytest.mark.parametrize("client", CASES)
def test_a_token_is_a_secret_however_it_came(client: str) -> None:
    [search] = [server for server in loaded(client).servers if server.name == "search"]
    assert TOKEN not in search.redact(f"refused: {TOKEN}")


@pytest.mark.parametrize("client", CASES)
def test_a_real_file_gives_no_reason_to_complain(client: str) -> None:
    received = [str(warning) for warning in loaded(client).warnings]
    expected = ["config.yaml: extensions has entries that only Goose can run; the hub skips them: developer"]
    assert received == (expected if client == "goose" else [])


def test_every_file_that_was_read_can_be_watched() -> None:
    folder = SAMPLES / "cursor"
    assert loaded("cursor").files == (
        folder / ".cursor/mcp.json",
        folder / ".cursor/.env",
        folder / ".env.files",
    )


def test_one_client_s_servers_are_not_another_s_settings() -> None:
    assert isinstance(loaded("codex").servers[0], ServerSettings)
    assert loaded("codex").hub.port == 8765
