"""Questions of servers to callers at other nodes, while the node of the server shuts down."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from tests.cluster_hubs.nodes import cluster, stands
from tests.relay.dialling import child
from tests.relay.peers import pipe

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("cluster")]

END_SECONDS = 60.0


async def test_the_answer_reaches_a_server_that_asked_before_its_node_shut_down(tmp_path: Path, agent: str) -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def answer(*_: Any) -> ElicitResult:
        asked.set()
        await may_answer.wait()
        return ElicitResult(action="accept", content={"colour": "green"})

    answers: dict[str, Any] = {"elicitation_callback": answer}

    async with (
        cluster(tmp_path, "a", "b") as (_, (a, b)),
        pipe(a.port, agent, child("one"), server_id="one"),
        httpx2.AsyncClient(timeout=END_SECONDS, trust_env=False) as http,
    ):
        name = f"{agent}_one"
        await stands(b, name, "ready")
        transport = streamable_http_client(b.url, http_client=http)
        async with Client(transport, mode="legacy", **answers) as client:
            call = asyncio.ensure_future(client.call_tool(f"{name}.ask", {}))
            await asyncio.wait_for(asked.wait(), END_SECONDS)
            a.terminate()
            await stands(b, name, "away")
            may_answer.set()
            assert "green" in str((await call).content)
        a.terminate()  # it need not wait until the server has moved
        assert await asyncio.wait_for(a.process.wait(), END_SECONDS) == 0
