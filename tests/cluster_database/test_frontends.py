"""Callers of every frontend see tasks that another node runs, and tasks continue when that node dies."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_database.nodes import Cluster, executed
from tests.conftest import Ledger
from tests.databases import Database, running
from tests.faults.test_hub_tasks_crash import Caller
from tests.faults.test_tasks_crash import SECONDS, task_message
from tests.faults.watching import eventually
from tests.frontends.receiver import Receiver
from tests.frontends.test_a2a_push import states


@pytest.fixture
def database() -> Iterator[Database]:
    with running() as made:
        yield made


async def test_tasks_of_mcp_callers_are_shown_by_every_node_and_taken_over(
    no_leftovers: None, tmp_path: Path, database: Database, ledger: Ledger
) -> None:
    cluster = Cluster(tmp_path, database, ledger)
    async with (
        cluster.nodes("a", "b") as (a, b),
        Caller(a.hub, 1) as here,
        Caller(b.hub, 2) as there,
        asyncio.timeout(SECONDS),
    ):
        params = {"name": "quick.hold", "arguments": {"nonce": "1"}, "task": {"ttl": 600_000}}
        task = (await here.ask("tools/call", params))["result"]["task"]["taskId"]
        assert (await there.ask("tasks/get", {"taskId": task}))["result"]["status"] == "working"
        refused = (await there.ask("tasks/cancel", {"taskId": task}))["error"]
        assert (refused["code"], refused["data"]["executed"]) == (-32010, "no")
        assert refused["data"]["reason"] == "task_elsewhere"
        assert refused["data"]["retryAfter"] > 0
        shown = (await b.load._client.get("/v1/tasks")).json()["tasks"]
        assert [(each["id"], each["state"]) for each in shown] == [(task, "working")]
        assert (await b.load._client.post(f"/v1/cancel/{task}")).status_code == 503
        # A caller that waits for the result on the other node gets what that one stores when it is the heir.
        waiting = asyncio.ensure_future(there.ask("tasks/result", {"taskId": task}))
        await eventually(lambda: "1" in ledger.ran(), "it runs")
        a.kill()
        assert (await waiting)["error"]["data"]["executed"] == "unknown"
        assert ledger.ran() == {"1": 1}


async def test_push_notifications_of_a_killed_node_are_sent_by_another_one(
    no_leftovers: None, tmp_path: Path, database: Database, ledger: Ledger
) -> None:
    key = secrets.token_hex(32)
    for name in "ab":
        (tmp_path / name / "state").mkdir(parents=True)
        (tmp_path / name / "state" / "journal.key").write_text(key)
        (tmp_path / name / "state" / "journal.key").chmod(0o600)
    async with Receiver() as receiver:
        cluster = Cluster(tmp_path, database, ledger, targets=receiver.allowed)
        receiver.hanging.add("/hook")
        async with cluster.nodes("a", "b") as (a, b), asyncio.timeout(SECONDS):
            params = task_message("1-2", "hold")
            push = {"url": receiver.url("/hook"), "token": "a-token"}
            params["configuration"]["taskPushNotificationConfig"] = push
            task = (await a.load.send(params))["id"]
            await receiver.until(lambda: len(receiver.posted) == 1)
            a.kill()
            receiver.hanging.clear()
            receiver.posted.clear()
            found = await b.ends(task)
            assert executed(found) == "unknown"
            await receiver.until(lambda: states(receiver.posted)[-1:] == ["FAILED"])
            assert states(receiver.posted)[0] in ("SUBMITTED", "WORKING")
            assert {each.headers["x-a2a-notification-token"] for each in receiver.posted} == {"a-token"}
        cluster.check_history()
