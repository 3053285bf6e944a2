"""The official clients against the official servers, with nothing between them.

This proves the peers before the hub is tested with them, and it pins what works without a hub and what does
not: facts about the SDKs that the hub has to live with.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from mcp import Client, MCPError
from mcp_types import TextContent

from tests.conftest import Ledger, Spawn
from tests.peers.client_sdk2 import (
    Listener,
    Mode,
    call_with_progress,
    cancel_once_begun,
    client_over_http,
    client_over_stdio,
)
from tests.peers.launch import HttpPeer, command, http_peer
from tests.peers.sdk1_steps import Step, run_sdk1

Carrier = Literal["stdio", "stateful", "stateless"]

SERVERS = ("server_sdk1", "server_sdk2", "server_fastmcp")
CARRIERS: tuple[Carrier, ...] = ("stdio", "stateful", "stateless")
TOOLS = {"echo", "add", "slow", "cancellable", "fail", "boom", "meta", "decorated", "grow"}
MODERN = "2026-07-28"
LEGACY = "2025-11-25"
META = "io.modelcontextprotocol/"

COMBINATIONS = [
    (server, carrier, mode)
    for server in SERVERS
    for carrier in CARRIERS
    for mode in ("legacy", MODERN)
    if not (server == "server_sdk1" and mode == MODERN)
]


@asynccontextmanager
async def connected(
    server: str, carrier: Carrier, mode: Mode, ledger: Ledger, *options: str, listener: Listener | None = None
) -> AsyncIterator[Client]:
    """An mcp 2.x client with a server of its own."""
    if carrier == "stdio":
        words = command(server, *options)
        async with client_over_stdio(words, mode=mode, env=ledger.env, listener=listener) as client:
            yield client
        return
    flags = ("--stateless",) if carrier == "stateless" else ()
    async with (
        http_peer(server, *flags, *options, env=ledger.env) as peer,
        client_over_http(peer.url, mode=mode, listener=listener) as client,
    ):
        yield client


@pytest.mark.parametrize(("server", "carrier", "mode"), COMBINATIONS)
async def test_a_new_client_lists_calls_cancels_and_gets_progress_and_changes_where_the_server_can(
    server: str, carrier: Carrier, mode: Mode, ledger: Ledger
) -> None:
    listener = Listener()
    async with connected(server, carrier, mode, ledger, listener=listener) as client:
        assert client.protocol_version == (MODERN if mode == MODERN else LEGACY)
        await assert_lists_calls_and_hears_progress(client, mode)
        await assert_cancels(client, ledger, is_told=(carrier, mode) != ("stateless", "legacy"))
        if mode == MODERN:
            await assert_hears_change_by_subscription(client, is_served=server == "server_sdk2")
        else:
            is_told = carrier != "stateless" or server == "server_fastmcp"
            await assert_hears_change_by_itself(client, listener, is_told=is_told)


async def assert_lists_calls_and_hears_progress(client: Client, mode: Mode) -> None:
    listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    echoed = await client.call_tool("echo", {"text": "héllo"})
    added = await client.call_tool("add", {"a": 40, "b": 2})
    slow, progress = await call_with_progress(client, "slow", {"seconds": 0.03, "steps": 3})
    failed = await client.call_tool("fail", {})
    crashed = await client.call_tool("boom", {})
    trace: Any = {"example.org/trace": "t1"}
    meta = json.loads(text(await client.call_tool("meta", {}, meta=trace)))

    assert set(listed) == TOOLS
    assert listed["add"].output_schema is not None
    assert_is_decorated(listed["decorated"].model_dump(by_alias=True))
    assert (text(echoed), echoed.structured_content) == ("héllo", {"text": "héllo"})
    assert added.structured_content == {"sum": 42}
    assert (text(slow), progress) == ("3 steps", [(step, 3, f"step {step}") for step in (1, 2, 3)])
    assert (failed.is_error, crashed.is_error) == (True, True)
    assert "this tool always fails" in text(failed)
    assert meta["example.org/trace"] == "t1"
    assert (META + "protocolVersion" in meta) == (mode == MODERN)


async def assert_cancels(client: Client, ledger: Ledger, *, is_told: bool) -> None:
    await cancel_once_begun(client, "cancellable", {"token": "t"})
    if is_told:
        await ledger.wait_for("cancelled t")
    else:
        # Nothing ties the notification to the call: the server runs on until the connection goes.
        await client.call_tool("echo", {"text": "barrier"})
        assert "cancelled t" not in ledger.lines()


async def assert_hears_change_by_itself(client: Client, listener: Listener, *, is_told: bool) -> None:
    await client.call_tool("grow", {"name": "more"})
    if is_told:
        await asyncio.wait_for(listener.changed.wait(), 20)
    else:
        assert not listener.changed.is_set()
    assert "more" in {tool.name for tool in (await client.list_tools()).tools}


async def assert_hears_change_by_subscription(client: Client, *, is_served: bool) -> None:
    if not is_served:
        with pytest.raises(MCPError, match="Method not found"):
            async with client.listen(tools_list_changed=True):
                pass
        return
    async with asyncio.timeout(20), client.listen(tools_list_changed=True) as changes:
        await client.call_tool("grow", {"name": "more"})
        await anext(aiter(changes))
    assert "more" in {tool.name for tool in (await client.list_tools()).tools}


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("server", SERVERS)
async def test_an_old_client_works_with_every_server(server: str, carrier: Carrier, ledger: Ledger) -> None:
    answered = answer_to_a_cancelled_call(server, carrier)
    steps: list[Step] = [
        {"do": "hello"},
        {"do": "list"},
        {"do": "ping"},
        {"do": "call", "tool": "add", "arguments": {"a": 40, "b": 2}},
        {"do": "call", "tool": "slow", "arguments": {"seconds": 0.03, "steps": 3}, "progress": True},
        {"do": "call", "tool": "meta", "meta": {"example.org/trace": "t1"}},
        {"do": "cancel", "tool": "cancellable", "arguments": {"token": "t"}, "grace": 15 if answered else 1},
        {"do": "call", "tool": "grow", "arguments": {"name": "more"}},
        {"do": "changed", "within": 0.5 if carrier == "stateless" and server != "server_fastmcp" else 20},
    ]
    if carrier == "stdio":
        answers = await run_sdk1(steps, server=command(server), env=ledger.env)
    else:
        flags = ("--stateless",) if carrier == "stateless" else ()
        async with http_peer(server, *flags, env=ledger.env) as peer:
            answers = await run_sdk1(steps, url=peer.url)
    hello, listed, pong, added, slow, meta, cancelled, grown, changed = answers

    assert hello["hello"]["protocolVersion"] == LEGACY
    assert {tool["name"] for tool in listed["tools"]} == TOOLS
    assert_is_decorated(next(tool for tool in listed["tools"] if tool["name"] == "decorated"))
    assert (pong["ok"], grown["ok"]) == (True, True)
    assert added["result"]["structuredContent"] == {"sum": 42}
    assert slow["progress"] == [[step, 3, f"step {step}"] for step in (1, 2, 3)]
    assert json.loads(meta["result"]["content"][0]["text"])["example.org/trace"] == "t1"
    assert cancelled["answer"] == answered
    assert changed["ok"] == (carrier != "stateless" or server == "server_fastmcp")


def answer_to_a_cancelled_call(server: str, carrier: Carrier) -> dict[str, Any]:
    """What a server says to a legacy caller that cancelled; an empty answer is silence."""
    if carrier == "stateless":
        return {}  # the notification never finds the call
    if server == "server_sdk1":
        return {"error": {"code": 0, "message": "Request cancelled"}}
    # mcp 2.x keeps silent, as the specification wants; over HTTP it must end the request's stream somehow.
    return {} if carrier == "stdio" else {"error": {"code": -32800, "message": "Request cancelled"}}


@pytest.mark.parametrize("carrier", ["stdio", "stateful"])
@pytest.mark.parametrize("server", ["server_sdk2", "server_fastmcp"])
async def test_a_server_can_be_held_to_one_era(server: str, carrier: Carrier, ledger: Ledger) -> None:
    async with connected(server, carrier, "auto", ledger, "--era", "legacy") as client:
        assert client.protocol_version == LEGACY
        assert len((await client.list_tools()).tools) == len(TOOLS)
    async with connected(server, carrier, "auto", ledger, "--era", "modern") as client:
        assert client.protocol_version == MODERN
        assert len((await client.list_tools()).tools) == len(TOOLS)
    with pytest.RaisesGroup(MCPError, flatten_subgroups=True, allow_unwrapped=True) as refused:
        async with connected(server, carrier, "legacy", ledger, "--era", "modern"):
            pass
    assert "-32022" in repr(refused.value) or "Unsupported protocol version" in repr(refused.value)


@pytest.mark.parametrize("server", SERVERS)
async def test_json_answers_carry_no_progress(server: str, spawn: Spawn, ledger: Ledger) -> None:
    peer = await spawn(server, "--json", env=ledger.env)
    for mode in ("legacy", "auto"):
        async with client_over_http(peer.url, mode=mode) as client:
            slow, progress = await call_with_progress(client, "slow", {"seconds": 0.03, "steps": 3})

        assert (text(slow), progress) == ("3 steps", [])


LOST = [
    ((), "legacy", "runs on"),
    ((), MODERN, "is cancelled"),
    (("--stateless",), "legacy", "is cancelled"),
    (("--json",), MODERN, "runs on"),
    (("--json", "--stateless"), "legacy", "runs on"),
]
"""What becomes of a call whose connection is lost; the same in all three SDKs."""


@pytest.mark.parametrize(
    ("server", "options", "mode", "fate"),
    [(server, *lost) for server in SERVERS for lost in LOST if (server, lost[1]) != ("server_sdk1", MODERN)],
)
async def test_a_lost_connection_cancels_a_call_only_on_event_streams_without_session(
    server: str, options: tuple[str, ...], mode: Mode, fate: str, spawn: Spawn, ledger: Ledger
) -> None:
    peer = await spawn(server, *options, env=ledger.env)
    session = await open_session(peer) if mode == "legacy" and "--stateless" not in options else {}

    _, writer = await post(peer, cancellable("t", mode), {**headers_of(mode, "cancellable"), **session})
    await ledger.wait_for("started t")
    writer.transport.abort()

    if fate == "is cancelled":
        await ledger.wait_for("cancelled t")
    else:
        async with client_over_http(peer.url, mode=mode) as client:
            await client.call_tool("echo", {"text": "barrier"})
        assert "cancelled t" not in ledger.lines()


def text(result: Any) -> str:
    first = result.content[0]
    assert isinstance(first, TextContent)
    return first.text


def assert_is_decorated(tool: dict[str, Any]) -> None:
    assert tool["title"] == "A decorated tool"
    assert tool["annotations"]["readOnlyHint"] is True
    assert tool["icons"][0]["sizes"] == ["16x16"]
    assert tool["_meta"]["example.org/colour"] == "blue"


def cancellable(token: str, mode: Mode) -> dict[str, Any]:
    era: dict[str, Any] = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}} if mode == MODERN else {}
    params = {"name": "cancellable", "arguments": {"token": token}, "_meta": {"progressToken": 1, **era}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


def headers_of(mode: Mode, tool: str) -> dict[str, str]:
    if mode == MODERN:
        return {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": tool}
    return {"MCP-Protocol-Version": LEGACY}


async def open_session(peer: HttpPeer) -> dict[str, str]:
    """Do a legacy handshake by hand; return the header that names the session."""
    info = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": info}
    reader, writer = await post(peer, hello, {})
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    writer.close()
    session = next(line.partition(": ")[2] for line in head if line.startswith("mcp-session-id"))
    reader, writer = await post(
        peer, {"jsonrpc": "2.0", "method": "notifications/initialized"}, {"Mcp-Session-Id": session}
    )
    assert b" 202 " in await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return {"Mcp-Session-Id": session}


async def post(
    peer: HttpPeer, message: dict[str, Any], headers: dict[str, str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send one request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.port)
    body = json.dumps(message).encode()
    lines = [
        "POST /mcp HTTP/1.1",
        f"Host: 127.0.0.1:{peer.port}",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    return reader, writer
