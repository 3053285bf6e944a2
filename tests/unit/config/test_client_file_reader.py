"""Other clients' files, brought in by our own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.config import finding_codes
from isthmus.config.findings import ConfigError
from isthmus.config.load import load
from isthmus.config.settings import Configuration
from isthmus.upstream.server_settings import HttpSettings, StdioSettings


def written(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def servers(**commands: str) -> str:
    return json.dumps({"mcpServers": {name: {"command": command} for name, command in commands.items()}})


def loaded(folder: Path, text: str, **environment: str) -> Configuration:
    written(folder / "isthmus.toml", text)
    return load(None, environment, folder, folder / "home")


def warnings_of(configuration: Configuration) -> list[str]:
    return [str(warning) for warning in configuration.warnings]


def test_a_client_s_servers_come_in_by_its_name_and_a_file_s_by_its_path(tmp_path: Path) -> None:
    mine = written(tmp_path / "home/.cursor/mcp.json", servers(a="home"))
    project = written(tmp_path / ".cursor/mcp.json", servers(b="project"))
    other = written(tmp_path / "sub/.mcp.json", servers(c="other"))
    configuration = loaded(tmp_path, 'import = ["cursor", "sub/.mcp.json"]\n[servers.own]\ncommand = "own"')
    assert warnings_of(configuration) == []
    assert {server.name: server.reach for server in configuration.servers} == {
        "own": StdioSettings("own"),
        "b": StdioSettings("project"),
        "a": StdioSettings("home"),
        "c": StdioSettings("other", cwd=str(tmp_path / "sub")),
    }
    assert {tmp_path / "isthmus.toml", mine, project, other} <= set(configuration.files)


def test_each_file_is_read_in_its_own_dialect_with_its_own_env(tmp_path: Path) -> None:
    text = json.dumps({"mcpServers": {"a": {"url": "https://a/x", "timeout": 45, "headers": {"K": "${TOKEN}"}}}})
    written(tmp_path / ".roo/mcp.json", text)
    written(tmp_path / ".roo/.env", "TOKEN=from-beside")
    [server] = loaded(tmp_path, 'import = ["roo"]').servers
    assert server.timeout == 45
    assert server.reach == HttpSettings("https://a/x", {"K": "from-beside"}, carrier="sse")


def test_our_own_file_wins_and_of_the_others_the_first(tmp_path: Path) -> None:
    written(tmp_path / "one.json", servers(a="one", b="one", c="one"))
    written(tmp_path / "two.json", servers(a="two", b="two", c="one"))
    configuration = loaded(tmp_path, 'import = ["one.json", "two.json"]\n[servers.a]\ncommand = "own"')
    assert [server.reach for server in configuration.servers] == [
        StdioSettings("own"),
        StdioSettings("one"),
        StdioSettings("one"),
    ]
    assert warnings_of(configuration) == [
        f"two.json: mcpServers.b is already in {tmp_path / 'one.json'} and is skipped"
    ]
    assert configuration.warnings[0].code is finding_codes.TAKEN_NAME


def test_a_file_that_is_broken_costs_only_its_own_servers(tmp_path: Path) -> None:
    broken = written(tmp_path / "broken.json", "{")
    written(tmp_path / "odd.json", '{"mcpServers": 5}')
    written(tmp_path / "good.json", servers(a="x"))
    configuration = loaded(tmp_path, 'import = ["broken.json", "odd.json", "good.json", "gone.json"]')
    assert [server.name for server in configuration.servers] == ["a"]
    assert configuration.unread == (broken,)
    assert tmp_path / "gone.json" in configuration.files
    assert [warning.code for warning in configuration.warnings] == [
        finding_codes.SYNTAX,
        finding_codes.MISSING_FILE,
        finding_codes.BAD_VALUE,
    ]
    assert warnings_of(configuration)[1] == (
        f"isthmus.toml: import.3 must name a file that is there, not '{tmp_path / 'gone.json'}'"
    )


def test_a_client_that_is_not_installed_is_reported(tmp_path: Path) -> None:
    sought = f"{tmp_path}/.cursor/mcp.json, {tmp_path}/home/.cursor/mcp.json"
    assert warnings_of(loaded(tmp_path, 'import = ["cursr", "cursor"]')) == [
        "isthmus.toml: import.0 must be a client or a path, not 'cursr' (did you mean cursor?)",
        f"isthmus.toml: import.1 has no file of Cursor to read (looked for {sought})",
    ]


def test_all_clients_may_be_imported_at_once(tmp_path: Path) -> None:
    written(tmp_path / ".cursor/mcp.json", servers(a="x"))
    written(tmp_path / ".kiro/settings/mcp.json", servers(b="x"))
    configuration = loaded(tmp_path, 'import = ["all"]')
    assert ([server.name for server in configuration.servers], warnings_of(configuration)) == (["a", "b"], [])


@pytest.mark.parametrize("value", ["5", '"cursor"', "[5]"])
def test_imports_are_a_list_of_texts(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match=r"^isthmus.toml: import(.0)? must be a"):
        loaded(tmp_path, f"import = {value}")


def test_another_client_s_file_imports_nothing(tmp_path: Path) -> None:
    written(tmp_path / "one.json", servers(b="x"))
    written(tmp_path / "mcp.json", json.dumps({"mcpServers": {"a": {"command": "x"}}, "import": ["one.json"]}))
    configuration = load(None, {}, tmp_path, tmp_path / "home")
    assert [server.name for server in configuration.servers] == ["a"]


def test_where_everything_comes_from_is_known(tmp_path: Path) -> None:
    other = written(tmp_path / "one.json", servers(b="${RUN}"))
    configuration = loaded(
        tmp_path,
        'import = ["one.json"]\n[hub]\nport = 9000\n[log]\nlevel = "debug"\n[servers.a]\ncommand = "x"',
        RUN="npx",
        MCP_CALL_TIMEOUT="9",
        MCP_SERVER_MAP='{"c": "http://c"}',
    )
    file = tmp_path / "isthmus.toml"
    where = {path: (origin.file, origin.path, origin.borrowed) for path, origin in configuration.origins.items()}
    assert where == {
        "limits.call_seconds": (None, "MCP_CALL_TIMEOUT", ()),
        "hub.port": (file, "hub.port", ()),
        "hub.log_level": (file, "log.level", ()),
        "servers.a": (file, "servers.a", ()),
        "servers.a.command": (file, "servers.a.command", ()),
        "servers.b": (other, "mcpServers.b", ()),
        "servers.b.command": (other, "mcpServers.b.command", ("RUN",)),
        "servers.c": (None, "MCP_SERVER_MAP.c", ()),
        "servers.c.rpc": (None, "MCP_SERVER_MAP.c", ()),
    }
