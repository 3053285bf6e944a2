"""Links of a hub: started programs get the number of hubs above them, and it is limited."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from isthmus.app.links import HOPS_VARIABLE, Links, hops_in
from isthmus.core.background import BackgroundTasks
from isthmus.core.settings import Limits
from isthmus.core.watch.server_tasks import ServerTasks
from isthmus.model.fault_table import Lost
from isthmus.model.names import ServerName
from isthmus.transport.egress import DialAddress, Egress, HttpOrigin, Resolver
from isthmus.upstream.a2a.link import AgentLink
from isthmus.upstream.base_link import BaseLink, ConnectFailed
from isthmus.upstream.server_settings import AgentSettings, Carrier, ServerSettings, StdioSettings, TargetHttpSettings
from tests.unit.transport.doubles import Server

PROGRAM = """
import json, os, sys
answer = {"supportedVersions": ["2026-07-28"], "_meta": {"isthmus/hubs": {os.environ["ISTHMUS_HOPS"]: 5}}}
for line in sys.stdin:
    print(json.dumps({"jsonrpc": "2.0", "id": json.loads(line)["id"], "result": answer}), flush=True)
"""


@asynccontextmanager
async def linked(environment: Mapping[str, str]) -> AsyncIterator[BaseLink]:
    background = BackgroundTasks("links")
    links = Links(Limits(), environment, background, ServerTasks(lambda: 0.0))
    reach = StdioSettings(sys.executable, ("-c", PROGRAM), env={HOPS_VARIABLE: "0"})
    link = await links.connect(ServerSettings(ServerName("files"), reach), "auto")
    try:
        yield link
    finally:
        await link.aclose()
        await background.aclose()


@pytest.mark.parametrize(
    ("before", "expected"), [({}, "1"), ({HOPS_VARIABLE: "7"}, "8"), ({HOPS_VARIABLE: "many"}, "1")]
)
async def test_a_program_learns_how_many_hubs_started_each_other(before: Mapping[str, str], expected: str) -> None:
    async with linked(before) as link:
        await link.handshake("modern")
        assert link.hubs == {expected: 5}


async def test_a_hub_at_the_end_of_a_long_row_starts_nothing() -> None:
    with pytest.raises(ConnectFailed, match="8 hubs have started each other"):
        async with linked({HOPS_VARIABLE: "8"}):
            pass


@pytest.mark.parametrize("text", ["", "-1", "1.5", "9" * 50, "² "])
def test_an_invalid_hop_count_is_zero(text: str) -> None:
    assert hops_in({HOPS_VARIABLE: text}) == 0


# -- addresses that callers named --------------------------------------------------------------------------------------


@asynccontextmanager
async def named(
    carrier: Carrier, port: int, resolver: Resolver, *, is_trusted: bool = False
) -> AsyncIterator[BaseLink]:
    """A link to where a caller sent the hub."""
    background = BackgroundTasks("links")
    links = Links(Limits(), {}, background, ServerTasks(lambda: 0.0), Egress(resolver=resolver))
    urls = {way: f"http://rebinding.example:{port}/{way}" for way in WAYS}
    reach = TargetHttpSettings(urls["http"], {"x-token": "t"}, ways=tuple(urls.items()), is_trusted=is_trusted)
    link = await links.connect(ServerSettings(ServerName("files"), reach), carrier)
    try:
        yield link
    finally:
        await link.aclose()
        await background.aclose()


WAYS: tuple[Carrier, ...] = ("http", "sse", "rpc")


async def private(origin: HttpOrigin) -> list[DialAddress]:
    """A name server that has changed its mind since the name was looked at."""
    return [DialAddress(socket.AF_INET, ("127.0.0.1", origin.port))]


@pytest.mark.parametrize("carrier", WAYS)
async def test_a_name_that_leads_elsewhere_by_now_is_not_dialled(carrier: Carrier) -> None:
    async with Server() as server, named(carrier, server.origin.port, private) as link:
        with pytest.raises((ConnectFailed, Lost), match=r"rebinding\.example may not be dialled"):
            await link.handshake("auto")
        assert server.accepted == 0


@pytest.mark.parametrize(("carrier", "line"), [("http", b"POST /http"), ("sse", b"GET /sse"), ("rpc", b"POST /rpc")])
async def test_one_that_may_be_private_is_spoken_to_where_and_as_was_said(carrier: Carrier, line: bytes) -> None:
    async with Server() as server, named(carrier, server.origin.port, private, is_trusted=True) as link:
        handshake = asyncio.ensure_future(link.handshake("auto"))
        head = await (await server.accept()).request()
        assert head.startswith(line)
        assert b"x-token: t" in head.lower()
        handshake.cancel()
        await asyncio.wait({handshake})


async def test_a_reconnected_agent_keeps_the_owners_of_its_tasks() -> None:
    background = BackgroundTasks("links")
    links = Links(Limits(), {}, background, ServerTasks(lambda: 0.0))
    settings = ServerSettings(ServerName("agent"), AgentSettings("http://127.0.0.1:9/"))
    first, second = await links.connect(settings, "auto"), await links.connect(settings, "auto")
    assert isinstance(first, AgentLink)
    assert isinstance(second, AgentLink)
    assert first.task_ids is second.task_ids
    await background.aclose()
