"""Questions of servers to callers at other nodes, while the node of the server shuts down."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from tests.cluster_hubs.nodes import cluster, stands
from tests.hubs import HubProcess
from tests.relay.dialling import child, dialling, write_servers
from tests.relay.peers import agent_url, pipe

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("cluster")]

END_SECONDS = 60.0


def dialled_in(way: str, folder: Path, hub: HubProcess, agent: str) -> AbstractAsyncContextManager[Any]:
    """A server that dials in: a program of the earlier era by itself, or behind a hub, which speaks the modern one."""
    if way == "pipe":
        return pipe(hub.port, agent, child("one"), server_id="one")
    return dialling(agent_url(hub.port, agent), "--config", str(write_servers(folder, "one")))


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("way", ["pipe", "dial"])
async def test_the_answer_reaches_a_server_that_asked_before_its_node_shut_down(
    tmp_path: Path, agent: str, way: str, mode: Literal["legacy", "2026-07-28"]
) -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def answer(*_: Any) -> ElicitResult:
        asked.set()
        await may_answer.wait()
        return ElicitResult(action="accept", content={"colour": "green"})

    answers: dict[str, Any] = {"elicitation_callback": answer}
    async with (
        cluster(tmp_path, "a", "b") as (_, (a, b)),
        dialled_in(way, tmp_path, a, agent),
        pipe(a.port, agent, child("idle"), server_id="idle"),
        httpx2.AsyncClient(timeout=END_SECONDS, trust_env=False) as http,
    ):
        name, idle = f"{agent}_one", f"{agent}_idle"
        for server in (name, idle):
            await stands(b, server, "ready")
        transport = streamable_http_client(b.url, http_client=http)
        async with Client(transport, mode=mode, **answers) as client:
            call = asyncio.ensure_future(client.call_tool(f"{name}.ask", {}))
            await asyncio.wait_for(asked.wait(), END_SECONDS)
            a.terminate()
            await stands(b, idle, "away")
            may_answer.set()
            assert "green" in str((await call).content)
        a.terminate()  # it need not wait until the servers have moved
        assert await asyncio.wait_for(a.process.wait(), END_SECONDS) == 0
