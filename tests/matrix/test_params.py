"""A tool that requires an argument repeated in a header, called by clients with and without that feature."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mcp import Client

from tests.faults.caller import Caller
from tests.faults.watching import eventually
from tests.hubs import HubProcess, serving
from tests.peers.forking import quickly
from tests.peers.launch import listening_peer

SERVER = Path(__file__).with_name("routed_server.py")
FIXED = {"tools": ["routed.*"], "tool": {"routed.where": {"fixed": {"region": "größe"}}}}


@asynccontextmanager
async def routed(folder: Path) -> AsyncIterator[HubProcess]:
    """A hub in front of a server that demands the header."""
    async with (
        listening_peer(quickly([sys.executable, str(SERVER)])) as peer,
        serving(folder, {"routed": {"url": peer.url}}, sets={"fixed": FIXED}) as hub,
    ):
        yield hub


async def until_called(hub: HubProcess) -> None:
    """Call it as earlier callers do: the hub writes the header that its server demands."""
    async with Caller(hub.port, era="legacy") as caller:

        async def is_answered() -> bool:
            answer = await caller.call("routed.where", {"region": "größe"})
            return answer.message.error is None and answer.text == "größe"

        await eventually(is_answered, "the call is answered", within=30.0)


async def test_an_argument_is_repeated_in_the_header_that_its_server_demands(tmp_path: Path) -> None:
    async with routed(tmp_path) as hub:
        await until_called(hub)


async def test_the_official_client_repeats_it_towards_the_hub(tmp_path: Path) -> None:
    async with routed(tmp_path) as hub:
        await until_called(hub)
        async with Client(hub.url) as client:
            await client.list_tools()
            result = await client.call_tool("routed.where", {"region": "größe"})
            assert [part.model_dump()["text"] for part in result.content] == ["größe"]


async def test_a_modern_caller_that_does_not_is_refused_by_the_hub(tmp_path: Path) -> None:
    async with routed(tmp_path) as hub:
        await until_called(hub)
        async with Caller(hub.port) as caller:
            answer = await caller.call("routed.where", {"region": "eu"})
            assert answer.status == 400
            assert answer.message.error is not None
            assert answer.message.error["code"] == -32020


async def test_an_argument_that_a_set_fixes_is_repeated_in_the_header_too(tmp_path: Path) -> None:
    async with routed(tmp_path) as hub:
        await until_called(hub)
        async with Client(hub.url_of("fixed")) as client:
            await client.list_tools()
            result = await client.call_tool("where", {})
            assert [part.model_dump()["text"] for part in result.content] == ["größe"]
