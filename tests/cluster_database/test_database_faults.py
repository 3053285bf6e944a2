"""The database of a cluster stops answering or writing, or fails over: calls go on, no task is lost or doubled."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.servers import BUSY
from tests.cluster_database.nodes import LEASE, Cluster, Node, executed
from tests.cluster_database.test_kills import Traffic
from tests.conftest import Ledger
from tests.databases import Database, replicated, running
from tests.faults.chaos import ChaosProxy
from tests.faults.test_tasks_crash import SECONDS, task_message
from tests.faults.watching import eventually

HEALTHY_SECONDS = 5.0 * BUSY
"""After the database is back."""
TASKS = 60
"""Tasks that are acknowledged before the failover, and after it."""


@pytest.fixture
def database() -> Iterator[Database]:
    with running() as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, database: Database, ledger: Ledger) -> Cluster:
    return Cluster(tmp_path, database, ledger)


async def is_ready(node: Node) -> bool:
    return await node.ready() == (200, "ok")


async def calls_work(node: Node) -> None:
    """An ordinary call needs no database."""
    found = await node.load._client.post("/v1/tools/builtin.echo", json={"text": "still"})
    assert found.json()["content"][0]["text"] == "still", found.text


async def healthy_again(node: Node) -> float:
    async def ready() -> bool:
        return await is_ready(node)

    return await eventually(ready, f"{node.name} is ready", HEALTHY_SECONDS)


async def test_a_database_that_writes_nothing_stops_tasks_and_no_calls(
    no_leftovers: None, cluster: Cluster, ledger: Ledger
) -> None:
    async with cluster.nodes("a", "b") as (a, b), asyncio.timeout(SECONDS):
        assert (await a.send("0-1", waits=True))["status"]["state"] == "TASK_STATE_COMPLETED"
        cluster.database.psql("ALTER SYSTEM SET default_transaction_read_only = on")
        cluster.database.psql("SELECT pg_reload_conf()")
        await a.says("the lease of this node has ended")
        for node in (a, b):
            await calls_work(node)
        assert "it was not started" in (await a.fails("SendMessage", task_message("1-2", "pay")))["message"]
        cluster.database.psql_writing("ALTER SYSTEM RESET default_transaction_read_only")
        cluster.database.psql("SELECT pg_reload_conf()")
        for number, node in enumerate((a, b)):
            print(f"{node.name} healthy {await healthy_again(node):.2f} s after")
            assert (await node.send(f"2-{number}", waits=True))["status"]["state"] == "TASK_STATE_COMPLETED"
        assert ledger.ran() == {"0-1": 1, "2-0": 1, "2-1": 1}
        cluster.check_history()


async def test_a_database_that_stands_still_stops_tasks_and_no_calls(
    no_leftovers: None, cluster: Cluster, ledger: Ledger
) -> None:
    async with cluster.nodes("a", "b") as (a, b), asyncio.timeout(SECONDS):
        cluster.database.signal_all(signal.SIGSTOP)
        try:
            for node in (a, b):
                await node.says("the lease of this node has ended", 40.0)
                await calls_work(node)
                assert (await node.ready())[0] == 503
        finally:
            cluster.database.signal_all(signal.SIGCONT)
        for number, node in enumerate((a, b)):
            print(f"{node.name} healthy {await healthy_again(node):.2f} s after")
            assert (await node.send(f"1-{number}", waits=True))["status"]["state"] == "TASK_STATE_COMPLETED"
        cluster.check_history()


async def test_a_slow_database_slows_tasks_and_no_calls(
    no_leftovers: None, cluster: Cluster, database: Database, ledger: Ledger
) -> None:
    async with ChaosProxy(database.socket) as wire, asyncio.timeout(2 * SECONDS):
        cluster.url = f"postgresql://hub:${{PG_PASSWORD:-none}}@127.0.0.1:{wire.port}/postgres?schema={cluster.schema}"
        async with cluster.nodes("a", "b") as (a, b):
            wire.latency(0.1)  # as between continents: a write takes a second, and connecting two
            for number, node in enumerate((a, b)):
                await calls_work(node)
                assert (await node.send(f"0-{number}", waits=True))["status"]["state"] == "TASK_STATE_COMPLETED"
                assert await is_ready(node)
            wire.latency(2.5 * LEASE)
            for node in (a, b):
                await node.says("the lease of this node has ended", 40.0)
                await calls_work(node)
                await node.fails("SendMessage", task_message("1-2", "pay"))
            await wire.clear()
            for number, node in enumerate((a, b)):
                print(f"{node.name} healthy {await healthy_again(node):.2f} s after")
                assert (await node.send(f"2-{number}", waits=True))["status"]["state"] == "TASK_STATE_COMPLETED"
        assert ledger.ran() == {f"{stage}-{number}": 1 for stage in (0, 2) for number in (0, 1)}
        cluster.check_history()


async def test_tasks_survive_a_failover_to_a_standby(tmp_path: Path, ledger: Ledger, no_leftovers: None) -> None:
    with replicated() as (primary, standby):
        cluster = Cluster(tmp_path, primary, ledger, slots=400)
        cluster.url = primary.url(user="hub:${PG_PASSWORD:-none}", schema="shared", beside=standby)
        traffic, points = Traffic(), random.Random(22)
        async with cluster.nodes("a", "b") as (a, b), asyncio.timeout(2 * SECONDS):
            traffic.living = [a, b]
            callers = [asyncio.ensure_future(traffic.run(points)) for _ in range(8)]
            await eventually(lambda: len(traffic.acknowledged) >= TASKS, "tasks are acknowledged", SECONDS)
            await asyncio.to_thread(primary.stop, signal.SIGKILL)
            for node in (a, b):
                await calls_work(node)
            await asyncio.to_thread(standby.promote)
            cluster.database = standby
            print(f"healthy {max([await healthy_again(node) for node in (a, b)]):.2f} s after the promotion")
            before = len(traffic.acknowledged)
            await eventually(
                lambda: len(traffic.acknowledged) >= before + TASKS, "tasks are acknowledged again", SECONDS
            )
            traffic.is_done = True
            await asyncio.gather(*callers)
            for nonce in list(traffic.unanswered):
                await traffic.send(b, nonce)
            assert not traffic.unanswered
            completed = 0
            for task, nonce in traffic.acknowledged.items():
                if int(nonce.partition("-")[2]) % 11 == 0:  # it is held
                    continue
                found = await a.ends(task)
                if found["status"]["state"] == "TASK_STATE_COMPLETED":
                    completed += 1
                    assert ledger.ran()[nonce] == 1
                else:
                    assert executed(found) == "unknown", found
            assert not {nonce: count for nonce, count in ledger.ran().items() if count > 1}
            print(f"{len(traffic.acknowledged)} tasks, {completed} completed, {cluster.check_history()} writes")
