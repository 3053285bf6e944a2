"""Nodes behind a load balancer are restarted one after the other: no call fails, nor runs twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_hubs.balanced import balancer
from tests.cluster_hubs.nodes import nats_server, node, stands
from tests.faults.watching import eventually
from tests.hubs import HubProcess, Raw
from tests.relay.dialling import dialling, write_servers
from tests.relay.peers import Pipe, agent_url, child, pipe

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("cluster")]

NODES = "abc"
CALLERS = 4


async def test_servers_that_dialled_in_move_to_other_nodes_and_no_call_fails(tmp_path: Path, agent: str) -> None:
    """`isthmus dial` with two servers on one socket, and `mcp_pipe.py`, connect through the balancer, too."""
    async with nats_server(tmp_path) as nats, balancer() as in_front, AsyncExitStack() as stack:
        lives = {name: await stack.enter_async_context(AsyncExitStack()) for name in NODES}
        hubs: dict[str, HubProcess] = {}

        async def start(name: str) -> None:
            hubs[name] = await lives[name].enter_async_context(node(tmp_path, nats.url, name))
            await in_front.send_to(list(hubs.values()))

        for name in NODES:
            await start(name)
        address = agent_url(in_front.port, agent)
        file = str(write_servers(tmp_path, "one", "two"))
        await stack.enter_async_context(dialling(address, "--config", file))
        piped = await stack.enter_async_context(pipe(in_front.port, agent, child("three"), server_id="three"))
        again = asyncio.create_task(_dial_again(piped))
        servers = [f"{agent}_{server_id}" for server_id in ("one", "two", "three")]
        for hub in hubs.values():
            for server in servers:
                await stands(hub, server, "ready")

        failed: list[Any] = []
        done: Counter[str] = Counter()
        is_over = asyncio.Event()

        async def call_until_over(number: int) -> None:
            async with Raw(f"http://127.0.0.1:{in_front.port}/mcp") as caller:
                for count in range(10**6):
                    if is_over.is_set():
                        return
                    server, text = servers[(number + count) % len(servers)], f"{number}/{count}"
                    response = await caller.call(f"{server}.echo", {"text": text})
                    if "result" not in response or text not in str(response["result"]):
                        failed.append(response)
                    done[server] += 1

        def each_server_has(calls: int) -> bool:
            return all(done[server] >= calls for server in servers)

        callers = [asyncio.create_task(call_until_over(number)) for number in range(CALLERS)]
        for name in NODES:
            await eventually(partial(each_server_has, min(done[server] for server in servers) + 5), "calls run")
            leaving = hubs.pop(name)
            await in_front.send_to(list(hubs.values()))  # as load balancers do, by `/readyz` or before they stop a node
            leaving.terminate()
            assert await asyncio.wait_for(leaving.process.wait(), 60) == 0
            await lives[name].aclose()
            await eventually(partial(each_server_has, min(done[server] for server in servers) + 5), "calls run on")
            await start(name)
        is_over.set()
        await asyncio.gather(*callers)
        again.cancel()
        with suppress(asyncio.CancelledError):
            await again
        assert Counter(str(each.get("error", each)) for each in failed) == {}


async def _dial_again(piped: Pipe) -> None:
    """Let it dial again at once whenever it was disconnected; the real one waits for seconds."""
    while True:
        await eventually(lambda: not piped.started.is_set(), "it is disconnected", 3600)
        piped.again.set()
        await piped.started.wait()
