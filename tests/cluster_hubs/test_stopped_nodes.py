"""A node is stopped while others run: durable scripts that wait for a person continue when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_hubs.nodes import nats_server, node
from tests.code.script_server import command
from tests.code.test_durable import AFTER, CALLERS, SECONDS, Agent
from tests.conftest import Ledger
from tests.faults.watching import eventually
from tests.hubs import PATIENT, stdio

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
