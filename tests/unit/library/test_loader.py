"""Where an `mcp.json` is looked for, what of it is understood, and what is told of the rest."""

from __future__ import annotations

import json
import logging
import pwd
from pathlib import Path
from typing import Any

import pytest

from isthmus.core.settings import Limits
from isthmus.library.errors import ConfigurationError
from isthmus.library.loader import FILE_VARIABLE, MCPConfigLoader
from isthmus.library.servers import MCPServerConfig
from isthmus.library.service import ToolService
from isthmus.upstream.settings import HttpSettings, StdioSettings

STDIO = {"transport": "stdio", "command": "npx", "args": ["-y", "server"], "env": {"LEVEL": "low"}}
MOST = Limits().hard_seconds
SSE = {"transport": "sse", "url": "http://localhost:8080/sse", "timeout": 60}


@pytest.fixture(autouse=True)
def nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv(FILE_VARIABLE, raising=False)


def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a user of whom the system knows nothing, as in many containers."""

    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def write(file: Path, **servers: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"mcpServers": servers}))
    return file


def only(data: Any) -> MCPServerConfig:
    (found,) = MCPConfigLoader._parse_config({"mcpServers": {"one": data}})
    return found


def names(found: list[MCPServerConfig]) -> list[str]:
    return [config.name for config in found]


# -- where ---------------------------------------------------------------------------------------------------


def test_the_environment_comes_first_then_the_argument_the_workspace_and_home(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = write(tmp_path / "named.json", named=STDIO)
    given = write(tmp_path / "given.json", given=STDIO)
    beside = write(workspace / "mcp.json", beside=STDIO)
    write(Path.home() / ".excelmanus" / "mcp.json", home=STDIO)
    monkeypatch.setenv(FILE_VARIABLE, str(named))
    assert names(MCPConfigLoader.load(str(given), str(workspace))) == ["named"]
    monkeypatch.delenv(FILE_VARIABLE)
    assert names(MCPConfigLoader.load(str(given), str(workspace))) == ["given"]
    assert names(MCPConfigLoader.load(None, str(workspace))) == ["beside"]
    beside.unlink()
    assert names(MCPConfigLoader.load(workspace_root=workspace)) == ["home"]


def test_without_any_file_there_are_no_servers_and_nothing_is_said(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert MCPConfigLoader.load(workspace_root=str(workspace)) == []
    assert caplog.records == []


def test_a_named_file_that_is_not_there_is_told_and_the_next_is_read(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(FILE_VARIABLE, "/nowhere/mcp.json")
    write(workspace / "mcp.json", beside=STDIO)
    assert names(MCPConfigLoader.load("also/missing.json", workspace)) == ["beside"]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert FILE_VARIABLE in warnings[0]
    assert "/nowhere/mcp.json" in warnings[0]
    assert f"config_path names {Path.cwd() / 'also/missing.json'}" in warnings[1]


@pytest.mark.parametrize("kind", ["folder", "link to nothing", "link to itself"])
def test_what_is_there_and_is_no_file_is_told_and_the_next_is_read(
    kind: str, workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = workspace / "mcp.json"
    if kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(file if kind == "link to itself" else workspace / "nothing.json")
    write(Path.home() / ".excelmanus" / "mcp.json", home=STDIO)
    assert names(MCPConfigLoader.load(workspace_root=workspace)) == ["home"]
    (told,) = caplog.records
    assert told.levelno == logging.WARNING
    assert f"{file} is not a file: looking elsewhere for MCP servers" in told.getMessage()


@pytest.mark.parametrize("source", ["environment", "argument", "workspace"])
def test_a_path_that_no_file_can_have_is_as_one_that_is_not_there(
    source: str, workspace: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(Path.home() / ".excelmanus" / "mcp.json", home=STDIO)
    long = "x" * 5000
    if source == "environment":
        monkeypatch.setenv(FILE_VARIABLE, long)
    found = MCPConfigLoader.load(long if source == "argument" else None, long if source == "workspace" else workspace)
    assert names(found) == ["home"]
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == (source != "workspace")
    assert all("which is not a file" in line for line in told)


@pytest.mark.parametrize("text", ["{", "[]", "null", "\xff"])
def test_a_file_that_cannot_be_read_is_an_error_in_the_log_and_no_servers(
    text: str, workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (workspace / "mcp.json").write_bytes(text.encode("latin-1"))
    assert MCPConfigLoader.load(workspace_root=workspace) == []
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.name == "isthmus.library.loader"
    assert "mcp.json" in record.getMessage()


@pytest.mark.parametrize("data", [[], 3, None])
def test_contents_that_hold_no_servers_are_an_error_in_the_log(data: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert MCPConfigLoader._parse_config(data) == []
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize(
    ("held", "told"), [([], "an empty list"), (None, "null"), ("npx", "'npx'"), (3, "3"), (False, "false")]
)
def test_where_servers_should_be_is_something_else_and_that_is_told(
    held: Any, told: str, workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (workspace / "mcp.json").write_text(json.dumps({"mcpServers": held}))
    assert MCPConfigLoader.load(workspace_root=workspace) == []
    assert MCPConfigLoader._parse_config({"mcpServers": held}) == []
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert all(f"mcpServers must be a table of servers, not {told}" in line.getMessage() for line in caplog.records)


def test_servers_elsewhere_in_the_file_are_read_all_the_same() -> None:
    assert names(MCPConfigLoader._parse_config({"mcpServers": None, "servers": {"one": STDIO}})) == ["one"]
    assert names(MCPConfigLoader._parse_config({"mcpServers": [{"name": "one", **STDIO}]})) == ["one"]


# -- what ----------------------------------------------------------------------------------------------------


def test_a_server_keeps_the_fields_that_it_was_written_with() -> None:
    found = only(STDIO)
    assert (found.name, found.transport, found.command, found.args) == ("one", "stdio", "npx", ["-y", "server"])
    assert (found.env, found.url, found.timeout) == ({"LEVEL": "low"}, None, 30)
    dialled = only(SSE)
    assert (dialled.transport, dialled.url, dialled.timeout) == ("sse", "http://localhost:8080/sse", 60)
    assert (dialled.command, dialled.args, dialled.env) == (None, None, None)


@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"command": "npx"}, "stdio"),
        ({"url": "http://localhost/mcp"}, "auto"),
        ({"type": "http", "url": "http://localhost/mcp"}, "http"),
        ({"type": "streamable-http", "url": "http://localhost/mcp"}, "http"),
        ({"transport": "streamable_http", "url": "http://localhost/mcp"}, "http"),
        ({"type": "sse", "url": "http://localhost/sse"}, "sse"),
        ({"url": "ws://localhost/mcp"}, "ws"),
    ],
)
def test_entries_as_other_programs_write_them_are_understood(entry: dict[str, Any], transport: str) -> None:
    assert only(entry).transport == transport


@pytest.mark.parametrize(
    "entry",
    [
        {"transport": "stdio"},
        {"transport": "sse"},
        {"transport": "pigeon", "command": "x"},
        {"transport": "stdio", "command": ""},
        {"transport": "stdio", "command": "x", "args": "not a list"},
        {"transport": "sse", "url": "not an address"},
        {"transport": "sse", "command": "x"},
        {"command": "x", "timeout": True},
        {"command": "x", "timeout": -1},
        "text",
        None,
    ],
)
def test_an_entry_that_cannot_be_used_is_skipped_with_a_warning_that_names_it(
    entry: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert names(MCPConfigLoader._parse_config({"mcpServers": {"bad": entry, "good": STDIO}})) == ["good"]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "mcpServers.bad" in warnings[0]


def test_one_entry_can_be_checked_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    found = MCPConfigLoader._validate_server_config({"name": "one", **STDIO})
    assert found is not None
    assert found.name == "one"
    assert MCPConfigLoader._validate_server_config({"name": "one", "transport": "stdio"}) is None
    wrong: list[Any] = [STDIO, None, [], "npx", 5]
    assert [MCPConfigLoader._validate_server_config(entry) for entry in wrong] == [None] * 5
    assert "must have a name" in caplog.text


def test_a_disabled_server_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert MCPConfigLoader._parse_config({"mcpServers": {"off": {**STDIO, "disabled": True}}}) == []
    assert "off is disabled" in caplog.text


def test_a_name_that_no_server_can_have_is_mended_and_told(caplog: pytest.LogCaptureFixture) -> None:
    found = MCPConfigLoader._parse_config({"mcpServers": {"my server.v2": STDIO, "文件": STDIO, "builtin": STDIO}})
    assert names(found) == ["my-server-v2", "server-1375d8", "builtin-34b4bc"]
    assert "the server is called my-server-v2" in caplog.text


@pytest.mark.parametrize(
    ("given", "used"), [(0.5, 1), (301, 301), (450, 450), (MOST, MOST), (MOST + 1, MOST), (1e9, MOST), (45.5, 45.5)]
)
def test_timeouts_are_seconds_within_bounds(given: float, used: float, caplog: pytest.LogCaptureFixture) -> None:
    found = only({**STDIO, "timeout": given})
    assert (found.timeout, found.settings().timeout) == (used, used)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == len(caplog.records) == (given != used)
    assert all(f"{given:g} seconds" in line and f"{used:g}" in line and "one" in line for line in told)


def test_a_timeout_in_a_variable_is_in_seconds_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATIENCE", "1e9")
    assert only({**STDIO, "timeout": "${PATIENCE}"}).timeout == MOST
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_file_of_a_program_that_counts_in_milliseconds_is_read_as_that_program_reads_it(workspace: Path) -> None:
    file = write(workspace / ".kiro" / "settings" / "mcp.json", one={**STDIO, "timeout": 60_000})
    (found,) = MCPConfigLoader.load(file)
    assert found.timeout == 60


def test_variables_are_replaced_and_their_values_never_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOOL_TOKEN", "hunter2hunter2")
    entry = {"url": "http://localhost/mcp", "headers": {"Authorization": "Bearer ${TOOL_TOKEN}"}}
    found = only(entry)
    assert found.headers == {"Authorization": "Bearer hunter2hunter2"}
    assert only({**STDIO, "env": {"A": "${NOT_SET}"}}).env == {"A": "${NOT_SET}"}
    assert "hunter2" not in repr(found) + caplog.text


def test_what_a_file_says_besides_holds_too(tmp_path: Path, workspace: Path) -> None:
    entry = {**STDIO, "command": "./run.sh", "cwd": "sub", "exclude_tools": ["rm"], "timeout": 9}
    write(workspace / "mcp.json", files=entry)
    (found,) = MCPConfigLoader.load(workspace_root=workspace)
    settings = found.settings()
    assert isinstance(settings.reach, StdioSettings)
    assert settings.reach.command == str(workspace / "run.sh")
    assert settings.reach.cwd == str(workspace / "sub")
    assert settings.timeout == 9
    assert not settings.rules.shows("rm")
    found.timeout = 12
    assert found.settings().timeout == 12


@pytest.mark.parametrize("root", [".", "", "../workspace", "sub/.."])
def test_relative_paths_begin_at_the_workspace_however_that_is_given(
    root: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "sub").mkdir()
    other = {"command": "python", "args": ["s.py"]}
    write(workspace / "mcp.json", one={"command": "./run.sh", "cwd": "sub"}, two=other)
    monkeypatch.chdir(workspace)
    one, two = (config.settings().reach for config in MCPConfigLoader.load(workspace_root=root))
    assert isinstance(one, StdioSettings)
    assert isinstance(two, StdioSettings)
    monkeypatch.chdir("/")
    assert Path(one.command).resolve() == workspace / "run.sh"
    assert Path(one.cwd or "").resolve() == workspace / "sub"
    assert (two.command, two.args, Path(two.cwd or "").resolve()) == ("python", ("s.py",), workspace)


def test_a_workspace_below_a_hidden_folder_is_one_all_the_same(tmp_path: Path) -> None:
    file = write(tmp_path / ".cache" / "project" / "mcp.json", one={"command": "./run.sh"})
    (found,) = MCPConfigLoader.load(workspace_root=file.parent)
    assert (found.command, found.cwd) == (str(file.parent / "run.sh"), str(file.parent))


def test_a_file_at_home_is_about_the_workspace(workspace: Path) -> None:
    write(Path.home() / ".excelmanus" / "mcp.json", one={"command": "./run.sh"})
    (found,) = MCPConfigLoader.load(workspace_root=workspace)
    assert (found.command, found.cwd) == (str(workspace / "run.sh"), str(workspace))


def test_a_config_that_is_changed_afterwards_counts_as_changed() -> None:
    found = only({"url": "http://localhost/mcp", "era": "legacy"})
    found.url = "http://localhost/other"
    reach = found.settings().reach
    assert isinstance(reach, HttpSettings)
    assert (reach.url, reach.era) == ("http://localhost/other", "legacy")
    found.url, found.command, found.transport = None, "npx", "stdio"
    assert isinstance(found.settings().reach, StdioSettings)


def test_what_is_no_mcp_server_is_left_to_the_service(caplog: pytest.LogCaptureFixture) -> None:
    assert MCPConfigLoader._parse_config({"mcpServers": {"helper": {"agent": "http://localhost:1/"}}}) == []
    assert "ToolService.initialize(path)" in caplog.text


def test_who_has_no_home_has_no_file_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homeless(monkeypatch)
    assert MCPConfigLoader.load(workspace_root=tmp_path) == []
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"one": STDIO}}))
    assert names(MCPConfigLoader.load("~/mcp.json", tmp_path)) == ["one"]


async def test_who_has_no_home_has_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homeless(monkeypatch)
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    service = ToolService()
    configurations: list[Any] = [None, {"mcp_servers": []}, tmp_path / "mcp.json"]
    for given in configurations:
        await service.initialize(given)
        assert "builtin.echo" in await service.list_tools()
        await service.shutdown()
    with pytest.raises(ConfigurationError, match="audit"):
        await service.initialize({"audit": "strict"})
