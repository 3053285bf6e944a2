"""Nodes are killed and stopped at random under load: acknowledged tasks end once, with a sound history."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cluster_database.nodes import LEASE, Cluster, Node, executed
from tests.conftest import Ledger
from tests.databases import Database, running
from tests.faults.oracle import Record, judge
from tests.faults.test_tasks_crash import task_message
from tests.faults.watching import note, times

KILLS = int(os.environ.get("ISTHMUS_CLUSTER_KILLS", "0")) or times(6, 60)
"""The long form: ISTHMUS_CLUSTER_KILLS=300."""
SEED = 22
CALLERS = 8
NAMES = ("a", "b", "c")


@pytest.fixture
def database() -> Iterator[Database]:
    with running() as made:
        yield made


class Traffic:
    """Callers that send messages to any node that lives, and remember what was acknowledged."""

    def __init__(self) -> None:
        self.living: list[Node] = []
        self.acknowledged: dict[str, str] = {}
        self.unanswered: dict[str, dict[str, Any]] = {}
        self.is_done = False
        self._number = 0

    async def run(self, points: random.Random) -> None:
        """Send until stopped; unanswered messages are sent to another node."""
        while not self.is_done:
            self._number += 1
            nonce = f"1-{self._number}"
            params = task_message(nonce, "hold" if self._number % 11 == 0 else "pay")
            self.unanswered[nonce] = params
            if self.living:
                await self.send(points.choice(self.living), nonce)
            else:
                await asyncio.sleep(0.05)

    async def send(self, node: Node, nonce: str) -> None:
        """Send a message that may have been sent before."""
        with suppress(httpx2.HTTPError):
            body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": self.unanswered[nonce]}
            answer = (await node.load._client.post("/a2a", json=body)).json()
            if "result" in answer:
                self.acknowledged[answer["result"]["task"]["id"]] = nonce
                del self.unanswered[nonce]
            else:
                assert answer["error"]["code"] == -32603, answer


async def test_nodes_that_are_killed_and_stopped_at_random_lose_no_task_and_run_none_twice(
    tmp_path: Path, database: Database, ledger: Ledger, no_leftovers: None
) -> None:
    # The witness inherits tasks that hold their slot for ever: it must have room for others beside them.
    cluster = Cluster(tmp_path, database, ledger, slots=max(400, 10 * KILLS))
    points = random.Random(SEED)
    traffic = Traffic()
    async with asyncio.timeout(60.0 + 20.0 * KILLS), cluster.node("witness") as witness:
        cluster.keep_history()
        ends = [asyncio.Event() for _ in NAMES]
        named = zip(NAMES, ends, strict=True)
        nodes = [asyncio.ensure_future(keep_running(cluster, name, traffic, end)) for name, end in named]
        callers = [asyncio.ensure_future(traffic.run(points)) for _ in range(CALLERS)]
        for number in range(KILLS):
            if number % 10 == 0:  # the long form takes half an hour
                print(f"{number} of {KILLS} kills and stops, {len(traffic.acknowledged)} tasks", flush=True)
            enough = len(traffic.acknowledged) + points.randint(10, 80)
            while len(traffic.acknowledged) < enough or not traffic.living:  # noqa: ASYNC110 - callers cannot wake us
                await asyncio.sleep(0.01)
            node = points.choice(traffic.living)
            is_stopped, seconds = points.random() < 0.3, points.uniform(0.5, 2.0) * LEASE
            with suppress(ProcessLookupError):  # it was killed a moment ago, and is not started again yet
                if is_stopped:
                    node.hub.process.send_signal(signal.SIGSTOP)
                    await asyncio.sleep(seconds)
                    node.hub.process.send_signal(signal.SIGCONT)
                else:
                    node.kill()
        traffic.is_done = True
        await asyncio.gather(*callers)
        for end in ends:
            end.set()
        await asyncio.gather(*nodes)
        # The last one inherits everything. Those who were not answered ask again.
        for nonce in list(traffic.unanswered):
            await traffic.send(witness, nonce)
        assert not traffic.unanswered
        history: list[Record] = []
        for task, nonce in traffic.acknowledged.items():
            if int(nonce.partition("-")[2]) % 11 == 0:  # it is held, and may run at the end
                history.append(Record(nonce, "unknown"))
                continue
            found = await witness.ends(task)
            if found["status"]["state"] == "TASK_STATE_COMPLETED":
                result = found["artifacts"][0]["parts"][0]["data"]["mcp_result"]
                history.append(Record(nonce, "ok", result["content"][0]["text"]))
            else:
                assert executed(found) == "unknown", found
                history.append(Record(nonce, "unknown"))
        assert judge(history, ledger.ran()) == []
        completed = sum(record.reported == "ok" for record in history)
        assert completed
        written = cluster.check_history()
        note(seed=SEED, kills_and_stops=KILLS, tasks=len(history), completed=completed, writes=written)


async def keep_running(cluster: Cluster, name: str, traffic: Traffic, end: asyncio.Event) -> None:
    """Run a node, and start it again whenever it was killed; at the end it leaves."""
    while not end.is_set():
        async with cluster.node(name) as node:
            traffic.living.append(node)
            gone = asyncio.ensure_future(node.hub.process.wait())
            ending = asyncio.ensure_future(end.wait())
            await asyncio.wait({gone, ending}, return_when=asyncio.FIRST_COMPLETED)
            traffic.living.remove(node)
            with suppress(ProcessLookupError):  # it was killed a moment ago
                node.hub.terminate()
            ending.cancel()
            await gone
