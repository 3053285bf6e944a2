"""The hand-written servers over their further carriers, spoken to directly: HTTP+SSE, WebSocket and plain JSON-RPC."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import MCPError
from mcp_types import TextContent
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tests.conftest import Ledger, Spawn
from tests.peers.client_sdk2 import Listener, client_over_http, client_over_sse, client_over_stdio
from tests.peers.launch import HttpPeer, command
from tests.peers.raw_protocol import MANY_PAGES, many_name

WITHIN_SECONDS = 30.0


async def answer_of(socket: ClientConnection, method: str, **params: Any) -> dict[str, Any]:
    """Ask over a socket and return the next message that is an answer."""
    await socket.send(json.dumps({"jsonrpc": "2.0", "id": method, "method": method, "params": params}))
    async with asyncio.timeout(WITHIN_SECONDS):
        async for text in socket:
            message: dict[str, Any] = json.loads(text)
            if "id" in message:
                return message
    raise AssertionError("the socket closed before the answer")


@asynccontextmanager
async def socket_to(peer: HttpPeer) -> AsyncIterator[ClientConnection]:
    async with connect(peer.socket_url, subprotocols=[Subprotocol("mcp")], proxy=None) as socket:
        yield socket


async def test_the_official_client_works_over_the_old_transport(spawn: Spawn, ledger: Ledger) -> None:
    peer = await spawn("raw_server", "--transport", "sse", "--ledger", str(ledger.path))
    received = Listener()
    async with client_over_sse(peer.at("/sse"), listener=received) as client:
        echoed = await client.call_tool("echo", {"text": "héllo"})
        await client.call_tool("pay", {"nonce": "n1"})
        await client.call_tool("grow", {"name": "more"})
        async with asyncio.timeout(WITHIN_SECONDS):
            await received.changed.wait()
        names = {tool.name for tool in (await client.list_tools()).tools}

    assert isinstance(echoed.content[0], TextContent)
    assert echoed.content[0].text == "héllo"
    assert ledger.ran() == {"n1": 1}
    assert "more" in names


async def test_an_absolute_endpoint_of_the_same_origin_is_one(spawn: Spawn) -> None:
    peer = await spawn("raw_server", "--transport", "sse", "--mode", "absolute_endpoint")
    async with client_over_sse(peer.at("/sse")) as client:
        assert (await client.list_tools()).tools


@pytest.mark.parametrize("mode", ["foreign_endpoint:http://127.0.0.1:9", "no_endpoint"])
async def test_a_stream_may_begin_without_a_usable_endpoint(mode: str, spawn: Spawn) -> None:
    peer = await spawn("raw_server", "--transport", "sse", "--mode", mode)
    async with (
        httpx2.AsyncClient(trust_env=False, timeout=WITHIN_SECONDS) as http,
        http.stream("GET", peer.at("/sse")) as stream,
    ):
        lines = stream.aiter_lines()
        async with asyncio.timeout(WITHIN_SECONDS):
            first = [await anext(lines) for _ in range(2)]
            endpoint = [await anext(lines) for _ in range(2)] if mode.startswith("foreign") else []

    assert first == [": open", ""]
    assert [line.partition("?")[0] for line in endpoint] == (
        ["event: endpoint", "data: http://127.0.0.1:9/messages"] if endpoint else []
    )


async def test_a_dropped_stream_takes_the_answer_with_it_but_not_the_deed(spawn: Spawn, ledger: Ledger) -> None:
    peer = await spawn("raw_server", "--transport", "sse", "--ledger", str(ledger.path))
    with pytest.RaisesGroup(MCPError, flatten_subgroups=True, allow_unwrapped=True):
        async with client_over_sse(peer.at("/sse")) as client:
            await client.call_tool("pay", {"nonce": "n1", "mode": "drop"})

    assert ledger.ran() == {"n1": 1}


async def test_a_socket_carries_calls_progress_and_changes(spawn: Spawn) -> None:
    peer = await spawn("raw_server", "--transport", "websocket", "--era", "legacy")
    async with socket_to(peer) as socket:
        assert socket.subprotocol == "mcp"
        hello = await answer_of(socket, "initialize", protocolVersion="2025-11-25")
        await socket.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        echoed = await answer_of(socket, "tools/call", name="echo", arguments={"text": "héllo"})
        await socket.send(
            json.dumps(
                {
                    "jsonrpc": "2.0",
                    "id": 1,
                    "method": "tools/call",
                    "params": {"name": "grow", "arguments": {"name": "x"}},
                }
            )
        )
        async with asyncio.timeout(WITHIN_SECONDS):
            said = [json.loads(await socket.recv()) for _ in range(2)]

    assert hello["result"]["serverInfo"]["name"] == "raw"
    assert echoed["result"]["content"][0]["text"] == "héllo"
    assert [message.get("method", message.get("id")) for message in said] == ["notifications/tools/list_changed", 1]


async def test_a_dropped_socket_takes_the_answer_with_it_but_not_the_deed(spawn: Spawn, ledger: Ledger) -> None:
    peer = await spawn("raw_server", "--transport", "websocket", "--ledger", str(ledger.path))
    async with socket_to(peer) as socket:
        with pytest.raises((ConnectionClosed, AssertionError)):
            await answer_of(socket, "tools/call", name="pay", arguments={"nonce": "n1", "mode": "drop"})

    assert ledger.ran() == {"n1": 1}


async def test_ten_thousand_tools_come_in_two_hundred_pages(spawn: Spawn) -> None:
    peer = await spawn("raw_server", "--mode", "many")
    async with client_over_http(peer.url, mode="legacy") as client:
        pages, cursor = [await client.list_tools()], ""
        while cursor := pages[-1].next_cursor or "":
            pages.append(await client.list_tools(cursor=cursor))
        last = await client.call_tool(many_name(9_999), {})

    assert len(pages) == MANY_PAGES
    assert len({tool.name for page in pages for tool in page.tools} - {"pay", "echo", "meta", "grow"}) == 10_000
    assert isinstance(last.content[0], TextContent)
    assert last.content[0].text == many_name(9_999)


async def test_cursors_may_go_in_a_circle(spawn: Spawn) -> None:
    peer = await spawn("raw_server", "--mode", "lying_list:circle")
    async with client_over_http(peer.url, mode="legacy") as client:
        cursors = [(await client.list_tools()).next_cursor]
        for _ in range(5):
            cursors.append((await client.list_tools(cursor=cursors[-1])).next_cursor)

    assert cursors == ["b", "c", "d", "b", "c", "d"]


async def test_a_list_may_change_all_the_time() -> None:
    received = Listener()
    async with client_over_stdio(
        command("raw_server", "--mode", "churn:1000"), mode="legacy", listener=received
    ) as client:
        async with asyncio.timeout(WITHIN_SECONDS):
            while len(received.messages) < 100:
                await received.changed.wait()
                received.changed.clear()
        described = {tool.name: tool.description for tool in (await client.list_tools()).tools}

    assert described["turn"] != "The list has changed 0 times."


async def test_a_plain_server_takes_the_method_for_the_tool(spawn: Spawn, ledger: Ledger) -> None:
    peer = await spawn("rpc_server", "--listed", "--ledger", str(ledger.path))
    async with httpx2.AsyncClient(trust_env=False, timeout=WITHIN_SECONDS) as http:

        async def ask(method: str, **params: Any) -> httpx2.Response:
            body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
            return await http.post(peer.at("/rpc"), json=body, timeout=WITHIN_SECONDS)

        listed = (await ask("tools/list")).json()
        assert {tool["name"] for tool in listed["result"]["tools"]} >= {"add", "slow", "pay"}
        assert (await ask("add", a=40, b=2)).json() == {"jsonrpc": "2.0", "id": 7, "result": {"sum": 42}}
        assert (await ask("refuse")).json()["error"]["code"] == -32050
        assert (await ask("nonsense")).json()["error"]["code"] == -32601
        assert (await ask("slow", seconds=0.01)).json()["result"] is None
        assert (await ask("pay", nonce="n1")).json()["result"] == "n1"
        assert (await ask("crash")).status_code == 500
        with pytest.raises(httpx2.RemoteProtocolError):
            await ask("hang_up")
    assert ledger.ran() == {"n1": 1}


async def test_a_plain_server_may_not_list_its_tools(spawn: Spawn) -> None:
    peer = await spawn("rpc_server")
    async with httpx2.AsyncClient(trust_env=False, timeout=WITHIN_SECONDS) as http:
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/list"}
        answer = (await http.post(peer.at("/rpc"), json=body)).json()

    assert answer["error"]["code"] == -32601
