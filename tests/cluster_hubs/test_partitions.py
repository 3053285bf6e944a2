"""Nodes, NATS and PostgreSQL on machines of their own (network namespaces), and cables that are pulled."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.servers import BUSY
from tests.cluster_database.nodes import Node, executed
from tests.cluster_database.test_database_faults import calls_work, is_ready
from tests.cluster_hubs.namespaces import Network, needs_namespaces
from tests.cluster_hubs.nodes import stands
from tests.cluster_hubs.sites import site
from tests.cluster_hubs.test_faults import text_of
from tests.conftest import Ledger
from tests.faults.test_tasks_crash import SECONDS, task_message
from tests.faults.watching import eventually
from tests.hubs import Raw
from tests.relay.peers import Manner, raw_server

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("cluster")]

NOT_SENT_SECONDS = 1.0 * BUSY
HEALTHY_SECONDS = 5.0 * BUSY


@pytest.fixture
def network() -> Iterator[Network]:
    needs_namespaces()
    network = Network()
    try:
        yield network
    finally:
        network.close()


async def is_failing(node: Node) -> bool:
    return (await node.ready())[0] == 503


@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
async def test_a_node_that_is_cut_off_serves_its_own_writes_nothing_and_comes_back(
    network: Network, tmp_path: Path, ledger: Ledger, agent: str
) -> None:
    clock = asyncio.get_running_loop().time
    async with (
        site(network, tmp_path, ledger, lease_seconds=2.0) as all,
        raw_server(all.a.hub.port, agent, "s1", manner=Manner(tools=("echo",))) as server,
        Raw(all.a.hub.url) as here,
        Raw(all.b.hub.url) as there,
        asyncio.timeout(8 * SECONDS),
    ):
        a, b, name = all.a, all.b, f"{agent}_s1"
        for round, cut in enumerate((("nats",), ("db",), ("nats", "db")), 1):
            await stands(b.hub, name, "ready")
            held = (await a.send(f"{round}-1", "hold"))["id"]
            for far in cut:
                all.cables["a", far].pull()
            began = clock()
            assert text_of(await here.call(f"{name}.echo", {"text": "own"})) == "own"
            if "nats" in cut:
                received, error = "", dict[str, Any]()
                while received != "no":  # what left before the cut was known may have run
                    called = clock()
                    error = (await there.call(f"{name}.echo", {"text": "cut"}))["error"]
                    assert clock() - called < NOT_SENT_SECONDS
                    received = error["data"]["executed"]
                    print(f"{cut}: {received} after {clock() - called:.2f} s, {called - began:.2f} s after the cut")
                assert error["code"] == -32011
                await stands(b.hub, name, "away")
                error = (await there.call(f"{name}.echo", {"text": "cut"}))["error"]
                assert (error["code"], error["data"]["executed"]) == (-32011, "no")
            else:
                assert text_of(await there.call(f"{name}.echo", {"text": "far"})) == "far"
            if "db" in cut:
                # The other node takes over, while this one still believes in its task.
                found = await b.ends(held)
                assert executed(found) == "unknown"
                print(f"{cut}: taken over after {clock() - began:.2f} s")
                await eventually(partial(is_failing, a), "it says that it cannot store", 5.0 * BUSY)
            if "db" in cut:
                sent = clock()
                error = await a.fails("SendMessage", task_message(f"{round}-2", "pay"))
                assert any(words in error["message"] for words in ("it was not started", "It did not run")), error
                assert clock() - sent < NOT_SENT_SECONDS
                print(f"{cut}: a task is refused after {clock() - sent:.2f} s")
            for node in (a, b):
                await calls_work(node)
            assert text_of(await here.call(f"{name}.echo", {"text": "own"})) == "own"
            for far in cut:
                all.cables["a", far].plug()

            async def is_healthy() -> bool:
                answer = await there.call(f"{name}.echo", {"text": "back"})
                return "result" in answer and await is_ready(a)

            print(f"{cut}: healthy {await eventually(is_healthy, 'both are healthy', HEALTHY_SECONDS):.2f} s after")
            done = await a.send(f"{round}-3", waits=True)
            assert done["status"]["state"] == "TASK_STATE_COMPLETED"
            assert await b.state(done["id"]) == "COMPLETED"
        assert max(ledger.ran().values()) == 1
        assert not {"2-2", "3-2"} & ledger.ran().keys()
        calls = [each["params"]["arguments"]["text"] for each in server.messages if each.get("method") == "tools/call"]
        assert "cut" not in calls
        print(f"{all.cluster.check_history()} writes, none of a fenced node")
