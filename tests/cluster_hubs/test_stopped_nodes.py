"""Nodes are stopped: what they leave to others and to their next lives, and how long that takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from isthmus.upstream.dialin.registry import MOVE_SECONDS
from tests.cluster_hubs.nodes import cluster, nats_server, node, stands
from tests.code.script_server import command
from tests.code.test_durable import AFTER, CALLERS, SECONDS, Agent
from tests.conftest import Ledger
from tests.faults.watching import eventually
from tests.hubs import PATIENT, stdio
from tests.relay.peers import raw_server

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("cluster")]


@pytest.mark.parametrize("drain_seconds", [30.0, 0.1])
async def test_a_script_that_waits_for_approval_still_waits_after_its_node_was_stopped(
    tmp_path: Path, ledger: Ledger, drain_seconds: float
) -> None:
    tables: dict[str, Any] = {
        "servers": {"shop": stdio(command(ledger.path))},
        "hub": {"expose": "code"},
        "callers": CALLERS,
        "approvals": {"orders": {"tools": ["shop.order"]}},
        "limits": {**PATIENT, "drain_seconds": drain_seconds},
        "tasks": {"after": AFTER},
    }

    @asynccontextmanager
    async def agent_of_node() -> AsyncIterator[Agent]:
        async with node(tmp_path, nats.url, "a", **tables) as hub:
            agent = Agent(hub, "agent")
            async with agent.http:
                yield agent

    async def is_held() -> bool:
        state = await agent.modern("tasks/get", taskId=task)
        assert state["status"] == "working", state
        return "waits for an operator's approval" in state.get("statusMessage", "")

    async with nats_server(tmp_path) as nats, node(tmp_path, nats.url, "b"):
        async with agent_of_node() as agent:
            task = (await agent.run("await shop_order(orders=[{'item': 'lamp'}])"))["taskId"]
            await eventually(is_held, "the call is held", within=SECONDS)
            agent.hub.terminate()
            assert await asyncio.wait_for(agent.hub.process.wait(), SECONDS) == 0
        async with agent_of_node() as agent:
            await eventually(is_held, "the call is held again", within=SECONDS)


async def test_nodes_that_are_stopped_together_do_not_wait_until_their_servers_have_moved(
    tmp_path: Path, agent: str
) -> None:
    async with cluster(tmp_path, "a", "b") as (_, hubs), raw_server(hubs[0].port, agent, "lamp"):
        for hub in hubs:
            await stands(hub, f"{agent}_lamp", "ready")
        began = asyncio.get_running_loop().time()
        for hub in hubs:
            hub.terminate()
        codes = await asyncio.wait_for(asyncio.gather(*(hub.process.wait() for hub in hubs)), SECONDS)
        assert codes == [0, 0]
        assert asyncio.get_running_loop().time() - began < MOVE_SECONDS / 2
