"""`isthmus dial` connects several servers by one socket to a node, which shuts down while one of them has a call."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from isthmus.upstream.dialin.registry import MOVE_SECONDS
from tests.cluster_hubs.balanced import balancer
from tests.cluster_hubs.nodes import nats_server, node, stands
from tests.faults.watching import eventually
from tests.hubs import Raw
from tests.relay.dialling import dialling, write_servers
from tests.relay.peers import agent_url

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("cluster")]


async def test_a_long_call_of_one_server_does_not_keep_the_others_from_moving(tmp_path: Path, agent: str) -> None:
    held, awaited = tmp_path / "held", tmp_path / "held.awaited"
    async with nats_server(tmp_path) as nats, balancer() as in_front, AsyncExitStack() as stack:
        a = await stack.enter_async_context(node(tmp_path, nats.url, "a"))
        b = await stack.enter_async_context(node(tmp_path, nats.url, "b"))
        await in_front.send_to([a])
        words = ("--config", str(write_servers(tmp_path, "one", "two")))
        await stack.enter_async_context(dialling(agent_url(in_front.port, agent), *words))
        for server in ("one", "two"):
            await stands(b, f"{agent}_{server}", "ready")
        caller = await stack.enter_async_context(Raw(b.url))
        long_call = asyncio.ensure_future(caller.call(f"{agent}_one.ask", {"after": str(held)}))
        await eventually(awaited.exists, "the call runs")
        await in_front.send_to([b])
        a.terminate()
        began = asyncio.get_running_loop().time()
        answer = await caller.call(f"{agent}_two.echo", {"text": "moved"})
        assert "moved" in str(answer.get("result")), answer
        assert asyncio.get_running_loop().time() - began < MOVE_SECONDS / 2
        assert not long_call.done()
        held.touch()
        response = await long_call
        assert "result" in response, response
        assert await asyncio.wait_for(a.process.wait(), 60) == 0
