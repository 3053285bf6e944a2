"""How a registry follows what servers offer."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from isthmus.library.catalog import Catalog
from isthmus.library.errors import ConfigurationError, ServiceClosedError
from isthmus.library.forms import ToolDef
from isthmus.library.manager import MCPManager
from isthmus.library.registry import ToolRegistry
from isthmus.library.running import only_service
from isthmus.library.servers import MCPServerConfig
from isthmus.library.wrapper import MCPClientWrapper
from isthmus.model.calls import EVERYTHING
from tests.unit.core.doubles import tool
from tests.unit.library.benches import Bench, said
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


async def test_a_server_that_failed_costs_its_own_tools_and_is_told(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    await workspace.begin(Bench("a.x", "a.y", missing={"b": "it ended"}), "a", "b")
    assert workspace.manager.connected_servers == ["a"]
    assert workspace.manager.failures == {"b": "it ended"}
    told = [(record.levelname, record.getMessage()) for record in caplog.records if record.levelno >= logging.INFO]
    assert told == [
        ("INFO", "MCP server a connected; tools: 2"),
        ("ERROR", "MCP server b cannot be reached, so that its tools are missing: it ended"),
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
    bench.tell(Catalog({EVERYTHING: routes_of(tool("x", "a", description="better"), tool("y", "a"))}))
    described = workspace.registry.get("mcp_a_x")
    assert described is not None
    assert described.description == "[MCP:a] better"
    assert workspace.registry.get("mcp_a_y") is kept


async def test_the_service_of_a_manager_is_nobody_elses(workspace: Workspace) -> None:
    bench = await workspace.begin(Bench("a.x"), "a")
    with pytest.raises(ServiceClosedError):
        only_service()
    assert bench.is_open


async def test_a_server_that_is_lost_and_found_again_is_told(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    bench = await workspace.begin(Bench("a.x"), "a")
    bench.change("a.x", missing={"a": "it ended"})
    assert workspace.registry.names == ["mcp_a_x"], "as long as it is listed it can be called"
    assert "MCP server a was lost, and is tried again: it ended" in caplog.text
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


async def test_a_name_that_somebody_has_already_stays_theirs(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    own = ToolDef("mcp_a_x", "mine", {}, lambda: "mine")
    workspace.registry.register(own)
    bench = await workspace.begin(Bench("a.x", "a.y"), "a")
    bench.change("a.x", "a.y", "a.z")
    assert workspace.registry.get("mcp_a_x") is own
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["Tool 'x' of MCP server a is left out: the name mcp_a_x is taken."]
    await workspace.manager.shutdown()
    assert workspace.registry.names == ["mcp_a_x"]


async def test_a_name_that_becomes_free_is_taken_and_what_was_taken_out_stays_out(workspace: Workspace) -> None:
    workspace.registry.register(ToolDef("mcp_a_x", "mine", {}, lambda: "mine"))
    bench = await workspace.begin(Bench("a.x", "a.y"), "a")
    workspace.registry.unregister("mcp_a_x")
    workspace.registry.unregister("mcp_a_y")
    bench.change("a.x", "a.y", "a.z")
    assert workspace.registry.names == ["mcp_a_x", "mcp_a_z"]
    assert workspace.registry.original_of("mcp_a_x") == ("a", "x")


async def test_what_a_server_listed_wrongly_is_told_once(
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


async def test_what_cannot_begin_leaves_nothing_behind(workspace: Workspace) -> None:
    class Broken(Bench):
        async def initialize(self, config: Any = None, **_: Any) -> None:
            raise ConfigurationError("two servers are called a")

    broken = Broken()
    with pytest.raises(ConfigurationError):
        await workspace.begin(broken, "a")
    assert not broken.is_open
    assert workspace.manager.failures == {}


def test_a_tool_is_made_of_what_the_protocol_says() -> None:
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
async def test_what_a_function_of_a_tool_returns_is_cut_and_cutting_it_again_changes_nothing(way: str) -> None:
    bench = Bench("web.search")
    bench.result = said("x" * 20_000)
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


async def test_who_cannot_stop_watching_what_a_fork_left_behind_still_clears_the_registry(workspace: Workspace) -> None:
    await workspace.begin(Bench("web.search"), "web")
    stock = workspace.manager._stock
    assert stock is not None
    assert workspace.registry.names

    def refuse() -> None:
        raise ServiceClosedError("it was made by another process")

    stock._unwatch = refuse
    await workspace.manager.shutdown()
    assert not workspace.registry.names
