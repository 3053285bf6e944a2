"""Nodes that die, stand still, leave, or lose their database: nothing is lost or runs twice, one node takes over."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.cluster_database.nodes import LEASE, RUNNING, TAKEOVER_SECONDS, Cluster, Node, all_end, executed
from tests.conftest import Ledger
from tests.databases import Database, running
from tests.faults.probed_hub import ProbedHub, probed_with
from tests.faults.test_tasks_crash import SECONDS, Load, task_message
from tests.faults.watching import eventually
from tests.hubs import serving

QUEUED = 20


@pytest.fixture
def database() -> Iterator[Database]:
    with running() as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, database: Database, ledger: Ledger) -> Cluster:
    return Cluster(tmp_path, database, ledger)


async def fill(node: Node, prefix: str) -> tuple[list[str], list[str]]:
    """Give a node tasks that run for ever, and more that wait for them; return the ids of both."""
    held = [(await node.send(f"{prefix}-{number}", "hold"))["id"] for number in range(1, 1 + RUNNING)]
    numbers = range(10, 10 + QUEUED)
    queued = [task["id"] for task in await asyncio.gather(*(node.send(f"{prefix}-{each}") for each in numbers))]
    assert {await node.state(task) for task in held} == {"WORKING"}
    assert {await node.state(task) for task in queued} == {"SUBMITTED"}
    return held, queued


# -- reading and repeating -------------------------------------------------------------------------------------------


async def test_every_node_shows_the_tasks_of_all(no_leftovers: None, cluster: Cluster, ledger: Ledger) -> None:
    async with cluster.nodes("a", "b") as (a, b), asyncio.timeout(SECONDS):
        held = (await a.send("1-1", "hold"))["id"]
        done = (await a.send("1-2", waits=True))["id"]
        assert (await b.state(held), await b.state(done)) == ("WORKING", "COMPLETED")
        listed = await b.load.ask("ListTasks", {})
        assert {task["id"] for task in listed["tasks"]} == {held, done}
        refused = await b.fails("CancelTask", {"id": held})
        assert "Another node of the cluster runs task" in refused["message"]
        assert "'executed': 'no'" in str(refused), refused
        more = task_message("1-3", "pay")
        more["message"]["taskId"] = held
        assert "Another node of the cluster runs task" in (await b.fails("SendMessage", more))["message"]
        # A change is seen at once, because nothing of another node is cached.
        await a.load.ask("CancelTask", {"id": held})
        assert await b.state(held) == "CANCELED"
        assert ledger.ran() == {"1-1": 1, "1-2": 1}
        cluster.check_history()


async def test_the_same_message_to_two_nodes_at_once_runs_once(
    no_leftovers: None, cluster: Cluster, ledger: Ledger
) -> None:
    rounds = 20
    async with cluster.nodes("a", "b") as (a, b), asyncio.timeout(SECONDS):
        for number in range(rounds):  # odd ones have an Idempotency-Key, too
            one, other = await asyncio.gather(a.send(f"1-{number}", waits=True), b.send(f"1-{number}", waits=True))
            assert one["id"] == other["id"]
            assert [each["status"]["state"] for each in (one, other)] == ["TASK_STATE_COMPLETED"] * 2
        assert ledger.ran() == {f"1-{number}": 1 for number in range(rounds)}
        cluster.check_history()


# -- nodes that die --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [("b",), ("b", "c")])
async def test_the_tasks_of_a_killed_node_continue_on_another_one(
    no_leftovers: None, cluster: Cluster, ledger: Ledger, others: tuple[str, ...]
) -> None:
    async with cluster.nodes("a", *others) as (a, *rest), asyncio.timeout(SECONDS):
        held, queued = await fill(a, "1")
        a.kill()
        died = time.monotonic()
        found = await all_end(rest[0], held, TAKEOVER_SECONDS)
        taken = time.monotonic() - died
        assert taken < TAKEOVER_SECONDS
        print(f"taken over {taken:.2f} s after the kill, with a lease of {LEASE:g} s")
        assert {task["status"]["state"] for task in found} == {"TASK_STATE_FAILED"}
        assert {executed(task) for task in found} == {"unknown"}
        found = await all_end(rest[-1], queued)
        assert {task["status"]["state"] for task in found} == {"TASK_STATE_COMPLETED"}
        assert ledger.ran() == dict.fromkeys(a.load.acknowledged.values(), 1)
        heirs = [node for node in rest if any("took over the tasks" in line for line in node.hub.said)]
        assert len(heirs) == 1
        await eventually(lambda: set(cluster.numbers()) == set(others), "the dead node is forgotten")
        assert cluster.check_history() > len(queued)


async def test_nodes_whose_clocks_are_hours_apart_and_step_keep_their_leases(
    no_leftovers: None, cluster: Cluster, ledger: Ledger
) -> None:
    """Leases are in the database's time. What is stored for a while is so by the clocks, also of other nodes."""
    hours = 3600.0
    clock = asyncio.get_running_loop().time
    async with AsyncExitStack() as stack, asyncio.timeout(SECONDS):

        async def start(name: str, offset: float) -> tuple[Node, ProbedHub]:
            config = cluster.config(name)
            (config.parent / "probe-clock").write_text(str(offset))
            probe = await stack.enter_async_context(probed_with(config))
            return Node(name, probe.hub, await stack.enter_async_context(Load(probe.hub, 1))), probe

        a, clock_of_a = await start("a", 2 * hours)
        cluster.keep_history()
        b, clock_of_b = await start("b", -2 * hours)
        numbers, began, count = cluster.numbers(), clock(), 1000
        while clock() - began < 2.5 * LEASE:  # each has renewed its lease with several clocks
            for node in (a, b):
                assert (await node.send(f"1-{count}", waits=True))["status"]["state"] == "TASK_STATE_COMPLETED"
                count += 1
            one, other = await asyncio.gather(*(node.send(f"1-{count}", waits=True) for node in (a, b)))
            assert one["id"] == other["id"], "a message that reaches both nodes is one task"
            count += 1
            clock_of_a.step_clock((count % 3 - 1) * 2 * hours)
            clock_of_b.step_clock((1 - count % 2) * -2 * hours)
        assert cluster.numbers() == numbers, "no node was taken over"
        held, queued = await fill(a, "1")
        a.hub.kill()
        found = await all_end(b, held, TAKEOVER_SECONDS)
        assert {executed(task) for task in found} == {"unknown"}
        assert {task["status"]["state"] for task in await all_end(b, queued)} == {"TASK_STATE_COMPLETED"}
        assert ledger.ran() == dict.fromkeys({**a.load.acknowledged, **b.load.acknowledged}.values(), 1)
        cluster.check_history()
        b.hub.kill()


async def test_a_node_that_stood_still_past_its_lease_writes_nothing_and_joins_again(
    no_leftovers: None, cluster: Cluster, ledger: Ledger
) -> None:
    async with cluster.nodes("a", "b") as (a, b), asyncio.timeout(SECONDS):
        held, queued = await fill(a, "1")
        before = cluster.numbers()["a"]
        a.hub.process.send_signal(signal.SIGSTOP)
        found = await all_end(b, held, TAKEOVER_SECONDS)
        assert {executed(task) for task in found} == {"unknown"}
        assert {task["status"]["state"] for task in await all_end(b, queued)} == {"TASK_STATE_COMPLETED"}
        written = cluster.check_history()
        a.hub.process.send_signal(signal.SIGCONT)
        await a.says("another node has taken over the tasks of this one")
        await eventually(lambda: cluster.numbers().get("a", 0) > before, "it joins again")
        # It shows what the other node stored, and works again.
        assert {await a.state(task) for task in held} == {"FAILED"}
        assert {await a.state(task) for task in queued} == {"COMPLETED"}
        assert cluster.check_history() == written
        assert (await a.send("1-90", waits=True))["status"]["state"] == "TASK_STATE_COMPLETED"
        assert await a.ready() == (200, "ok")
        assert ledger.ran() == dict.fromkeys([*b.load.acknowledged.values(), *a.load.acknowledged.values()], 1)
        cluster.check_history()


async def test_a_node_that_leaves_hands_over_at_once(
    no_leftovers: None, tmp_path: Path, database: Database, ledger: Ledger
) -> None:
    cluster = Cluster(tmp_path, database, ledger, lease=60.0)
    async with cluster.nodes("a", "b") as (a, b), asyncio.timeout(SECONDS):
        held, queued = await fill(a, "1")
        a.hub.terminate()
        await a.hub.process.wait()
        left = time.monotonic()
        await all_end(b, queued, 20.0)  # long before the lease ends
        print(f"handed over {time.monotonic() - left:.2f} s after the process ended")
        assert {await b.state(task) for task in held} <= {"FAILED", "CANCELED"}
        assert ledger.ran() == dict.fromkeys(a.load.acknowledged.values(), 1)
        await eventually(lambda: set(cluster.numbers()) == {"b"}, "the node is forgotten")
        cluster.check_history()


# -- the database ----------------------------------------------------------------------------------------------------


async def test_while_the_database_is_away_for_longer_than_a_lease_no_node_is_taken_over(
    no_leftovers: None, cluster: Cluster, ledger: Ledger
) -> None:
    async with cluster.nodes("a", "b") as (a, b), asyncio.timeout(SECONDS):
        held = [(await node.send(f"{at}-1", "hold"))["id"] for at, node in enumerate((a, b))]
        before = cluster.numbers()
        await asyncio.to_thread(cluster.database.stop)
        await a.says("the lease of this node has ended")
        assert await a.ready() == (503, "storage_failing")
        assert "It did not run this time" in (await a.fails("SendMessage", task_message("1-2", "pay")))["message"]
        await asyncio.to_thread(cluster.database.start)
        for node in (a, b):

            async def is_ready(node: Node = node) -> bool:
                return await node.ready() == (200, "ok")

            await eventually(is_ready, f"{node.name} is ready", 20.0)
        assert cluster.numbers() == before
        for at, node in enumerate((a, b)):
            assert await node.state(held[at]) == "WORKING"
            assert (await node.send(f"{at}-4", waits=True))["status"]["state"] == "TASK_STATE_COMPLETED"
        assert ledger.ran() == {"0-1": 1, "1-1": 1, "0-4": 1, "1-4": 1}
        cluster.check_history()


async def test_the_first_node_continues_the_tasks_of_a_hub_that_was_alone(
    no_leftovers: None, cluster: Cluster, ledger: Ledger
) -> None:
    async with cluster.node("old", cluster=None) as old, asyncio.timeout(SECONDS):
        held, queued = await fill(old, "1")
        old.kill()
    async with cluster.nodes("a", "b") as (a, b), asyncio.timeout(SECONDS):
        found = await all_end(b, held)
        assert {executed(task) for task in found} == {"unknown"}
        assert {task["status"]["state"] for task in await all_end(a, queued)} == {"TASK_STATE_COMPLETED"}
        assert ledger.ran() == dict.fromkeys(old.load.acknowledged.values(), 1)


async def test_a_hub_that_is_alone_and_a_cluster_keep_each_other_out(
    no_leftovers: None, tmp_path: Path, cluster: Cluster
) -> None:
    alone = {"storage": {"url": cluster.url}}
    async with cluster.node("a"):
        with pytest.raises(RuntimeError, match="another hub is using schema"):
            async with serving(tmp_path, {}, **alone):
                pass
    async with serving(tmp_path, {}, **alone):
        with pytest.raises(RuntimeError, match="a hub that is not part of a cluster is using schema"):
            async with cluster.node("a"):
                pass


# -- callers that wait -------------------------------------------------------------------------------------------------


async def test_a_caller_waiting_on_a_stalled_node_gets_the_heirs_result(
    no_leftovers: None, cluster: Cluster, ledger: Ledger
) -> None:
    async with cluster.nodes("a", "b") as (a, b), asyncio.timeout(SECONDS):
        held = [(await a.send(f"1-{number}", "hold"))["id"] for number in range(1, RUNNING)]
        running, queued = [
            asyncio.ensure_future(a.send(nonce, tool, waits=True)) for nonce, tool in (("1-8", "hold"), ("1-9", "pay"))
        ]
        await eventually(lambda: "1-8" in ledger.ran(), "the task runs")

        async def are_stored() -> bool:
            return bool((await b.load.ask("ListTasks", {}))["totalSize"] == len(held) + 2)

        await eventually(are_stored, "both are stored")
        a.hub.process.send_signal(signal.SIGSTOP)
        await all_end(b, held, TAKEOVER_SECONDS)
        a.hub.process.send_signal(signal.SIGCONT)
        lost, done = await running, await queued
        assert (lost["status"]["state"], executed(lost)) == ("TASK_STATE_FAILED", "unknown")
        assert done["status"]["state"] == "TASK_STATE_COMPLETED"
        assert (ledger.ran()["1-8"], ledger.ran()["1-9"]) == (1, 1)
        cluster.check_history()


async def test_a_node_that_inherits_a_task_keeps_notifying_its_followers(
    no_leftovers: None, cluster: Cluster, ledger: Ledger
) -> None:
    async with cluster.nodes("a", "b") as (a, b), asyncio.timeout(SECONDS):
        task = await a.send("1-2", "hold")
        # The same message again, at the other node: its caller waits there for the end.
        waiting = asyncio.ensure_future(b.send("1-2", "hold", waits=True))
        await eventually(lambda: "1-2" in ledger.ran(), "it runs")
        a.kill()
        found = await waiting
        assert found["id"] == task["id"]
        assert (found["status"]["state"], executed(found)) == ("TASK_STATE_FAILED", "unknown")
        assert ledger.ran() == {"1-2": 1}
