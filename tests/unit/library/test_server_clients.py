"""One server behind a client: connected when it is needed, called by its own names, and let go of."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from isthmus.library import resolver
from isthmus.library.catalog import Catalog
from isthmus.library.errors import (
    ConfigurationError,
    ServerConnectionError,
    ServiceClosedError,
    ToolExecutionError,
    WrongThreadError,
)
from isthmus.library.loop_thread import LoopThread
from isthmus.library.public_types import ToolResult, ToolStatus
from isthmus.library.server_clients import MCPClient, MCPClientWrapper
from isthmus.library.server_config import MCPServerConfig
from isthmus.model.calls import EVERYTHING
from tests.conftest import Ledger, children
from tests.faults import light_server
from tests.library.services import raw_server, wait_for_line
from tests.unit.core.doubles import tool
from tests.unit.library.benches import Bench, text_result
from tests.unit.library.catalogs import CatalogService, routes_of


@pytest.fixture
async def client(ledger: Ledger) -> AsyncIterator[MCPClient]:
    made = MCPClient(MCPServerConfig(**raw_server(ledger=ledger.path)))
    yield made
    await made.close()


async def test_it_connects_when_it_is_first_needed_and_only_once(client: MCPClient) -> None:
    before = children()
    assert not client.is_connected
    lists = await asyncio.gather(*(client.discover_tools() for _ in range(5)))
    assert [{tool.name for tool in tools} for tools in lists] == [{"raw.pay", "raw.echo", "raw.meta", "raw.grow"}] * 5
    assert len(children() - before) == 1
    assert client.is_connected


async def test_a_tool_is_called_by_its_own_name_or_in_full(client: MCPClient) -> None:
    assert await client.call_tool("echo", {"text": "hello"}) == "hello"
    assert await client.call_tool("raw.echo", {"text": "hello"}) == "hello"


async def test_a_failure_is_raised_with_how_it_failed(client: MCPClient) -> None:
    with pytest.raises(ToolExecutionError, match=r"Did you mean raw\.echo") as unknown:
        await client.call_tool("ecko")
    assert unknown.value.result is not None
    assert unknown.value.result.status is ToolStatus.NOT_FOUND
    with pytest.raises(ToolExecutionError) as elsewhere:
        await client.call_tool("builtin.echo", {"text": "hello"})
    assert elsewhere.value.result is not None
    assert elsewhere.value.result.status is ToolStatus.NOT_FOUND


@pytest.mark.parametrize("odd", [["x"], "x", 7, {"text": "\ud800"}, {"text": object()}, {"text": math.nan}])
async def test_invalid_arguments_are_refused_by_the_hub(
    client: MCPClient, caplog: pytest.LogCaptureFixture, odd: Any
) -> None:
    caplog.set_level(logging.DEBUG, "isthmus.library")
    wrapper = MCPClientWrapper(client.config)
    await wrapper.connect()
    for called in (client.call_tool("echo", odd), wrapper.call_tool("echo", odd)):
        with pytest.raises(ToolExecutionError, match=r"Invalid arguments for raw\.echo: ") as refused:
            await called
        assert refused.value.result is not None
        assert refused.value.result.status is ToolStatus.INVALID_PARAMETERS
    for call in (client.call_tool, wrapper.call_tool):
        with pytest.raises(TypeError, match="the name of a tool must be a string, not int"):
            await call(cast(Any, 7))
    await wrapper.close()


async def test_a_server_may_be_described_by_a_dictionary() -> None:
    async with MCPClient(raw_server()) as client:
        assert await client.call_tool("echo", {"text": "hello"}) == "hello"
    with pytest.raises(ConfigurationError, match="not NoneType"):
        MCPClient(cast(Any, None))


async def test_events_are_reported_as_they_happen(client: MCPClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    chunks = []
    async for chunk in client.call_tool_stream("pay", {"nonce": "n", "mode": f"progress:3,until:{gate}"}):
        chunks.append(chunk)
        if chunk["type"] == "progress" and chunk["content"]["progress"] == 3:
            gate.touch()  # until then the tool cannot end
    assert [chunk["type"] for chunk in chunks] == ["progress", "progress", "progress", "data", "complete"]
    assert [chunk["sequence_id"] for chunk in chunks] == [0, 1, 2, 3, 4]
    assert [chunk["is_final"] for chunk in chunks] == [False, False, False, False, True]
    assert chunks[-1]["content"] == "n"
    assert all(first["timestamp"] <= second["timestamp"] for first, second in pairwise(chunks))


async def test_a_failure_is_the_last_chunk(client: MCPClient) -> None:
    chunks = [chunk async for chunk in client.call_tool_stream("ecko")]
    assert [(chunk["type"], chunk["is_final"]) for chunk in chunks] == [("error", True)]
    assert "Did you mean raw.echo" in chunks[0]["content"]


async def test_a_stream_that_is_closed_while_it_connects_calls_nothing(client: MCPClient, ledger: Ledger) -> None:
    stream = client.call_tool_stream("pay", {"nonce": "unwanted"})
    reading = asyncio.create_task(anext(stream, None))
    await asyncio.sleep(0)  # it has begun to connect
    await stream.aclose()
    assert await reading is None
    await client.call_tool("pay", {"nonce": "after"})
    assert "unwanted" not in ledger.path.read_text()


async def test_closing_the_stream_cancels_the_call_at_the_server(client: MCPClient, ledger: Ledger) -> None:
    stream = client.call_tool_stream("pay", {"nonce": "n", "mode": "progress:1,sleep:60"})
    assert (await anext(stream))["type"] == "progress"
    await stream.aclose()
    await asyncio.to_thread(wait_for_line, ledger.path, '"cancelled":')
    assert [chunk async for chunk in stream] == []


async def test_a_stream_that_was_never_read_runs_nothing(client: MCPClient) -> None:
    await client.call_tool_stream("pay", {"nonce": "n"}).aclose()
    assert not client.is_connected


async def test_a_block_connects_and_closes() -> None:
    before = children()
    async with MCPClient(MCPServerConfig(**raw_server())) as client:
        assert len(children() - before) == 1
    assert not client.is_connected
    assert children() == before
    await client.close()


async def test_a_server_that_cannot_be_reached_is_tried_anew_each_time(deaf_port: int) -> None:
    client = MCPClient(MCPServerConfig("gone", f"http://127.0.0.1:{deaf_port}/mcp"))
    for attempt in (client.connect, client.discover_tools):
        with pytest.raises(ServerConnectionError, match=r"Server 'gone' cannot be reached: .*refused"):
            await attempt()
    assert not client.is_connected
    await client.close()


async def test_its_service_is_not_that_of_the_process(client: MCPClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "_services", {})
    await client.connect()
    with pytest.raises(ServiceClosedError):
        resolver.default_service()


async def test_a_tool_called_as_another_of_its_server_in_full_is_meant_by_its_own_name(client: MCPClient) -> None:
    request = await client._request(CatalogService("raw.echo", "raw.raw.echo"), "raw.echo", None)
    assert (request.tool_name, request.tool_namespace) == ("raw.raw.echo", "raw")


CONFIG = MCPServerConfig("files", command="never-started")


def wrapper(bench: Bench) -> MCPClientWrapper:
    return MCPClientWrapper(CONFIG, service=bench)


async def test_the_tools_of_this_server_have_the_words_of_the_protocol() -> None:
    found = await wrapper(Bench("files.read", "files.a.b", "other.read")).discover_tools()
    assert [tool["name"] for tool in found] == ["read", "a.b"]
    assert all(tool["inputSchema"]["type"] == "object" for tool in found)


async def test_everything_that_a_server_says_of_a_tool_is_passed_on() -> None:
    more = {"title": "Read", "annotations": {"readOnlyHint": True}, "outputSchema": {"type": "object"}}
    bench = Bench()
    bench.set_catalog(Catalog({EVERYTHING: routes_of(tool("read", "files", description="reads", **more))}))
    (found,) = await wrapper(bench).discover_tools()
    assert found == {"name": "read", "description": "reads", **more, "inputSchema": {"type": "object"}}


async def test_by_itself_it_has_a_connection_of_its_own() -> None:
    program, *words = light_server.command("mark")
    client = MCPClientWrapper(MCPServerConfig("files", command=program, args=words))
    await client.close()
    async with client:
        assert await client.call_tool("pay") == "mark"
        assert client.call_tool_blocking("pay") == "mark"
    assert not client.is_connected


async def test_a_call_goes_to_the_tool_of_that_very_name() -> None:
    bench = Bench("files.a.b")
    assert await wrapper(bench).call_tool("a.b", {"x": 1}) == "done"
    assert wrapper(bench).call_tool_blocking("a.b") == "done"
    assert [(request.tool_name, request.parameters) for request in bench.requests] == [
        ("files.a.b", {"x": 1}),
        ("files.a.b", {}),
    ]


@pytest.mark.parametrize("status", [ToolStatus.TIMEOUT, ToolStatus.UNAVAILABLE])
async def test_a_slow_or_lost_server_is_reported_in_words(status: ToolStatus) -> None:
    bench = Bench("files.read")
    bench.result = ToolResult("files.read", status, error_message="it took too long")
    assert await wrapper(bench).call_tool("read") == "Error: it took too long"
    assert wrapper(bench).call_tool_blocking("read") == "Error: it took too long"


@pytest.mark.parametrize(
    "status", [ToolStatus.ERROR, ToolStatus.INVALID_PARAMETERS, ToolStatus.NOT_FOUND, ToolStatus.CANCELLED]
)
async def test_a_refusal_of_the_tool_is_raised(status: ToolStatus) -> None:
    bench = Bench("files.read")
    bench.result = ToolResult("files.read", status, error_message="no such file")
    with pytest.raises(ToolExecutionError, match="no such file") as caught:
        await wrapper(bench).call_tool("read")
    assert caught.value.result is bench.result
    with pytest.raises(ToolExecutionError):
        wrapper(bench).call_tool_blocking("read")


async def test_an_error_is_no_longer_than_a_result_may_be() -> None:
    bench = Bench("files.read")
    bench.result = ToolResult("files.read", ToolStatus.ERROR, error_message="x" * 100_000)
    with pytest.raises(ToolExecutionError, match="95,000 of 100,000 characters left out"):
        await wrapper(bench).call_tool("read")


async def test_a_tool_that_is_unknown_because_its_server_is_away_is_reported_in_words() -> None:
    bench = Bench(missing={"files": "it ended"})
    bench.result = ToolResult("files.read", ToolStatus.NOT_FOUND, error_message="Server files is not connected")
    assert (await wrapper(bench).call_tool("read")).startswith("Error: Server files")


async def test_a_server_that_is_not_there_cannot_be_connected() -> None:
    client = wrapper(Bench(missing={"files": "it ended"}))
    assert not client.is_connected
    with pytest.raises(ServerConnectionError, match="'files' cannot be reached: it ended"):
        await client.connect()


async def test_after_closing_nothing_is_connected_and_calls_get_an_error() -> None:
    bench = Bench("files.read")
    async with wrapper(bench) as client:
        states = [client.is_connected]
    states.append(client.is_connected)
    assert states == [True, False]
    assert bench.is_open, "it is somebody else's"
    assert await client.call_tool("read") == "Error: MCP server files is not connected."
    assert client.call_tool_blocking("read") == "Error: MCP server files is not connected."
    with pytest.raises(ServerConnectionError, match="call `connect` first"):
        await client.discover_tools()


async def test_a_service_that_was_shut_down_is_reported_in_words() -> None:
    bench = Bench("files.read")
    await bench.shutdown()
    assert "shut down" in await wrapper(bench).call_tool("read")
    assert "shut down" in wrapper(bench).call_tool_blocking("read")
    assert not wrapper(bench).is_connected


def test_a_blocking_call_on_the_answering_loop_names_the_async_method() -> None:
    client = wrapper(Bench("files.read"))
    with pytest.raises(WrongThreadError, match="async_func"):
        LoopThread.shared().call(client.call_tool_blocking, "read")


async def test_a_call_is_logged_by_names_and_sizes_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "isthmus.library")
    bench = Bench("files.read")
    bench.result = text_result("top secret")
    await wrapper(bench).call_tool("read", {"path": "/home/ada/secret"})
    assert "Calling files.read with path (18)" in caplog.text
    assert "10 characters" in caplog.text
    assert "secret" not in caplog.text
