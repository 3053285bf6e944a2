"""Every further way to a server, with real ones that also misbehave: plain JSON-RPC, WebSocket, and HTTP+SSE."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import POLL_SECONDS, Ledger, Spawn
from tests.faults.watching import eventually
from tests.hubs import TRUSTED, HubProcess, Raw, serving
from tests.matrix.field import until_complete
from tests.peers.client_sdk2 import call_with_progress, client_over_http
from tests.peers.sdk1_steps import Step, run_sdk1

ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}


async def missing_reason(hub: HubProcess, server: str, *, present: str | None = None) -> str:
    """Why a server's tools are not listed, once the hub knows and has those of the server that must be `present`."""
    async with asyncio.timeout(20), Raw(hub.url) as raw:
        while True:
            missing = (await raw.ask("tools/list"))["result"].get("_meta", {}).get("isthmus/missing", {})
            if missing.get(server, {}).get("reason") and present not in missing:
                return str(missing[server]["reason"])
            await asyncio.sleep(POLL_SECONDS)


async def until_ran(ledger: Ledger, nonce: str) -> None:
    """Wait until the server has executed a payment."""
    async with asyncio.timeout(20):
        while nonce not in ledger.ran():  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(POLL_SECONDS)


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["result"]["content"][0]["text"])


# -- plain JSON-RPC ---------------------------------------------------------------------------------------------


async def test_the_methods_of_a_plain_server_that_lists_them_are_tools(
    tmp_path: Path, spawn: Spawn, ledger: Ledger
) -> None:
    peer = await spawn("rpc_server", "--listed", "--ledger", str(ledger.path))
    async with serving(tmp_path, {"shop": {"rpc": peer.at("/rpc")}}) as hub:
        await until_complete(hub.url)
        async with client_over_http(hub.url_of("shop")) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            added = await client.call_tool("add", {"a": 40, "b": 2})
            paid = await client.call_tool("pay", {"nonce": "n1"})
            said = await client.call_tool("text", {"text": "héllo"})

    assert names >= {"add", "text", "slow", "pay", "refuse"}
    assert added.structured_content == {"sum": 42}
    assert (paid.content[0].model_dump()["text"], said.content[0].model_dump()["text"]) == ("n1", "héllo")
    assert ledger.ran() == {"n1": 1}


async def test_an_old_client_calls_a_plain_server_too(tmp_path: Path, spawn: Spawn) -> None:
    peer = await spawn("rpc_server", "--listed")
    steps: list[Step] = [{"do": "list"}, {"do": "call", "tool": "add", "arguments": {"a": 40, "b": 2}}]
    async with serving(tmp_path, {"shop": {"rpc": peer.at("/rpc")}}) as hub:
        await until_complete(hub.url)
        listed, added = await run_sdk1(steps, url=hub.url_of("shop"))

    assert "add" in {tool["name"] for tool in listed["tools"]}
    assert added["result"]["structuredContent"] == {"sum": 42}


async def test_a_plain_server_that_lists_nothing_has_the_tools_that_were_declared(tmp_path: Path, spawn: Spawn) -> None:
    peer = await spawn("rpc_server")
    declared = {"add": {"description": "Add two numbers.", "input_schema": ADD}}
    async with serving(tmp_path, {"shop": {"rpc": peer.at("/rpc"), "tools": declared}}) as hub:
        await until_complete(hub.url)
        async with Raw(hub.url) as raw:
            names = await raw.names()
            added = await raw.call("shop.add", {"a": 40, "b": 2})
            wrong = await raw.call("shop.add", {"a": "forty"})

    assert [name for name in names if name.startswith("shop.")] == ["shop.add"]
    assert added["result"]["structuredContent"] == {"sum": 42}
    assert wrong["error"]["code"] == -32602


async def test_errors_of_a_plain_server_say_whether_anything_ran(tmp_path: Path, spawn: Spawn) -> None:
    peer = await spawn("rpc_server", "--listed")
    shop = {"rpc": peer.at("/rpc")}
    async with serving(tmp_path, {"shop": shop, "hasty": {**shop, "timeout": 0.3}}) as hub:
        await until_complete(hub.url)
        async with Raw(hub.url) as raw:

            async def is_connected() -> bool:
                return "result" in await raw.call("hasty.add", {"a": 1, "b": 1})

            # On a connection that is there, a call has left before its time can be up.
            await eventually(is_connected, "the hasty one is connected")
            refused = (await raw.call("shop.refuse"))["error"]
            crashed = (await raw.call("shop.crash"))["error"]
            late = (await raw.call("hasty.slow", {"seconds": 60}))["error"]
            mumbled = (await raw.call("shop.mumble"))["error"]
            hung_up = (await raw.call("shop.hang_up"))["error"]

    assert (refused["code"], refused["message"], refused["data"]["opens"]) == (-32050, "the shop is closed", "tomorrow")
    assert refused["data"]["executed"] == "yes"
    assert {fault["data"]["executed"] for fault in (crashed, mumbled, hung_up, late)} == {"unknown"}


# -- WebSocket --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", "modern", "both"])
async def test_a_server_behind_a_socket_is_like_any_other(
    era: str, tmp_path: Path, spawn: Spawn, ledger: Ledger
) -> None:
    peer = await spawn(
        "raw_server", "--transport", "websocket", "--era", era, "--ledger", str(ledger.path), "--mode", "progress:3"
    )
    async with serving(tmp_path, {"socket": {"url": peer.socket_url}}) as hub:
        await until_complete(hub.url)
        async with client_over_http(hub.url_of("socket")) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            paid, progress = await call_with_progress(client, "pay", {"nonce": "n1"})

    assert names == {"pay", "echo", "meta", "grow"}
    assert paid.content[0].model_dump()["text"] == "n1"
    assert [done for done, *_ in progress] == [1, 2, 3]
    assert ledger.ran() == {"n1": 1}


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_a_call_whose_connection_breaks_is_unknown_once_and_the_next_one_works(
    transport: str, tmp_path: Path, spawn: Spawn, ledger: Ledger
) -> None:
    peer = await spawn("raw_server", "--transport", transport, "--ledger", str(ledger.path))
    url = peer.at("/sse") if transport == "sse" else peer.socket_url
    async with serving(tmp_path, {"odd": {"url": url}}) as hub:
        await until_complete(hub.url)
        async with Raw(hub.url) as raw:
            broken = (await raw.call("odd.pay", {"nonce": "n1", "mode": "drop"}))["error"]
            await until_complete(hub.url)
            again = await raw.call("odd.pay", {"nonce": "n2"})

    assert (broken["code"], broken["data"]["executed"]) == (-32012, "unknown")
    assert text_of(again) == "n2"
    assert ledger.ran() == {"n1": 1, "n2": 1}


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_an_answer_under_a_wrong_id_is_dropped(
    transport: str, tmp_path: Path, spawn: Spawn, ledger: Ledger
) -> None:
    peer = await spawn("raw_server", "--transport", transport, "--ledger", str(ledger.path))
    url = peer.at("/sse") if transport == "sse" else peer.socket_url
    async with serving(tmp_path, {"odd": {"url": url}}) as hub:
        await until_complete(hub.url)
        async with Raw(hub.url) as raw, asyncio.TaskGroup() as group:
            waiting = group.create_task(raw.call("odd.pay", {"nonce": "n1", "mode": "wrong_id"}))
            await until_ran(ledger, "n1")
            echoed = await raw.call("odd.echo", {"text": "b"}, id=2)
            await peer.kill()
            lost = await waiting

    assert lost["error"]["data"]["executed"] == "unknown"
    assert text_of(echoed) == "b"


# -- HTTP+SSE ---------------------------------------------------------------------------------------------------


async def test_an_absolute_endpoint_of_the_same_origin_is_used(tmp_path: Path, spawn: Spawn) -> None:
    peer = await spawn("raw_server", "--transport", "sse", "--mode", "absolute_endpoint")
    async with serving(tmp_path, {"old": {"url": peer.at("/sse")}}) as hub:
        await until_complete(hub.url)
        async with Raw(hub.url) as raw:
            assert text_of(await raw.call("old.echo", {"text": "héllo"})) == "héllo"


async def test_nothing_is_ever_posted_to_an_endpoint_of_another_origin(
    tmp_path: Path, spawn: Spawn, ledger: Ledger
) -> None:
    other = await spawn("raw_server", "--transport", "sse", "--ledger", str(ledger.path))
    peer = await spawn("raw_server", "--transport", "sse", "--mode", f"foreign_endpoint:{other.at('')}")
    async with (
        serving(tmp_path, {"old": {"type": "sse", "url": peer.at("/sse")}}) as hub,
        httpx2.AsyncClient(verify=TRUSTED) as client,
    ):
        shown = await missing_reason(hub, "old")
        whole = (await client.get(f"http://127.0.0.1:{hub.port}/v1/servers/old")).json()["reason"]

    assert "wants its messages sent to" in shown
    assert other.at("") in whole, "the operator gets the address"
    assert other.at("") not in shown
    assert ledger.lines() == []


async def test_a_stream_that_never_names_an_endpoint_costs_only_its_own_server(tmp_path: Path, spawn: Spawn) -> None:
    silent = await spawn("raw_server", "--transport", "sse", "--mode", "no_endpoint")
    steady = await spawn("raw_server", "--transport", "sse")
    servers = {
        "silent": {"type": "sse", "url": silent.at("/sse")},
        "steady": {"type": "sse", "url": steady.at("/sse")},
    }
    async with serving(tmp_path, servers, limits={"connect_seconds": 1, "listing_seconds": 1}) as hub:
        assert await missing_reason(hub, "silent", present="steady")
        async with Raw(hub.url) as raw:
            assert text_of(await raw.call("steady.echo", {"text": "here"})) == "here"
