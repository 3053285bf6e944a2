"""The registry over real servers: an `mcp.json`, processes, and tools that a language model calls by name."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from isthmus.library import (
    MCPClientWrapper,
    MCPManager,
    MCPServerConfig,
    ServerConnectionError,
    ToolDef,
    ToolExecutionError,
    ToolRegistry,
    WrongThreadError,
)
from isthmus.library.loop_thread import LoopThread
from tests.conftest import Spawn, children
from tests.library.registry_server import LONG

SERVER = Path(__file__).with_name("registry_server.py")
PATIENCE = 20.0


def stdio(*tools: str, **fields: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-IS", str(SERVER), *tools], **fields}


class Agent:
    """A registry that a manager fills."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = ToolRegistry()
        self.manager = MCPManager(folder)

    async def begin(self, **servers: dict[str, Any]) -> None:
        (self.folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        await self.manager.initialize(self.registry)

    async def until(self, condition: Any) -> None:
        """Wait until a change of the tools has made this true."""
        is_so = threading.Event()
        service = self.manager._service
        assert service is not None

        def look() -> None:
            if condition():
                is_so.set()

        unwatch = service.watch(look)
        await LoopThread.shared().call_async(look)
        assert await asyncio.to_thread(is_so.wait, PATIENCE)
        unwatch()


@pytest_asyncio.fixture
async def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Agent]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("EXCELMANUS_MCP_CONFIG", raising=False)
    made = Agent(tmp_path)
    yield made
    await made.manager.shutdown()


async def test_every_server_of_the_file_is_connected_and_its_tools_can_be_called(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "isthmus.library")
    await agent.begin(**{"web-search": stdio("文件.读"), "gone": {"command": "/nowhere/at/all"}})
    registry = agent.registry

    assert agent.manager.connected_servers == ["web-search"]
    assert "could not be started" in agent.manager.failures["gone"]
    (form,) = [form for form in registry.to_openai_schema() if form["name"] == "mcp_web_search_say"]
    assert form["description"] == "[MCP:web-search] does say"
    assert form["parameters"]["required"] == ["text"]
    assert registry.call_tool("mcp_web_search_say", {"text": "hello"}) == "hello"
    assert await registry.acall_tool("mcp_web_search_say", {"text": "hello"}) == "hello"
    (chinese,) = [name for name in registry.names if registry.original_of(name) == ("web-search", "文件.读")]
    assert chinese.isascii()
    assert registry.call_tool(chinese) == "文件.读"
    assert registry.call_tool("mcp_web_search_picture") == "picture\n[image image/png, 3 bytes]"

    received = {record.levelname: record.getMessage() for record in caplog.records if record.name.endswith("manager")}
    assert received["INFO"] == "MCP server web-search connected; tools: 10"
    assert "gone cannot be reached" in received["ERROR"]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("'schemaless'" in warning for warning in warnings)
    assert any("'misspelt'" in warning for warning in warnings)
    assert "hello" not in caplog.text


async def test_a_tool_keeps_its_hyphens_and_underscores_find_it_as_well(agent: Agent) -> None:
    await agent.begin(m=stdio("get-weather", "set-x", "set_x"))
    registry = agent.registry
    assert {"mcp_m_get-weather", "mcp_m_set-x", "mcp_m_set_x"} <= set(registry.names)
    assert "mcp_m_get_weather" not in registry.names
    for name in ("mcp_m_get-weather", "mcp_m_get_weather"):
        assert registry.call_tool(name) == await registry.acall_tool(name) == "get-weather"
        assert name in registry
        assert registry.original_of(name) == ("m", "get-weather")
    assert [registry.call_tool(f"mcp_m_set{mark}x") for mark in "-_"] == ["set-x", "set_x"]
    service = agent.manager._service
    assert service is not None
    assert (await service.resolve("mcp_m_get_weather")).name == "m.get-weather"


async def test_a_relative_command_and_relative_arguments_begin_at_the_workspace(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    (agent.folder / "run.sh").write_text(f"#!/bin/sh\nexec {sys.executable} -IS {SERVER}\n")
    (agent.folder / "run.sh").chmod(0o755)
    (agent.folder / "server.py").write_text(SERVER.read_text())
    servers = {"a": {"command": "./run.sh"}, "b": {"command": sys.executable, "args": ["-IS", "server.py"]}}
    (agent.folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    for folder, root in ((agent.folder, "."), (agent.folder.parent, agent.folder.name), (Path("/"), agent.folder)):
        monkeypatch.chdir(folder)
        async with MCPManager(root) as manager:
            await manager.initialize(ToolRegistry())
            assert (manager.connected_servers, manager.failures) == (["a", "b"], {})


async def test_each_way_to_fail_is_reported_as_it_should_be(agent: Agent) -> None:
    await agent.begin(a=stdio(timeout=1))
    call = agent.registry.call_tool
    with pytest.raises(ToolExecutionError, match="refuse"):
        call("mcp_a_refuse")
    with pytest.raises(ToolExecutionError, match="no tools/call here"):
        call("mcp_a_crash")
    with pytest.raises(ToolExecutionError, match="text"):
        call("mcp_a_say", {"text": 3})
    assert call("mcp_a_long") == "x" * 5_000 + f"\n[{LONG - 5_000:,} of {LONG:,} characters left out]"
    assert call("mcp_a_hang").startswith("Error: ")
    assert call("mcp_a_leave").startswith("Error: ")


async def test_tools_that_appear_later_are_there_without_asking(agent: Agent) -> None:
    await agent.begin(a=stdio("q_x"), a_q=stdio())
    assert "mcp_a_q_x" in agent.registry
    assert await agent.registry.acall_tool("mcp_a_q_grow", {"text": "x"}) == "x"
    await agent.until(lambda: "mcp_a_q_x" not in agent.registry)
    clashing = [name for name in agent.registry.names if name.startswith("mcp_a_q_x")]
    assert {agent.registry.original_of(name) for name in clashing} == {("a", "q_x"), ("a_q", "x")}
    assert sorted(agent.registry.call_tool(name) for name in clashing) == ["q_x", "x"]


async def test_tools_that_vanish_are_taken_out(agent: Agent) -> None:
    await agent.begin(a=stdio("brief"))
    await agent.registry.acall_tool("mcp_a_shrink", {"text": "brief"})
    await agent.until(lambda: "mcp_a_brief" not in agent.registry)


async def test_a_built_in_keeps_its_name(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    agent.registry.register(ToolDef("mcp_a_say", "mine", {"type": "object"}, lambda: "mine"))
    await agent.begin(a=stdio())
    assert agent.registry.call_tool("mcp_a_say") == "mine"
    assert "the name mcp_a_say is taken" in caplog.text


async def test_from_the_loop_that_answers_the_blocking_form_is_refused_at_once(agent: Agent) -> None:
    await agent.begin(a=stdio())
    owner = LoopThread.shared()
    with pytest.raises(WrongThreadError, match="async_func"):
        await owner.call_async(agent.registry.call_tool, "mcp_a_say", {"text": "x"})
    assert await owner.run(agent.registry.acall_tool("mcp_a_say", {"text": "x"})) == "x"


async def test_a_tool_that_is_gone_is_never_taken_for_one_of_another_server(agent: Agent) -> None:
    await agent.begin(a=stdio(), b=stdio("a.ghost"))
    (ghost,) = [name for name in agent.registry.names if agent.registry.original_of(name) == ("b", "a.ghost")]
    assert agent.registry.call_tool(ghost) == "a.ghost"
    with pytest.raises(ToolExecutionError, match=r"no tool 'a\.ghost'"):
        await agent.manager._clients["a"].call_tool("ghost")


async def test_a_server_over_sse_is_one_like_any_other(agent: Agent, spawn: Spawn) -> None:
    peer = await spawn("raw_server", "--transport", "sse")
    await agent.begin(remote={"transport": "sse", "url": peer.at("/sse"), "timeout": 60})
    assert agent.manager.connected_servers == ["remote"]
    assert "n1" in agent.registry.call_tool("mcp_remote_pay", {"nonce": "n1"})


async def test_after_the_end_no_tool_and_no_process_is_left(agent: Agent) -> None:
    before = children()
    await agent.begin(a=stdio(), b=stdio())
    kept = agent.registry.get("mcp_a_say")
    assert kept is not None
    await agent.manager.shutdown()
    assert agent.registry.names == []
    assert children() == before
    assert kept.func(text="late").startswith("Error: ")


async def test_a_wrapper_by_itself_has_a_connection_of_its_own() -> None:
    client = MCPClientWrapper(MCPServerConfig("solo", transport="stdio", **stdio()))
    before = children()
    await client.connect()
    await client.connect()
    states = [client.is_connected]
    say = (await client.discover_tools())[0]
    assert (say["name"], say["description"], say["inputSchema"]["required"]) == ("say", "does say", ["text"])
    assert await client.call_tool("say", {"text": "hi"}) == "hi"
    with pytest.raises(ToolExecutionError):
        await client.call_tool("refuse", {})
    await client.close()
    states.append(client.is_connected)
    assert states == [True, False]
    assert children() == before


async def test_a_wrapper_says_why_it_cannot_connect() -> None:
    client = MCPClientWrapper(MCPServerConfig("solo", transport="stdio", command="/nowhere/at/all"))
    with pytest.raises(ServerConnectionError, match="there is no such file"):
        await client.connect()
    assert not client.is_connected
