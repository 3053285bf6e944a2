"""A node that owns many servers dies: callers get errors soon, waiting tasks run elsewhere, nothing runs twice.

The long form kills twenty nodes with a thousand servers each: `make crowdkill`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import WebSocketException

from tests.cluster.servers import BUSY
from tests.cluster_database.nodes import forked_hub
from tests.cluster_hubs.nodes import nats_server
from tests.faults.watching import eventually
from tests.hubs import HubProcess, Raw, write_config
from tests.relay.peers import Manner, RawServer, agent_url, wired
from tests.relay.tokens import KEY

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("cluster")]

SERVERS = int(os.environ.get("ISTHMUS_CROWD", "60"))
"""Servers of the node that is killed."""
CALLS = int(os.environ.get("ISTHMUS_CROWD_CALLS", "20"))
"""Running calls at its death; as many wait behind them."""
ROUNDS = int(os.environ.get("ISTHMUS_CROWD_ROUNDS", "1"))
TOLD_SECONDS = 3.0
RUN_SECONDS = 10.0
BACK_SECONDS = 15.0
NAMES = ("a", "b", "c")
Json = dict[str, Any]


@dataclass(slots=True)
class Moving:
    """A server that dials again, at the next victim, when it loses its socket."""

    agent: str
    victims: list[str]
    """Nodes in the order in which they are killed. All servers gather at the last one that was chosen."""
    arrived: list[str] = field(default_factory=list)
    """The text of every call, from its first socket to its last."""
    at: str = ""
    """The node that has its socket."""
    ready_at: float = 0.0
    wire: RawServer | None = None

    @property
    def name(self) -> str:
        """What the hub calls it."""
        return f"{self.agent}_s"

    def has_got(self, text: str) -> bool:
        """Whether this call has arrived."""
        return text in self.arrived

    async def run(self, nodes: dict[str, HubProcess], points: random.Random) -> None:
        """Stay connected."""
        clock = asyncio.get_running_loop().time
        while True:
            name = self.victims[-1]
            with suppress(OSError, WebSocketException, TimeoutError, AssertionError, KeyError):
                async with wired(
                    agent_url(nodes[name].port, self.agent, "s"), self.take_socket, ping_interval=None
                ) as wire:
                    assert isinstance(wire, RawServer)
                    await wire.until(lambda: wire.is_listed, "it is listed")
                    self.at, self.wire, self.ready_at = name, wire, clock()
                    await wire.socket.wait_closed()
            self.at, self.wire = "", None
            await asyncio.sleep(points.uniform(0.2, 2.0))  # as dialling programs do, so that not all come at once

    def take_socket(self, socket: Any) -> RawServer:
        """Count calls beyond the life of a socket."""
        wire = RawServer(socket, Manner(tools=("hold", "echo")))
        answer_of = wire.answer_of

        def noting(method: str, message: Json) -> Json | None:
            if method == "tools/call":
                self.arrived.append(message["params"]["arguments"]["text"])
            return answer_of(method, message)

        wire.answer_of = noting  # type: ignore[method-assign]
        return wire


@asynccontextmanager
async def running(folder: Path, nats: str, name: str, nodes: dict[str, HubProcess]) -> AsyncIterator[HubProcess]:
    """A node that may be killed."""
    (folder / name).mkdir(exist_ok=True)
    tables: dict[str, Any] = {
        "relay": {"key": KEY, "grace": 60.0},
        "limits": {"max_calls": 1, "connections_per_address": 20_000, "connections": 20_000},
        "cluster": {"nats": nats, "node": name},
    }
    async with forked_hub(write_config(folder / name, {}, **tables)) as hub:
        nodes[name] = hub
        try:
            yield hub
        finally:
            nodes.pop(name, None)


async def test_a_node_with_many_servers_is_killed_under_load(tmp_path: Path) -> None:
    points = random.Random(22)
    nodes: dict[str, HubProcess] = {}
    async with asyncio.timeout(120.0 + ROUNDS * 120.0), nats_server(tmp_path) as nats, AsyncExitStack() as stack:
        lives = {name: await stack.enter_async_context(AsyncExitStack()) for name in NAMES}
        for name in NAMES:
            await lives[name].enter_async_context(running(tmp_path, nats.url, name, nodes))
        victims = [NAMES[0]]
        crowd = [Moving(f"crowd{n}", victims) for n in range(SERVERS)]
        tasks = [asyncio.create_task(each.run(nodes, points)) for each in crowd]
        try:
            for number in range(ROUNDS):
                await eventually(lambda: all(each.wire is not None for each in crowd), "all servers are connected", 60)
                victim = victims[-1]
                victims.append(points.choice([name for name in NAMES if name != victim]))
                await kill_and_check(number, victim, nodes, crowd, points)
                with suppress(AssertionError):
                    await lives[victim].aclose()
                await lives[victim].enter_async_context(running(tmp_path, nats.url, victim, nodes))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def kill_and_check(
    number: int, victim: str, nodes: dict[str, HubProcess], crowd: Sequence[Moving], points: random.Random
) -> None:
    """Kill a node with running and waiting calls to its servers, and check the answers to their callers."""
    clock = asyncio.get_running_loop().time
    owned = [each for each in crowd if each.at == victim]
    called = points.sample(owned, min(CALLS, len(owned)))
    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(Raw(nodes[name].url)) for name in NAMES if name != victim]
        for caller in callers:

            async def is_listed(caller: Raw = caller) -> bool:
                return {f"{each.name}.echo" for each in called} <= set(await caller.names())

            await eventually(is_listed, "the servers are listed elsewhere", 60)
        sent: dict[str, asyncio.Task[tuple[Json, float]]] = {}

        async def call(caller: Raw, server: Moving, tool: str, text: str) -> tuple[Json, float]:
            answer = await caller.call(f"{server.name}.{tool}", {"text": text}, id=text)
            return answer, clock()

        for n, server in enumerate(called):
            caller, text = callers[n % len(callers)], f"{number}/{n}"
            sent[f"{text}/hold"] = asyncio.create_task(call(caller, server, "hold", f"{text}/hold"))
            await eventually(partial(server.has_got, f"{text}/hold"), "it runs", 30)
            sent[f"{text}/echo"] = asyncio.create_task(call(caller, server, "echo", f"{text}/echo"))
        await asyncio.sleep(0.1)  # the waiting calls have reached their queues; those that have not are queued later
        killed_at = clock()
        os.kill(nodes.pop(victim).pid, signal.SIGKILL)
        ends = dict(zip(sent, await asyncio.gather(*sent.values()), strict=True))
        await eventually(lambda: all(each.wire is not None for each in owned), "all servers are back", 60 * BUSY)
    received = [at - killed_at for text, (_, at) in ends.items() if text.endswith("hold")]
    ran = [at - killed_at for text, (_, at) in ends.items() if text.endswith("echo")]
    back = sorted(each.ready_at - killed_at for each in owned)
    p95 = back[int(0.95 * (len(back) - 1))]
    figures = (
        f"answered within {max(received):.2f} s, queued calls ran within {max(ran):.2f} s, servers back p95 {p95:.2f} s"
    )
    print(f"round {number + 1}: {len(owned)} servers, {len(received)} running calls: {figures}")
    for text, (answer, _) in ends.items():
        if text.endswith("hold"):
            assert answer["error"]["data"]["executed"] == "unknown", answer
        else:
            assert answer.get("result", {}).get("content", [{}])[0].get("text") == text, answer
    assert max(Counter(text for each in crowd for text in each.arrived).values()) == 1, "a call ran twice"
    assert max(received) < TOLD_SECONDS * BUSY
    assert max(ran) < RUN_SECONDS * BUSY
    assert p95 < BACK_SECONDS * BUSY
