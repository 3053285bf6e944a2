"""Several hubs as the nodes of one cluster: real processes, NATS, and a load balancer without sessions."""

from __future__ import annotations

import asyncio
import atexit
import secrets
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests import databases
from tests.cluster_hubs.nodes import nats_server
from tests.databases import Database
from tests.faults.watching import eventually
from tests.hubs import CHECKOUT, START_SECONDS, HubProcess, environment, started, write_config

JOINED = "joined the cluster"


@dataclass(slots=True)
class NodeProcesses(HubProcess):
    """The nodes of a cluster. `port` is the load balancer's, and `process` that of the first node."""

    nodes: list[HubProcess] = field(default_factory=list)

    def terminate(self) -> None:
        """Ask all nodes to end."""
        for node in self.nodes:
            node.terminate()


@cache
def database() -> Database:
    """The database of all clusters of this process; each has its own schema in it."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(databases.running())


@asynccontextmanager
async def balancer(ports: Sequence[int]) -> AsyncIterator[int]:
    """Run the load balancer in front of these ports, and yield its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.cluster_hubs.balancer",
        *map(str, ports),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=CHECKOUT,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield int(await asyncio.wait_for(process.stdout.readline(), START_SECONDS))
    finally:
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def serving_nodes(
    folder: Path, servers: Mapping[str, Any] | None = None, *, nodes: int = 2, **tables: Any
) -> AsyncIterator[NodeProcesses]:
    """Run a cluster of hubs with one configuration, each with its own state, behind the load balancer."""
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(folder / "nats"))
        tables.setdefault("storage", {"url": database().url(schema=f"s{secrets.token_hex(6)}")})
        running = await start_nodes(folder, stack, nats.url, nodes, servers or {}, **tables)
        port = await stack.enter_async_context(balancer([node.port for node in running]))
        yield NodeProcesses(running[0].process, port, running[0].said, nodes=running)


async def start_nodes(
    folder: Path, stack: AsyncExitStack, nats: str, nodes: int, servers: Mapping[str, Any], **tables: Any
) -> list[HubProcess]:
    """Run so many nodes with one configuration, each with its own state."""
    running: list[HubProcess] = []
    for number in range(nodes):
        own = folder / f"node{number}" if number else folder
        own.mkdir(exist_ok=True)
        cluster = {"nats": nats, "node": f"node{number}", **tables.get("cluster", {})}
        config = write_config(own, servers, **{**tables, "cluster": cluster})
        running.append(await stack.enter_async_context(started(own, "--config", str(config))))
    await wait_joined(running)
    return running


async def wait_joined(nodes: Sequence[HubProcess]) -> None:
    """Wait until every node is connected to the bus."""
    for node in nodes:
        await eventually(lambda node=node: any(JOINED in line for line in node.said), "the node joins", START_SECONDS)  # type: ignore[misc]
