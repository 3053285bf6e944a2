"""Nodes, NATS and sockets die while calls cross: callers get an error soon, and it is true."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.servers import BUSY, NatsServer, Proxy
from tests.cluster_hubs.nodes import cluster, nats_server, node, rest_of, stands
from tests.faults.watching import eventually
from tests.hubs import HubProcess, Raw
from tests.relay.peers import Manner, RawServer, raw_server

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("cluster")]

Json = dict[str, Any]
TOLD_SECONDS = 3.0
"""Within that callers know that the owner of their server has died: its lease, and some time for this machine."""
SERVERS, CALLS = 4, 8


def text_of(answer: Json) -> str:
    assert "result" in answer, answer
    return str(answer["result"]["content"][0]["text"])


class Ledger:
    """What servers were asked to do: the number of times that each call arrived."""

    def __init__(self, servers: list[RawServer]) -> None:
        self._servers = servers

    def arrived(self) -> Counter[str]:
        calls = [each for server in self._servers for each in server.messages if each.get("method") == "tools/call"]
        return Counter(str(call["params"]["arguments"]["text"]) for call in calls)


@asynccontextmanager
async def mortal(folder: Path, nats: str, name: str) -> AsyncIterator[HubProcess]:
    """A node that a test kills."""
    stack = AsyncExitStack()
    hub = await stack.enter_async_context(node(folder, nats, name))
    try:
        yield hub
    finally:
        with pytest.raises(AssertionError, match="the hub ended with -9"):
            await stack.aclose()


async def test_callers_get_an_error_when_the_owner_is_killed(tmp_path: Path, agent: str) -> None:
    async with (
        nats_server(tmp_path) as nats,
        node(tmp_path, nats.url, "b") as b,
        node(tmp_path, nats.url, "c") as c,
        mortal(tmp_path, nats.url, "a") as a,
        AsyncExitStack() as stack,
    ):
        manner = {f"s{n}": Manner(tools=("hold", "echo")) for n in range(SERVERS)}
        servers = [
            await stack.enter_async_context(raw_server(a.port, agent, id, manner=each)) for id, each in manner.items()
        ]
        ledger = Ledger(servers)
        callers = [await stack.enter_async_context(Raw(hub.url)) for hub in (b, c)]
        for hub in (b, c):
            for id in manner:
                await stands(hub, f"{agent}_{id}", "ready")
        calls: dict[str, asyncio.Task[Json]] = {}
        for number, caller in enumerate(callers):
            for id in manner:
                for n in range(CALLS):
                    text = f"{number}/{id}/{n}"
                    calls[text] = asyncio.create_task(caller.call(f"{agent}_{id}.hold", {"text": text}, id=len(calls)))
        await eventually(lambda: sum(ledger.arrived().values()) >= len(calls), "all calls are running")
        assert isinstance(a.pid, int)
        os.kill(a.pid, signal.SIGKILL)
        async with asyncio.timeout(TOLD_SECONDS):
            answers = dict(zip(calls, await asyncio.gather(*calls.values()), strict=True))
        received = {text: answer["error"]["data"]["executed"] for text, answer in answers.items()}
        assert set(received.values()) == {"unknown"}
        arrived = ledger.arrived()
        assert max(arrived.values()) == 1, "a call was sent twice"
        for hub in (b, c):
            await stands(hub, f"{agent}_s0", "away", TOLD_SECONDS)
        error = (await callers[0].call(f"{agent}_s0.echo", {"text": "x"}))["error"]
        assert (error["code"], error["data"]["executed"]) == (-32011, "no")
        # The server comes back at another node, and is there for all that are left.
        async with raw_server(b.port, agent, "s0", manner=Manner(tools=("echo",))):
            await stands(c, f"{agent}_s0", "ready")
            assert text_of(await callers[1].call(f"{agent}_s0.echo", {"text": "back"})) == "back"


async def test_a_call_that_never_left_is_known_not_to_have_run(tmp_path: Path, agent: str) -> None:
    """More calls than the server may run: the rest waits in queues, and what dies there was never sent."""
    limits = {"max_calls": 2}
    async with (
        nats_server(tmp_path) as nats,
        node(tmp_path, nats.url, "b", limits=limits) as b,
        mortal(tmp_path, nats.url, "a") as a,
        raw_server(a.port, agent, "s1", manner=Manner(tools=("hold",))) as server,
        Raw(b.url) as caller,
    ):
        await stands(b, f"{agent}_s1", "ready")
        calls = {
            f"{n}": asyncio.create_task(caller.call(f"{agent}_s1.hold", {"text": f"{n}"}, id=n)) for n in range(10)
        }
        await server.holds(2)
        os.kill(a.pid, signal.SIGKILL)
        async with asyncio.timeout(TOLD_SECONDS):
            await asyncio.gather(*calls.values())
        arrived = Ledger([server]).arrived()
        assert sum(arrived.values()) == 2
        for text, call in calls.items():
            assert call.result()["error"]["data"]["executed"] == ("unknown" if text in arrived else "no")


async def test_without_nats_own_servers_work_and_others_are_away(tmp_path: Path, agent: str) -> None:
    async with (
        cluster(tmp_path, "a", "b") as (nats, (a, b)),
        raw_server(a.port, agent, "s1", manner=Manner(tools=("echo", "hold"))) as server,
        Raw(a.url) as here,
        Raw(b.url) as there,
    ):
        await stands(b, f"{agent}_s1", "ready")
        running = asyncio.create_task(there.call(f"{agent}_s1.hold", {"text": "held"}))
        own = asyncio.create_task(here.call(f"{agent}_s1.hold", {"text": "own"}))
        await server.holds(2)
        nats.kill()
        async with asyncio.timeout(1.0 * BUSY):
            assert (await running)["error"]["data"]["executed"] == "unknown"
        clock = asyncio.get_running_loop().time
        began = clock()
        error = (await there.call(f"{agent}_s1.echo", {"text": "x"}))["error"]
        assert (error["code"], error["data"]["executed"]) == (-32011, "no")
        assert clock() - began < 1.0 * BUSY
        assert text_of(await here.call(f"{agent}_s1.echo", {"text": "still"})) == "still"
        await server.release()
        assert text_of(await own) == "own"
        async with rest_of(b) as rest:
            ready = await rest.get("/readyz", params={"verbose": ""})
            assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
            assert "bus" in ready.json()["cluster"]
            assert (await rest.get("/v1/cluster")).json()["bus"]["state"] == "away"
        assert any("not in the cluster" in line for line in b.said)
        nats.start()
        assert await stands(b, f"{agent}_s1", "ready") < 5.0 * BUSY
        assert text_of(await there.call(f"{agent}_s1.echo", {"text": "again"})) == "again"


async def test_nats_that_stands_still_is_noticed(tmp_path: Path, agent: str) -> None:
    async with (
        cluster(tmp_path, "a", "b") as (nats, (a, b)),
        raw_server(a.port, agent, "s1", manner=Manner(tools=("echo", "hold"))) as server,
        Raw(a.url) as here,
        Raw(b.url) as there,
    ):
        await stands(b, f"{agent}_s1", "ready")
        running = asyncio.create_task(there.call(f"{agent}_s1.hold", {"text": "held"}))
        await server.holds()
        nats.signal(signal.SIGSTOP)
        try:
            assert text_of(await here.call(f"{agent}_s1.echo", {"text": "still"})) == "still"
            async with asyncio.timeout(TOLD_SECONDS):
                assert (await running)["error"]["data"]["executed"] == "unknown"
            await stands(b, f"{agent}_s1", "away", TOLD_SECONDS)
        finally:
            nats.signal(signal.SIGCONT)
        assert await stands(b, f"{agent}_s1", "ready") < 5.0 * BUSY
        assert text_of(await there.call(f"{agent}_s1.echo", {"text": "again"})) == "again"
        assert max(Ledger([server]).arrived().values()) == 1


async def test_a_hub_starts_without_nats_and_joins_when_it_is_there(tmp_path: Path, agent: str) -> None:
    nats = NatsServer(tmp_path)
    async with (
        node(tmp_path, nats.url, "a") as a,
        node(tmp_path, nats.url, "b") as b,
        raw_server(a.port, agent, "s1"),
        Raw(a.url) as here,
    ):
        await stands(a, f"{agent}_s1", "ready")
        assert text_of(await here.call(f"{agent}_s1.echo", {"text": "alone"})) == "alone"
        nats.start()
        try:
            assert await stands(b, f"{agent}_s1", "ready") < 5.0 * BUSY
        finally:
            nats.kill()


async def test_a_node_that_shuts_down_answers_its_calls_and_gets_no_new_ones(tmp_path: Path, agent: str) -> None:
    async with (
        nats_server(tmp_path) as nats,
        node(tmp_path, nats.url, "b") as b,
        Raw(b.url) as caller,
        node(tmp_path, nats.url, "a") as a,
        raw_server(a.port, agent, "s1", manner=Manner(tools=("hold", "echo"))) as server,
    ):
        await stands(b, f"{agent}_s1", "ready")
        running = asyncio.create_task(caller.call(f"{agent}_s1.hold", {"text": "last"}))
        await server.holds()
        a.terminate()
        await stands(b, f"{agent}_s1", "away")
        error = (await caller.call(f"{agent}_s1.echo", {"text": "late"}))["error"]
        assert error["data"]["executed"] == "no"
        await server.release()
        assert text_of(await asyncio.wait_for(running, 10)) == "last"


async def test_a_call_that_is_given_up_is_cancelled_at_the_server(tmp_path: Path, agent: str) -> None:
    async with (
        cluster(tmp_path, "a", "b") as (_, (a, b)),
        raw_server(a.port, agent, "s1", manner=Manner(tools=("hold",))) as server,
        Raw(b.url) as caller,
    ):
        await stands(b, f"{agent}_s1", "ready")
        running = asyncio.create_task(caller.call(f"{agent}_s1.hold"))
        await server.holds()
        running.cancel()
        await server.until(lambda: "notifications/cancelled" in server.asked, "the call is cancelled", 1.0)
        async with rest_of(b) as rest:
            late = asyncio.create_task(rest.post(f"/v1/tools/{agent}_s1.hold", json={}, params={"timeout": "0.5"}))
            await server.holds(2)
            found = (await asyncio.wait_for(late, 5)).json()
            assert found["executed"] == "unknown", found


@pytest.mark.skipif(sys.platform != "linux", reason="the tests' NATS server is started with Linux signals")
async def test_many_servers_move_with_their_sockets(tmp_path: Path, agent: str) -> None:
    """Nothing is left of an earlier place: after each move all nodes call the server where its socket is."""
    async with cluster(tmp_path, "a", "b", "c") as (_, hubs), AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(Raw(hub.url)) for hub in hubs]
        for round in range(6):
            async with raw_server(hubs[round % 3].port, agent, "s1", manner=Manner(tools=(f"echo{round}",))):
                for hub, caller in zip(hubs, callers, strict=True):

                    async def is_new(caller: Raw = caller, round: int = round) -> bool:
                        answer = await caller.call(f"{agent}_s1.echo{round}", {"text": f"{round}"})
                        return "result" in answer and text_of(answer) == f"{round}"

                    await eventually(is_new, f"round {round} at {hub.port}")


async def test_servers_are_used_again_after_nats_lost_one_message_of_their_nodes_directory(
    tmp_path: Path, agent: str
) -> None:
    lost: list[bytes] = []

    def lose_one(_subject: bytes, message: bytes) -> list[bytes]:
        if lost or b'"arriving"' not in message or b'"s2"' not in message:
            return [message]
        lost.append(message)
        return []

    async with (
        nats_server(tmp_path) as nats,
        Proxy(nats.port) as proxy,
        node(tmp_path, nats.url, "a") as a,
        node(tmp_path, proxy.url, "b") as b,
        raw_server(a.port, agent, "s1", manner=Manner(tools=("echo", "hold"))) as server,
        Raw(b.url) as caller,
    ):
        await stands(b, f"{agent}_s1", "ready")
        running = asyncio.create_task(caller.call(f"{agent}_s1.hold", {"text": "before"}))
        await server.holds()
        proxy.change = lose_one
        async with raw_server(a.port, agent, "s2"):
            await stands(b, f"{agent}_s2", "ready")
            assert lost
            await stands(b, f"{agent}_s1", "ready")
            assert text_of(await caller.call(f"{agent}_s1.echo", {"text": "after"}, id=2)) == "after"
            await server.release()
            assert text_of(await running) == "before"
