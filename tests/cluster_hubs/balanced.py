"""Several hubs as the nodes of one cluster: real processes, NATS, and a load balancer without sessions."""

from __future__ import annotations

import asyncio
import atexit
import json
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

from tests import databases
from tests.cluster_hubs.nodes import nats_server
from tests.databases import Database
from tests.faults.watching import eventually, watches_files
from tests.fork_server import ForkedProcess
from tests.hubs import (
    BALANCER,
    CHECKOUT,
    NODE_PORTS,
    NODE_TABLES,
    PLACED,
    START_SECONDS,
    HubProcess,
    environment,
    started,
    write_config,
)

JOINED = "joined the cluster"
GRPC = "listening for gRPC"
LISTENING = '"event": "listening"'
HAS_PROGRAM = "this node runs a program for the cluster"
SAID_BY_ALL = ("configuration reloaded", "configuration refused")
_PORT = re.compile(r"\bport\W+(\d+)")


class NodeLines(list[str]):
    """What one node said; all of it is also in `together`, in order.

    What each node says of a change counts as said when the last one has said it.
    """

    def __init__(self, together: list[str], counts: Counter[str], nodes: int) -> None:
        super().__init__()
        self._together = together
        self._counts = counts
        self._nodes = nodes

    def append(self, line: str) -> None:
        """Add a line."""
        super().append(line)
        if (word := next((word for word in SAID_BY_ALL if word in line), None)) is not None:
            self._counts[word] += 1
            if self._counts[word] % self._nodes:
                return
        self._together.append(line)


class NodesProcess:
    """The processes of all nodes, as if they were one."""

    def __init__(self, nodes: Sequence[HubProcess]) -> None:
        self._nodes = nodes
        self.pid = nodes[0].pid

    @property
    def returncode(self) -> int | None:
        """None while one of them runs, or has failed."""
        codes = [node.process.returncode for node in self._nodes]
        return None if None in codes else next((code for code in codes if code), 0)

    def send_signal(self, number: int) -> None:
        """Send a signal to all that run."""
        for node in self._nodes:
            with suppress(ProcessLookupError):
                node.process.send_signal(number)

    def terminate(self) -> None:
        """Ask all to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End all at once."""
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int | None:
        """Wait until all have ended."""
        for node in self._nodes:
            await node.process.wait()
        return self.returncode


@dataclass(slots=True)
class NodeProcesses(HubProcess):
    """The nodes of a cluster. `port` is the load balancer's, and `process` stands for all of their processes."""

    nodes: list[HubProcess] = field(default_factory=list)

    @property
    def each(self) -> list[HubProcess]:
        """The nodes."""
        return self.nodes

    def kill(self) -> None:
        """End all nodes at once."""
        for node in self.nodes:
            node.kill()


@cache
def database() -> Database:
    """The database of all clusters of this process; each has its own schema in it."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(databases.running())


def schema_of(folder: Path) -> str:
    """The schema of the cluster in this folder; one that is started again there finds its tables."""
    return f"s{blake2b(str(folder).encode(), digest_size=6).hexdigest()}"


class RunningBalancer:
    """The load balancer, which sends nothing before it knows nodes."""

    port: int
    grpc_port: int | None = None

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def read_line(self) -> bytes:
        """The next line that it prints."""
        assert self._process.stdout is not None
        return await asyncio.wait_for(self._process.stdout.readline(), START_SECONDS)

    async def send_to(self, nodes: Sequence[HubProcess]) -> None:
        """Send requests to these nodes."""
        assert self._process.stdin is not None
        grpc = [] if self.grpc_port is None else [grpc_port_of(node) for node in nodes]
        self._process.stdin.write(json.dumps([[node.port for node in nodes], grpc]).encode() + b"\n")
        await self.read_line()


@asynccontextmanager
async def balancer(grpc_port: int | None = None) -> AsyncIterator[RunningBalancer]:
    """Run the load balancer; with `grpc_port` for gRPC, too, there or at any port if it is 0."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.cluster_hubs.balancer",
        *(() if grpc_port is None else (str(grpc_port),)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=CHECKOUT,
        env=environment(),
    )
    assert process.stdin is not None
    running = RunningBalancer(process)
    try:
        running.port = int(await running.read_line())
        running.grpc_port = None if grpc_port is None else int(await running.read_line())
        yield running
    finally:
        process.stdin.close()
        await process.wait()


def grpc_port_of(node: HubProcess) -> int:
    """Where a node listens for gRPC."""
    line = next(line for line in node.said if GRPC in line)
    found = _PORT.search(line)
    assert found is not None, line
    return int(found[1])


@asynccontextmanager
async def serving_nodes(
    folder: Path,
    servers: Mapping[str, Any] | None = None,
    *,
    nodes: int = 2,
    runs_programs_once: bool = False,
    **tables: Any,
) -> AsyncIterator[NodeProcesses]:
    """Run a cluster of hubs with one configuration, each with its own state, behind the load balancer."""
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(folder / "nats"))
        in_front = await stack.enter_async_context(balancer(tables.get("a2a", {}).get("grpc_port")))
        if tables.get("hub", {}).get("public_url") == BALANCER:
            tables["hub"] = {**tables["hub"], "public_url": f"http://localhost:{in_front.port}"}
        if in_front.grpc_port is not None:
            tables["a2a"] = {"grpc_url": f"localhost:{in_front.grpc_port}", **tables["a2a"], "grpc_port": 0}
        tables.setdefault("storage", {"url": database().url(schema=schema_of(folder))})
        # Nodes know the address by which clients reach them, as behind any load balancer.
        hosts = [f"{name}:{in_front.port}" for name in ("127.0.0.1", "localhost")]
        if runs_programs_once:
            PLACED.add(folder)
            stack.callback(PLACED.discard, folder)
        together: list[str] = []
        running = await start_nodes(folder, stack, nats.url, nodes, servers or {}, together, hosts, **tables)
        if runs_programs_once:
            await wait_placed(folder, running)
        await in_front.send_to(running)
        NODE_PORTS[in_front.port] = [node.port for node in running]
        stack.callback(NODE_PORTS.pop, in_front.port)
        process = cast("ForkedProcess", NodesProcess(running))
        yield NodeProcesses(process, in_front.port, together, nodes=running)


async def start_nodes(
    folder: Path,
    stack: AsyncExitStack,
    nats: str,
    nodes: int,
    servers: Mapping[str, Any],
    together: list[str] | None = None,
    hosts: Sequence[str] = (),
    **tables: Any,
) -> list[HubProcess]:
    """Run so many nodes with one configuration, each with its own state. `together` gets what all of them say.

    `hosts` are the addresses of a load balancer.
    """
    folders = [folder, *(folder / f"node{number}" for number in range(1, nodes))]
    cluster = {"nats": nats, **tables.pop("cluster", {})}
    if "host" in tables.get("hub", {}):
        hosts = ()  # these would be the only ones that such a hub serves
    for own in folders[1:]:
        own.mkdir(exist_ok=True)
        # What the test has put beside the file, such as files that it includes.
        for file in folder.iterdir():  # noqa: ASYNC240 - a test may wait for that
            if file.is_file():
                shutil.copy(file, own)
            elif file.is_dir() and file not in folders and file.name not in ("nats", "state"):
                shutil.copytree(file, own / file.name, dirs_exist_ok=True)
    storage = {"storage": tables["storage"]} if "storage" in tables else {}
    NODE_TABLES[folder] = {
        own: {"cluster": {"node": f"node{number}", **cluster}, "hub": {"hosts": [*hosts]} if hosts else {}, **storage}
        for number, own in enumerate(folders)
    }
    stack.callback(NODE_TABLES.pop, folder)
    write_config(folder, servers, **tables)
    counts: Counter[str] = Counter()
    running: list[HubProcess] = []
    for own in folders:
        said = NodeLines([] if together is None else together, counts, nodes)
        config = str(own / "isthmus.json")
        running.append(await stack.enter_async_context(started(own, "--config", config, said=said)))
    await wait_joined(running)
    await eventually(lambda: all(watches_files(node.pid) for node in running), "the files are watched", START_SECONDS)
    return running


async def wait_placed(folder: Path, nodes: Sequence[HubProcess]) -> None:
    """Wait until each program that runs once has its node, and so starts as on one hub.

    Nodes that join wait for each other first, longer than a card or a device waits for a program.
    """
    entries = json.loads((folder / "isthmus.json").read_text())["servers"]
    names = {
        name
        for name, entry in entries.items()
        if isinstance(entry, dict) and entry.get("placement") == "one" and not entry.get("disabled")
    }

    def are_placed() -> bool:
        said = [line for node in nodes for line in node.said]
        found = {json.loads(line)["server"] for line in said if HAS_PROGRAM in line}
        return names <= found

    # An entry with a mistake is skipped, and no node tells that it has it.
    listening = next(line for line in nodes[0].said if LISTENING in line)
    if json.loads(listening)["servers"] == len(entries):
        await eventually(are_placed, "the programs have nodes", START_SECONDS)


async def wait_joined(nodes: Sequence[HubProcess]) -> None:
    """Wait until every node is connected to the bus."""
    for node in nodes:
        await eventually(lambda node=node: any(JOINED in line for line in node.said), "the node joins", START_SECONDS)  # type: ignore[misc]
