"""Two nodes, NATS, PostgreSQL and perhaps its standby, each on a machine of its own, and the cables between them."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.servers import PROGRAM
from tests.cluster_database.nodes import Cluster, Node
from tests.cluster_hubs.namespaces import Cable, Machine, Network, started_nats
from tests.conftest import Ledger
from tests.databases import Database, made, placed
from tests.faults.test_tasks_crash import SECONDS, Load
from tests.hubs import HubProcess, _keep_reading, _listening_port, environment, isthmus
from tests.relay.tokens import KEY

NATS_PORT, DATABASE_PORT = 4222, 5432


@asynccontextmanager
async def hub_on(machine: Machine, config: Path, name: str) -> AsyncIterator[Node]:
    """Run a node on a machine."""
    words = ["ip", "netns", "exec", machine.name, *isthmus("serve", "--config", str(config), "--port", "0")]
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
        cwd=config.parent,
        limit=1 << 20,
    )
    said: list[str] = []
    try:
        port = await asyncio.wait_for(_listening_port(process, said), SECONDS)
        reading = asyncio.ensure_future(_keep_reading(process, said))
        async with machine.forwarded(port) as near:
            hub = HubProcess(process, near, said)
            async with Load(hub, 1) as load:
                yield Node(name, hub, load)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    await reading


@dataclass
class Site:
    """What runs, and the cables by the node and by what is at the other end."""

    cluster: Cluster
    a: Node
    b: Node
    cables: dict[tuple[str, str], Cable]
    machines: dict[str, Machine]
    databases: Sequence[Database]
    """The server and, if there is one, its standby."""
    nats: subprocess.Popen[bytes]
    nats_log: Path

    def start_nats(self) -> None:
        """Start NATS again."""
        self.nats = started_nats(self.machines["nats"], PROGRAM, NATS_PORT, self.nats_log)


@asynccontextmanager
async def site(
    network: Network, folder: Path, ledger: Ledger, *, has_standby: bool = False, **cluster_table: Any
) -> AsyncIterator[Site]:
    """Run all of it; `cluster_table` are more settings of the nodes."""
    places = ("db", "standby") if has_standby else ("db",)
    machines = {name: network.machine(name) for name in ("a", "b", "nats", *places)}
    cables = {(node, far): network.cable(machines[node], machines[far]) for node in "ab" for far in ("nats", *places)}
    with ExitStack() as stack:
        primary = stack.enter_context(made())
        primary.listen(*(cables[node, "db"].addresses[1] for node in "ab"))
        with machines["db"].inside():
            primary.start()
        databases = [primary]
        if has_standby:
            standby = stack.enter_context(placed())
            databases.append(standby)
            with machines["standby"].inside():
                primary.copy(standby, *(cables[node, "standby"].addresses[1] for node in "ab"))
        cluster = Cluster(folder, primary, ledger, slots=2000)

        def config(name: str) -> Path:
            nats_at = f"nats://{cables[name, 'nats'].addresses[1]}:{NATS_PORT}"
            hosts = ",".join(f"{cables[name, far].addresses[1]}:{DATABASE_PORT}" for far in places)
            return cluster.config(
                name,
                cluster={"node": name, "nats": nats_at, **cluster_table},
                storage={"url": f"postgresql://hub@{hosts}/postgres?schema={cluster.schema}"},
                relay={"key": KEY},
            )

        log = folder / "nats.log"
        nats = started_nats(machines["nats"], PROGRAM, NATS_PORT, log)
        made_site: Site | None = None
        try:
            async with hub_on(machines["a"], config("a"), "a") as a:
                cluster.keep_history()
                async with hub_on(machines["b"], config("b"), "b") as b:
                    made_site = Site(cluster, a, b, cables, machines, databases, nats, log)
                    yield made_site
        finally:
            nats = nats if made_site is None else made_site.nats
            nats.kill()
            nats.wait()
