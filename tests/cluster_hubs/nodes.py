"""Nodes of a cluster, each a process of its own, and the NATS server between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2

from tests.cluster.servers import NatsServer
from tests.faults.watching import eventually
from tests.hubs import TRUSTED, HubProcess, serving
from tests.relay.peers import RawServer, raw_server
from tests.relay.tokens import KEY

PATIENCE = 20.0
Json = dict[str, Any]


@asynccontextmanager
async def nats_server(folder: Path, config: str = "") -> AsyncIterator[NatsServer]:
    """A NATS server that can be killed and started again."""
    server = NatsServer(folder, config).start()
    try:
        yield server
    finally:
        server.kill()


@asynccontextmanager
async def node(folder: Path, nats: str, name: str, **tables: Any) -> AsyncIterator[HubProcess]:
    """One node; all have the same key of the relay."""
    (folder / name).mkdir(exist_ok=True)
    tables["relay"] = {"key": KEY, **tables.get("relay", {})}
    servers = tables.pop("servers", {})
    async with serving(folder / name, servers, cluster={"nats": nats, "node": name}, **tables) as hub:
        yield hub


@asynccontextmanager
async def cluster(folder: Path, *names: str, **tables: Any) -> AsyncIterator[tuple[NatsServer, Sequence[HubProcess]]]:
    """NATS, and a node of each name; they see each other."""
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(folder))
        hubs = [await stack.enter_async_context(node(folder, nats.url, name, **tables)) for name in names]
        yield nats, hubs


@asynccontextmanager
async def rest_of(hub: HubProcess, key: str | None = None) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a node's REST interface."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    base = f"http://127.0.0.1:{hub.port}"
    async with httpx2.AsyncClient(base_url=base, timeout=60.0, verify=TRUSTED, headers=headers) as client:
        yield client


async def stands(hub: HubProcess, server: str, state: str, within: float = PATIENCE) -> float:
    """Wait until a server stands so at a node; return how long that took."""
    async with rest_of(hub) as rest:

        async def is_so() -> bool:
            found: Json = (await rest.get(f"/v1/servers/{server}")).json()
            return found.get("state") == state

        return await eventually(is_so, f"{server} is {state}", within)


@asynccontextmanager
async def split(servers: HubProcess, callers: HubProcess) -> AsyncIterator[HubProcess]:
    """One address for two nodes: sockets of servers go to the first, everything else goes to the second."""
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        with suppress(OSError):
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            target = servers if b" /mcp_endpoint/mcp" in line else callers
            their_reader, their_writer = await asyncio.open_connection("127.0.0.1", target.port)
        except OSError:
            writer.close()
            return
        their_writer.write(line)
        for work in (copy(reader, their_writer), copy(their_reader, writer)):
            task = asyncio.create_task(work)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield HubProcess(callers.process, server.sockets[0].getsockname()[1], callers.said)
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def patient_raw_server(hub: HubProcess) -> Callable[..., AbstractAsyncContextManager[RawServer]]:
    """`raw_server`, ready when the node without its socket has it, which takes some milliseconds more."""

    @asynccontextmanager
    async def patient(port: int, agent: str, server_id: str | None = None, **options: Any) -> AsyncIterator[RawServer]:
        async with rest_of(hub) as rest:

            async def ready() -> int:
                found: Json = (await rest.get("/v1/relay/servers", params={"agent": agent})).json()
                return sum(each["state"] == "ready" for each in found["servers"])

            before = await ready()
            async with raw_server(port, agent, server_id, **options) as server:

                async def is_there() -> bool:
                    return await ready() > before

                if options.get("is_awaited", True) and port == hub.port:
                    with suppress(AssertionError):  # it may take the place of another
                        await eventually(is_there, "the server is at the other node", 2.0)
                yield server

    return patient
