"""Typical programs with a tool service: from servers by address to tools, tasks and streams."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from isthmus.library import (
    MCPClient,
    MCPServerConfig,
    TaskEngine,
    ToolDeniedError,
    ToolNotFoundError,
    ToolRequest,
    ToolResolver,
    ToolService,
    ToolStatus,
    UserContext,
    UserPermissions,
    create_task_request,
    resolver,
)
from tests.peers.launch import CHECKOUT, listening_peer

pytestmark = pytest.mark.xdist_group("library_snippets")

BUILT_IN = ["builtin.chat_log", "builtin.echo", "builtin.timestamp"]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """One server for all tests, since an SDK takes a second to start; its loop is not theirs."""
    loop = asyncio.new_event_loop()
    stack = AsyncExitStack()
    words = [sys.executable, "-m", "tests.library.programs.streaming"]
    peer = loop.run_until_complete(stack.enter_async_context(listening_peer(words, env={"PYTHONPATH": str(CHECKOUT)})))
    yield peer.url
    loop.run_until_complete(stack.aclose())
    loop.close()


@pytest.fixture
async def tool_service(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ToolService]:
    """One that is initialised as a whole system's configuration says, and the only one of its process."""
    monkeypatch.setattr(resolver, "_services", {})
    server = {
        "name": "mcp_server",
        "endpoint": endpoint,
        "headers": {"Authorization": "Bearer your-token"},
        "timeout": 30,
    }
    tool_service = ToolService()
    await tool_service.initialize({"tool_service": {"enable_mcp": True, "mcp_servers": [server]}})
    yield tool_service
    await tool_service.shutdown()


async def test_servers_become_tools_that_are_listed_executed_and_streamed(endpoint: str, tmp_path: Path) -> None:
    tool_service = ToolService()
    await tool_service.initialize(
        {"enable_mcp": True, "mcp_servers": [{"name": "test_streaming_server", "endpoint": endpoint}]}
    )
    try:
        tools = await tool_service.list_tools()
        own = [f"test_streaming_server.{name}" for name in ("long_computation", "search", "weather")]
        assert sorted(tools) == [*BUILT_IN, *own]

        result = await tool_service.execute_tool(
            ToolRequest(tool_name="test_streaming_server.long_computation", parameters={"steps": 5})
        )
        assert (result.status, result.is_success, result.text) == (ToolStatus.SUCCESS, True, "5 steps")

        tool_request = ToolRequest(
            tool_name="test_streaming_server.long_computation", parameters={"steps": 5, "seen": str(tmp_path)}
        )
        tool = tool_service._tools["test_streaming_server.long_computation"]
        assert tool.supports_streaming
        chunks = []
        async for chunk in tool.execute_stream(tool_request):
            chunks.append(chunk)
            if chunk.chunk_type == "progress":
                (tmp_path / str(chunk.content["progress"])).touch()  # until then the tool goes no further
    finally:
        await tool_service.shutdown()
    assert [chunk.chunk_type for chunk in chunks] == ["progress"] * 5 + ["data", "complete"]
    assert [chunk.content for chunk in chunks[:5]] == [
        {"progress": step, "total": 5, "message": f"step {step}"} for step in range(1, 6)
    ]
    assert [chunk.sequence_id for chunk in chunks] == list(range(7))
    assert [chunk.is_final for chunk in chunks] == [False] * 6 + [True]
    assert all(first.timestamp < second.timestamp for first, second in pairwise(chunks[:6]))
    assert chunks[-1].metadata["result"].text == "5 steps"


async def test_names_that_people_type_become_a_task_with_tools(tool_service: ToolService) -> None:
    user_tool_names = ["echo", "mcp_server.search", "weather"]
    task_engine = TaskEngine(tool_service)
    task_request = await task_engine.create_task_request(
        task_id="task_123",
        task_type="chat",
        description="Help me search for information",
        tool_names=user_tool_names,
    )
    assert (task_request.task_id, task_request.task_type) == ("task_123", "chat")
    assert [tool.name for tool in task_request.available_tools] == [
        "builtin.echo",
        "mcp_server.search",
        "mcp_server.weather",
    ]
    search = task_request.available_tools[1]
    assert (search.namespace, search.description) == ("mcp_server", "Find something.")
    assert search.parameters_schema["required"] == ["query"]
    found = await tool_service.execute_tool(ToolRequest(search.name, search.namespace, {"query": "it"}))
    assert found.text == "found it"


@pytest.mark.usefixtures("tool_service")
async def test_a_task_needs_nothing_but_friendly_names() -> None:
    user_tools = ["echo", "mcp.search", "weather"]
    task_request = await create_task_request(tool_names=user_tools)
    assert [tool.name for tool in task_request.available_tools] == [
        "builtin.echo",
        "mcp_server.search",
        "mcp_server.weather",
    ]


async def test_a_resolver_accepts_every_form_of_a_name_and_checks_permissions(tool_service: ToolService) -> None:
    resolver = ToolResolver(tool_service)
    tools = await resolver.resolve_tools(["echo", "mcp.search", "weather", "mcp_mcp_server_long_computation"])
    assert [tool.name.partition(".")[2] for tool in tools] == ["echo", "search", "weather", "long_computation"]
    with pytest.raises(ToolNotFoundError, match=r"Did you mean mcp_server\.search"):
        await resolver.resolve_tools(["mcp.serch"])
    for permissions in (UserPermissions(["mcp_server.weather"]), UserPermissions(), None):
        with pytest.raises(ToolDeniedError):
            await resolver.resolve_tools(["search"], UserContext("ada", permissions=permissions))


async def test_every_way_to_fail_has_its_own_status(tool_service: ToolService, tmp_path: Path) -> None:
    ada = UserContext("ada", permissions=UserPermissions(["mcp_server.weather"]))
    requests = [
        ToolRequest("weather", parameters={"city": "nowhere"}),
        ToolRequest("whether"),
        ToolRequest("search", parameters={"query": "it"}, user_context=ada),
        ToolRequest("search", parameters={"query": 7}),
        ToolRequest("long_computation", parameters={"seen": str(tmp_path)}, timeout=0.2),
    ]
    results = [await tool_service.execute_tool(request) for request in requests]
    assert [str(result.status) for result in results] == [
        "error",
        "not_found",
        "unauthorized",
        "invalid_parameters",
        "timeout",
    ]
    assert "there is no weather nowhere" in results[0].text
    assert all(result.error_message and result.error for result in results)


async def test_without_mcp_nothing_is_connected(deaf_port: int) -> None:
    tool_service = ToolService()
    server = {"name": "server", "endpoint": f"http://127.0.0.1:{deaf_port}/mcp"}
    await tool_service.initialize({"enable_mcp": False, "mcp_servers": [server]})
    try:
        assert sorted(await tool_service.list_tools()) == BUILT_IN
        assert tool_service.failures == {}
    finally:
        await tool_service.shutdown()


async def test_a_server_that_fails_is_listed_as_failed_and_has_no_tools(endpoint: str, deaf_port: int) -> None:
    servers: list[dict[str, Any]] = [
        {"name": "gone", "endpoint": f"http://127.0.0.1:{deaf_port}/mcp"},
        {"name": "there", "endpoint": endpoint},
    ]
    tool_service = ToolService()
    await tool_service.initialize({"enable_mcp": True, "mcp_servers": servers})
    try:
        assert tool_service.failures.keys() == {"gone"}
        tools = await tool_service.list_tools()
        assert "there.search" in tools
        assert not [name for name in tools if name.startswith("gone.")]
        assert not [name for name in tool_service._tools if name.startswith("gone.")]
        with pytest.raises(ToolNotFoundError, match="Server gone is not connected"):
            await ToolResolver(tool_service).resolve_tools(["gone.search"])
        result = await tool_service.execute_tool(ToolRequest("gone.search"))
        assert (result.status, result.error and result.error.server) == (ToolStatus.UNAVAILABLE, "gone")
    finally:
        await tool_service.shutdown()


async def test_a_client_of_one_server_discovers_calls_and_streams(endpoint: str) -> None:
    async with MCPClient(MCPServerConfig(name="server", endpoint=endpoint, timeout=30)) as client:
        tools = await client.discover_tools()
        assert {tool.name for tool in tools} == {"server.long_computation", "server.search", "server.weather"}
        assert await client.call_tool("search", {"query": "it"}) in ("found it", {"result": "found it"})
        kinds = [chunk["type"] async for chunk in client.call_tool_stream("long_computation", {"steps": 2})]
        assert kinds == ["progress", "progress", "data", "complete"]
