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

from isthmus.library import running
from isthmus.library.client import MCPClient
from isthmus.library.contracts import ToolStatus
from isthmus.library.errors import ConfigurationError, ServerConnectionError, ServiceClosedError, ToolExecutionError
from isthmus.library.servers import MCPServerConfig
from isthmus.library.wrapper import MCPClientWrapper
from tests.conftest import Ledger, children
from tests.library.services import raw_server, wait_for_line
from tests.unit.library.catalogs import Shelf


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
async def test_arguments_that_are_none_are_refused_by_the_hub(
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
        with pytest.raises(TypeError, match="the name of a tool must be a text, not int"):
            await call(cast(Any, 7))
    await wrapper.close()


async def test_a_server_may_be_described_by_a_dictionary() -> None:
    async with MCPClient(raw_server()) as client:
        assert await client.call_tool("echo", {"text": "hello"}) == "hello"
    with pytest.raises(ConfigurationError, match="not NoneType"):
        MCPClient(cast(Any, None))


async def test_what_happens_is_told_when_it_happens(client: MCPClient, tmp_path: Path) -> None:
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
    monkeypatch.setattr(running, "_services", {})
    await client.connect()
    with pytest.raises(ServiceClosedError):
        running.only_service()


async def test_a_tool_called_as_another_of_its_server_in_full_is_meant_by_its_own_name(client: MCPClient) -> None:
    request = await client._request(Shelf("raw.echo", "raw.raw.echo"), "raw.echo", None)
    assert (request.tool_name, request.tool_namespace) == ("raw.raw.echo", "raw")
