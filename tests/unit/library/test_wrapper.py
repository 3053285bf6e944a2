"""One server for an agent that works with texts: which ends of a call are words, and which are raised."""

from __future__ import annotations

import logging

import pytest

from isthmus.library.catalog import Catalog
from isthmus.library.contracts import ToolResult, ToolStatus
from isthmus.library.errors import ServerConnectionError, ToolExecutionError, WrongThreadError
from isthmus.library.owner import Owner
from isthmus.library.servers import MCPServerConfig
from isthmus.library.wrapper import MCPClientWrapper
from isthmus.model.calls import EVERYTHING
from tests.faults import light_server
from tests.unit.core.doubles import tool
from tests.unit.library.benches import Bench, said
from tests.unit.library.catalogs import routes_of

CONFIG = MCPServerConfig("files", command="never-started")


def wrapper(bench: Bench) -> MCPClientWrapper:
    return MCPClientWrapper(CONFIG, service=bench)


async def test_the_tools_of_this_server_are_told_in_the_words_of_the_protocol() -> None:
    found = await wrapper(Bench("files.read", "files.a.b", "other.read")).discover_tools()
    assert [tool["name"] for tool in found] == ["read", "a.b"]
    assert all(tool["inputSchema"]["type"] == "object" for tool in found)


async def test_all_that_a_server_says_of_a_tool_is_told() -> None:
    more = {"title": "Read", "annotations": {"readOnlyHint": True}, "outputSchema": {"type": "object"}}
    bench = Bench()
    bench.tell(Catalog({EVERYTHING: routes_of(tool("read", "files", description="reads", **more))}))
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
async def test_a_server_that_is_slow_or_lost_is_told_in_words(status: ToolStatus) -> None:
    bench = Bench("files.read")
    bench.result = ToolResult("files.read", status, error_message="it took too long")
    assert await wrapper(bench).call_tool("read") == "Error: it took too long"
    assert wrapper(bench).call_tool_blocking("read") == "Error: it took too long"


@pytest.mark.parametrize(
    "status", [ToolStatus.ERROR, ToolStatus.INVALID_PARAMETERS, ToolStatus.NOT_FOUND, ToolStatus.CANCELLED]
)
async def test_what_the_tool_refused_is_raised(status: ToolStatus) -> None:
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


async def test_a_tool_that_is_unknown_because_its_server_is_away_is_told_in_words() -> None:
    bench = Bench(missing={"files": "it ended"})
    bench.result = ToolResult("files.read", ToolStatus.NOT_FOUND, error_message="Server files is not connected")
    assert (await wrapper(bench).call_tool("read")).startswith("Error: Server files")


async def test_a_server_that_is_not_there_cannot_be_connected() -> None:
    client = wrapper(Bench(missing={"files": "it ended"}))
    assert not client.is_connected
    with pytest.raises(ServerConnectionError, match="'files' cannot be reached: it ended"):
        await client.connect()


async def test_after_closing_nothing_is_connected_and_calls_are_told_so() -> None:
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


async def test_a_service_that_was_shut_down_is_told_in_words() -> None:
    bench = Bench("files.read")
    await bench.shutdown()
    assert "shut down" in await wrapper(bench).call_tool("read")
    assert "shut down" in wrapper(bench).call_tool_blocking("read")
    assert not wrapper(bench).is_connected


def test_a_blocking_call_on_the_loop_that_answers_names_what_to_await() -> None:
    client = wrapper(Bench("files.read"))
    with pytest.raises(WrongThreadError, match="async_func"):
        Owner.shared().call(client.call_tool_blocking, "read")


async def test_a_call_is_logged_by_names_and_sizes_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "isthmus.library")
    bench = Bench("files.read")
    bench.result = said("top secret")
    await wrapper(bench).call_tool("read", {"path": "/home/ada/secret"})
    assert "Calling files.read with path (18)" in caplog.text
    assert "10 characters" in caplog.text
    assert "secret" not in caplog.text
