"""A registry follows the changing tools of servers."""

from __future__ import annotations

import json
import logging
import pwd
from pathlib import Path
from typing import Any

import pytest

from isthmus.core.settings import Limits
from isthmus.library.catalog import Catalog
from isthmus.library.errors import ConfigurationError, ServiceClosedError
from isthmus.library.manager import MCPManager, ToolRegistry
from isthmus.library.provider_formats import ToolDef
from isthmus.library.resolver import default_service
from isthmus.library.server_clients import MCPClientWrapper
from isthmus.library.server_config import FILE_VARIABLE, MCPConfigLoader, MCPServerConfig
from isthmus.library.service import ToolService
from isthmus.model.calls import EVERYTHING
from isthmus.upstream.server_settings import HttpSettings, StdioSettings
from tests.unit.core.doubles import tool
from tests.unit.library.benches import Bench, text_result
from tests.unit.library.catalogs import routes_of

CLIENT = MCPClientWrapper(MCPServerConfig("web", command="never-started"), service=Bench("web.search"))


class Workspace:
    """A manager, its registry, and the service that it will find."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.registry = ToolRegistry()
        self.manager = MCPManager(folder)
        self._monkeypatch = monkeypatch

    async def begin(self, bench: Bench, *servers: str) -> Bench:
        entries = {name: {"command": "never-started"} for name in servers}
        (self.folder / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
        self._monkeypatch.setattr("isthmus.library.manager.ToolService", lambda: bench)
        await self.manager.initialize(self.registry)
        return bench


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Workspace:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("EXCELMANUS_MCP_CONFIG", raising=False)
    caplog.set_level(logging.DEBUG, "isthmus.library")
    return Workspace(tmp_path, monkeypatch)


def make(described: dict[str, Any], server: str = "web") -> ToolDef | None:
    return MCPManager()._make_tool_def(server, CLIENT, described)


async def test_without_a_configuration_nothing_is_started(workspace: Workspace) -> None:
    await workspace.manager.initialize(workspace.registry)
    assert workspace.manager.connected_servers == []
    assert workspace.manager.failures == {}
    assert workspace.registry.names == []
    await workspace.manager.shutdown()


async def test_all_servers_are_in_one_service_and_its_own_tools_are_left_out(workspace: Workspace) -> None:
    bench = await workspace.begin(Bench("a.x", "b.y", "builtin.echo"), "a", "b")
    assert [config.name for config in bench.given["mcp_servers"]] == ["a", "b"]
    assert workspace.registry.names == ["mcp_a_x", "mcp_b_y"]
    assert workspace.manager.connected_servers == ["a", "b"]


async def test_a_server_that_failed_costs_its_own_tools_and_is_reported(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    await workspace.begin(Bench("a.x", "a.y", missing={"b": "it ended"}), "a", "b")
    assert workspace.manager.connected_servers == ["a"]
    assert workspace.manager.failures == {"b": "it ended"}
    received = [(record.levelname, record.getMessage()) for record in caplog.records if record.levelno >= logging.INFO]
    assert received == [
        ("INFO", "MCP server a connected; tools: 2"),
        ("ERROR", "MCP server b cannot be reached, so its tools are missing: it ended"),
    ]


async def test_tools_come_and_go_by_themselves(workspace: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    bench = await workspace.begin(Bench("a.x", "a.y"), "a")
    kept = workspace.registry.get("mcp_a_x")
    bench.change("a.x", "a.z")
    assert workspace.registry.names == ["mcp_a_x", "mcp_a_z"]
    assert workspace.registry.get("mcp_a_x") is kept
    bench.change("a.x")
    assert "a changed its list; tools: 1" in caplog.text


async def test_a_tool_that_is_described_anew_is_registered_anew(workspace: Workspace) -> None:
    bench = await workspace.begin(Bench("a.x", "a.y"), "a")
    kept = workspace.registry.get("mcp_a_y")
    bench.set_catalog(Catalog({EVERYTHING: routes_of(tool("x", "a", description="better"), tool("y", "a"))}))
    described = workspace.registry.get("mcp_a_x")
    assert described is not None
    assert described.description == "[MCP:a] better"
    assert workspace.registry.get("mcp_a_y") is kept


async def test_the_service_of_a_manager_is_private(workspace: Workspace) -> None:
    bench = await workspace.begin(Bench("a.x"), "a")
    with pytest.raises(ServiceClosedError):
        default_service()
    assert bench.is_open


async def test_a_server_that_is_lost_and_found_again_is_reported(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    bench = await workspace.begin(Bench("a.x"), "a")
    bench.change("a.x", missing={"a": "it ended"})
    assert workspace.registry.names == ["mcp_a_x"], "as long as it is listed it can be called"
    assert "MCP server a was lost; reconnecting: it ended" in caplog.text
    caplog.clear()
    bench.change("a.x")
    assert "MCP server a connected; tools: 1" in caplog.text


async def test_tools_that_would_share_a_name_have_digits_as_long_as_both_are_there(workspace: Workspace) -> None:
    bench = await workspace.begin(Bench("web.search_query"), "web", "web_search")
    assert workspace.registry.names == ["mcp_web_search_query"]
    bench.change("web.search_query", "web_search.query")
    first, second = workspace.registry.names
    assert {workspace.registry.original_of(first), workspace.registry.original_of(second)} == {
        ("web", "search_query"),
        ("web_search", "query"),
    }
    assert workspace.registry.get("mcp_web_search_query") is None
    bench.change("web_search.query")
    assert workspace.registry.original_of("mcp_web_search_query") == ("web_search", "query")


async def test_a_used_name_stays_with_its_owner(workspace: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    own = ToolDef("mcp_a_x", "mine", {}, lambda: "mine")
    workspace.registry.register(own)
    bench = await workspace.begin(Bench("a.x", "a.y"), "a")
    bench.change("a.x", "a.y", "a.z")
    assert workspace.registry.get("mcp_a_x") is own
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["Tool 'x' of MCP server a was skipped: the name mcp_a_x is taken."]
    await workspace.manager.shutdown()
    assert workspace.registry.names == ["mcp_a_x"]


async def test_a_freed_name_is_used_and_removed_tools_stay_removed(workspace: Workspace) -> None:
    workspace.registry.register(ToolDef("mcp_a_x", "mine", {}, lambda: "mine"))
    bench = await workspace.begin(Bench("a.x", "a.y"), "a")
    workspace.registry.unregister("mcp_a_x")
    workspace.registry.unregister("mcp_a_y")
    bench.change("a.x", "a.y", "a.z")
    assert workspace.registry.names == ["mcp_a_x", "mcp_a_z"]
    assert workspace.registry.original_of("mcp_a_x") == ("a", "x")


async def test_a_wrong_listing_of_a_server_is_reported_once(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench("a.x")
    bench.left_out = {"a": ("tool 3 left out: it has no name",)}
    await workspace.begin(bench, "a")
    bench.change("a.x", "a.y")
    assert caplog.text.count("tool 3 left out") == 1


async def test_after_the_end_nothing_is_left_and_nothing_follows(workspace: Workspace) -> None:
    async with workspace.manager:
        bench = await workspace.begin(Bench("a.x"), "a")
    assert not bench.is_open
    assert (workspace.registry.names, bench.watchers) == ([], [])
    await workspace.manager.shutdown()


async def test_a_service_that_ends_first_leaves_the_registry_alone(workspace: Workspace) -> None:
    bench = await workspace.begin(Bench("a.x"), "a")
    await bench.shutdown()
    bench.change()
    assert workspace.registry.names == ["mcp_a_x"]
    assert (workspace.manager.connected_servers, workspace.manager.failures) == ([], {})


async def test_once_more_it_begins_anew(workspace: Workspace) -> None:
    first = await workspace.begin(Bench("a.x"), "a")
    await workspace.begin(Bench("b.y"), "b")
    assert not first.is_open
    assert workspace.registry.names == ["mcp_b_y"]


async def test_once_more_without_servers_everything_ends(workspace: Workspace) -> None:
    first = await workspace.begin(Bench("a.x"), "a")
    await workspace.begin(Bench())
    assert not first.is_open
    assert workspace.registry.names == []


async def test_a_failed_start_leaves_nothing_behind(workspace: Workspace) -> None:
    class Broken(Bench):
        async def initialize(self, config: Any = None, **_: Any) -> None:
            raise ConfigurationError("two servers are called a")

    broken = Broken()
    with pytest.raises(ConfigurationError):
        await workspace.begin(broken, "a")
    assert not broken.is_open
    assert workspace.manager.failures == {}


def test_a_tool_is_built_from_its_definition() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    made = make({"name": "search", "description": "finds", "inputSchema": schema})
    assert made is not None
    assert (made.name, made.description, made.input_schema) == ("mcp_web_search", "[MCP:web] finds", schema)
    assert (made.max_result_chars, made.origin, made.write_effect) == (5000, ("web", "search"), "unknown")
    assert made.func(q="x") == "done"


def test_a_tool_that_says_little_is_taken_and_believed_nothing() -> None:
    made = make({"name": "search", "annotations": {"readOnlyHint": True}})
    assert made is not None
    assert made.write_effect == "unknown", "what a server says of itself proves nothing"
    assert (made.description, made.input_schema) == ("[MCP:web]", {"type": "object", "properties": {}})


@pytest.mark.parametrize(
    "described",
    [
        {"description": "nameless"},
        {"name": ""},
        {"name": "t", "inputSchema": "none"},
        {"name": "t", "inputSchema": {"type": "array"}},
        {"name": "t", "inputSchema": {"properties": {"a": {"type": "strin"}}}},
    ],
)
def test_a_tool_that_cannot_be_used_is_left_out_with_a_warning(
    described: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert make(described) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "web" in record.getMessage()


async def test_both_functions_of_a_tool_lead_to_the_server() -> None:
    made = make({"name": "search"})
    assert made is not None
    assert made.async_func is not None
    assert await made.async_func(self="any name will do") == "done"


@pytest.mark.parametrize("way", ["func", "async_func"])
async def test_a_tools_result_is_cut_and_cutting_again_changes_nothing(way: str) -> None:
    bench = Bench("web.search")
    bench.result = text_result("x" * 20_000)
    client = MCPClientWrapper(MCPServerConfig("web", command="never-started"), service=bench)
    made = MCPManager()._make_tool_def("web", client, {"name": "search"})
    assert made is not None
    assert made.async_func is not None
    text = made.func() if way == "func" else await made.async_func()
    assert text == "x" * 5000 + "\n[15,000 of 20,000 characters left out]"
    assert made.truncate_result(text) == text
    registry = ToolRegistry([made])
    assert (registry.call_tool(made.name), await registry.acall_tool(made.name)) == (text, text)
    made.max_result_chars = 10
    assert made.func() == "x" * 10 + "\n[19,990 of 20,000 characters left out]"


async def test_a_failing_unwatch_after_a_fork_still_clears_the_registry(workspace: Workspace) -> None:
    await workspace.begin(Bench("web.search"), "web")
    stock = workspace.manager._tools
    assert stock is not None
    assert workspace.registry.names

    def refuse() -> None:
        raise ServiceClosedError("it was made by another process")

    stock._unwatch = refuse
    await workspace.manager.shutdown()
    assert not workspace.registry.names


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
def agent_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "agent_folder"
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
    tmp_path: Path, agent_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = write(tmp_path / "named.json", named=STDIO)
    given = write(tmp_path / "given.json", given=STDIO)
    beside = write(agent_folder / "mcp.json", beside=STDIO)
    write(Path.home() / ".excelmanus" / "mcp.json", home=STDIO)
    monkeypatch.setenv(FILE_VARIABLE, str(named))
    assert names(MCPConfigLoader.load(str(given), str(agent_folder))) == ["named"]
    monkeypatch.delenv(FILE_VARIABLE)
    assert names(MCPConfigLoader.load(str(given), str(agent_folder))) == ["given"]
    assert names(MCPConfigLoader.load(None, str(agent_folder))) == ["beside"]
    beside.unlink()
    assert names(MCPConfigLoader.load(workspace_root=agent_folder)) == ["home"]


def test_without_any_file_there_are_no_servers_and_nothing_is_said(
    agent_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert MCPConfigLoader.load(workspace_root=str(agent_folder)) == []
    assert caplog.records == []


def test_a_named_file_that_is_missing_is_reported_and_the_next_is_read(
    agent_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(FILE_VARIABLE, "/nowhere/mcp.json")
    write(agent_folder / "mcp.json", beside=STDIO)
    assert names(MCPConfigLoader.load("also/missing.json", agent_folder)) == ["beside"]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert FILE_VARIABLE in warnings[0]
    assert "/nowhere/mcp.json" in warnings[0]
    assert f"config_path is {Path.cwd() / 'also/missing.json'}" in warnings[1]


@pytest.mark.parametrize("kind", ["folder", "link to nothing", "link to itself"])
def test_a_path_that_is_not_a_file_is_reported_and_the_next_is_read(
    kind: str, agent_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = agent_folder / "mcp.json"
    if kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(file if kind == "link to itself" else agent_folder / "nothing.json")
    write(Path.home() / ".excelmanus" / "mcp.json", home=STDIO)
    assert names(MCPConfigLoader.load(workspace_root=agent_folder)) == ["home"]
    (received,) = caplog.records
    assert received.levelno == logging.WARNING
    assert f"{file} is not a file: trying the next place for MCP servers" in received.getMessage()


@pytest.mark.parametrize("source", ["environment", "argument", "agent_folder"])
def test_a_path_that_no_file_can_have_is_as_one_that_is_not_there(
    source: str, agent_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(Path.home() / ".excelmanus" / "mcp.json", home=STDIO)
    long = "x" * 5000
    if source == "environment":
        monkeypatch.setenv(FILE_VARIABLE, long)
    found = MCPConfigLoader.load(
        long if source == "argument" else None, long if source == "agent_folder" else agent_folder
    )
    assert names(found) == ["home"]
    received = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(received) == (source != "agent_folder")
    assert all("which is not a file" in line for line in received)


@pytest.mark.parametrize("text", ["{", "[]", "null", "\xff"])
def test_a_file_that_cannot_be_read_is_an_error_in_the_log_and_no_servers(
    text: str, agent_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (agent_folder / "mcp.json").write_bytes(text.encode("latin-1"))
    assert MCPConfigLoader.load(workspace_root=agent_folder) == []
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.name == "isthmus.library.server_config"
    assert "mcp.json" in record.getMessage()


@pytest.mark.parametrize("data", [[], 3, None])
def test_contents_that_hold_no_servers_are_an_error_in_the_log(data: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert MCPConfigLoader._parse_config(data) == []
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize(
    ("held", "expected"), [([], "an empty list"), (None, "null"), ("npx", "'npx'"), (3, "3"), (False, "false")]
)
def test_something_else_in_place_of_servers_is_reported(
    held: Any, expected: str, agent_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (agent_folder / "mcp.json").write_text(json.dumps({"mcpServers": held}))
    assert MCPConfigLoader.load(workspace_root=agent_folder) == []
    assert MCPConfigLoader._parse_config({"mcpServers": held}) == []
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert all(
        f"mcpServers must be an object of servers, not {expected}" in line.getMessage() for line in caplog.records
    )


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
    assert "without a name" in caplog.text


def test_a_disabled_server_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert MCPConfigLoader._parse_config({"mcpServers": {"off": {**STDIO, "disabled": True}}}) == []
    assert "off is disabled" in caplog.text


def test_an_illegal_server_name_is_changed_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    found = MCPConfigLoader._parse_config({"mcpServers": {"my server.v2": STDIO, "文件": STDIO, "builtin": STDIO}})
    assert names(found) == ["my-server-v2", "server-1375d8", "builtin-34b4bc"]
    assert "the server is called my-server-v2" in caplog.text


@pytest.mark.parametrize(
    ("given", "used"), [(0.5, 1), (301, 301), (450, 450), (MOST, MOST), (MOST + 1, MOST), (1e9, MOST), (45.5, 45.5)]
)
def test_timeouts_are_seconds_within_bounds(given: float, used: float, caplog: pytest.LogCaptureFixture) -> None:
    found = only({**STDIO, "timeout": given})
    assert (found.timeout, found.settings().timeout) == (used, used)
    received = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(received) == len(caplog.records) == (given != used)
    assert all(f"{given:g} seconds" in line and f"{used:g}" in line and "one" in line for line in received)


def test_a_timeout_in_a_variable_is_in_seconds_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATIENCE", "1e9")
    assert only({**STDIO, "timeout": "${PATIENCE}"}).timeout == MOST
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_file_of_a_program_that_counts_in_milliseconds_is_read_as_that_program_reads_it(agent_folder: Path) -> None:
    file = write(agent_folder / ".kiro" / "settings" / "mcp.json", one={**STDIO, "timeout": 60_000})
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


def test_other_settings_of_a_file_apply_too(tmp_path: Path, agent_folder: Path) -> None:
    entry = {**STDIO, "command": "./run.sh", "cwd": "sub", "exclude_tools": ["rm"], "timeout": 9}
    write(agent_folder / "mcp.json", files=entry)
    (found,) = MCPConfigLoader.load(workspace_root=agent_folder)
    settings = found.settings()
    assert isinstance(settings.reach, StdioSettings)
    assert settings.reach.command == str(agent_folder / "run.sh")
    assert settings.reach.cwd == str(agent_folder / "sub")
    assert settings.timeout == 9
    assert not settings.rules.shows("rm")
    found.timeout = 12
    assert found.settings().timeout == 12


@pytest.mark.parametrize("root", [".", "", "../agent_folder", "sub/.."])
def test_relative_paths_begin_at_the_workspace_however_that_is_given(
    root: str, agent_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (agent_folder / "sub").mkdir()
    other = {"command": "python", "args": ["s.py"]}
    write(agent_folder / "mcp.json", one={"command": "./run.sh", "cwd": "sub"}, two=other)
    monkeypatch.chdir(agent_folder)
    one, two = (config.settings().reach for config in MCPConfigLoader.load(workspace_root=root))
    assert isinstance(one, StdioSettings)
    assert isinstance(two, StdioSettings)
    monkeypatch.chdir("/")
    assert Path(one.command).resolve() == agent_folder / "run.sh"
    assert Path(one.cwd or "").resolve() == agent_folder / "sub"
    assert (two.command, two.args, Path(two.cwd or "").resolve()) == ("python", ("s.py",), agent_folder)


def test_a_workspace_below_a_hidden_folder_is_one_all_the_same(tmp_path: Path) -> None:
    file = write(tmp_path / ".cache" / "project" / "mcp.json", one={"command": "./run.sh"})
    (found,) = MCPConfigLoader.load(workspace_root=file.parent)
    assert (found.command, found.cwd) == (str(file.parent / "run.sh"), str(file.parent))


def test_a_file_at_home_is_about_the_workspace(agent_folder: Path) -> None:
    write(Path.home() / ".excelmanus" / "mcp.json", one={"command": "./run.sh"})
    (found,) = MCPConfigLoader.load(workspace_root=agent_folder)
    assert (found.command, found.cwd) == (str(agent_folder / "run.sh"), str(agent_folder))


def test_a_config_that_is_changed_afterwards_counts_as_changed() -> None:
    found = only({"url": "http://localhost/mcp", "era": "legacy"})
    found.url = "http://localhost/other"
    reach = found.settings().reach
    assert isinstance(reach, HttpSettings)
    assert (reach.url, reach.era) == ("http://localhost/other", "legacy")
    found.url, found.command, found.transport = None, "npx", "stdio"
    assert isinstance(found.settings().reach, StdioSettings)


def test_entries_that_are_not_mcp_servers_are_left_to_the_service(caplog: pytest.LogCaptureFixture) -> None:
    assert MCPConfigLoader._parse_config({"mcpServers": {"helper": {"agent": "http://localhost:1/"}}}) == []
    assert "ToolService.initialize(path)" in caplog.text


def test_without_a_home_there_is_no_file_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homeless(monkeypatch)
    assert MCPConfigLoader.load(workspace_root=tmp_path) == []
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"one": STDIO}}))
    assert names(MCPConfigLoader.load("~/mcp.json", tmp_path)) == ["one"]


async def test_without_a_home_there_is_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
