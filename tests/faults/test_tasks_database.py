"""Tasks in a database, and either the hub or the database is killed under load: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ledger
from tests.databases import Database, replicated, running
from tests.faults import quick_server
from tests.faults.test_tasks_crash import CALLERS, ENDED, SECONDS, Load, kill_under_load, task_message
from tests.faults.watching import eventually, times
from tests.hubs import HubProcess, serving, stdio, write_config

HUB_KILLS = 3
DATABASE_KILLS = 2
PATIENT = {"listing_seconds": 30.0}


@pytest.fixture
def database() -> Iterator[Database]:
    with running() as made:
        yield made


def tables(database: Database, ledger: Ledger) -> dict[str, Any]:
    server = stdio(quick_server.command(ledger.path), max_calls=200)
    return {
        "servers": {"quick": server},
        "limits": PATIENT,
        "storage": {"url": database.url(user="hub:${PG_PASSWORD:-none}")},
    }


async def test_a_hub_that_is_killed_under_load_loses_no_task_of_its_database_and_runs_none_twice(
    no_leftovers: None, tmp_path: Path, database: Database, ledger: Ledger
) -> None:
    config = write_config(tmp_path, **tables(database, ledger))
    await kill_under_load(config, ledger, seed=5, kills=HUB_KILLS)
    assert not (tmp_path / "state" / "journal.db").exists(), "keys, and nothing of tasks"


@pytest.mark.soak  # 300 kills; the cluster's tests have a failover under load
async def test_hub_and_database_are_killed_and_a_standby_takes_over(tmp_path: Path, ledger: Ledger) -> None:
    """Half of the kills happen before the failover. The standby has all that was acknowledged."""
    with replicated() as (primary, standby):
        made = tables(primary, ledger)
        made["storage"]["url"] = primary.url(user="hub:${PG_PASSWORD:-none}", schema="tasks", beside=standby)

        def fail_over() -> None:
            primary.stop(signal.SIGKILL)
            standby.promote()

        await kill_under_load(write_config(tmp_path, **made), ledger, seed=22, kills=times(4, 300), at_half=fail_over)


class Patient(Load):
    """Callers that take no for an answer, and go on with something else."""

    def __init__(self, hub: HubProcess) -> None:
        super().__init__(hub, 1)
        self.is_done = False

    async def __aenter__(self) -> Patient:
        return self

    async def run(self) -> None:
        """Continue until stopped."""
        while not self.is_done:
            self._number += 1
            with suppress(Refused):
                await self.send(task_message(f"1-{self._number}", "pay"))

    async def ask(self, method: str, params: Any, headers: dict[str, str] | None = None) -> Any:
        """The result of a request; that it could not be kept is the only thing that may be wrong with it."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = (await self._client.post("/a2a", json=body, headers=headers)).json()
        if "result" in answer:
            return answer["result"]
        assert answer["error"]["code"] == -32603, answer
        raise Refused


class Refused(Exception):
    """The hub could not write it down, or could not look it up."""


async def test_when_the_database_is_killed_under_load_no_task_is_lost_and_the_hub_goes_on(
    no_leftovers: None, tmp_path: Path, database: Database, ledger: Ledger
) -> None:
    made = tables(database, ledger)
    async with serving(tmp_path, **made) as hub, Patient(hub) as load, asyncio.timeout(SECONDS):
        callers = [asyncio.ensure_future(load.run()) for _ in range(CALLERS)]
        for _ in range(DATABASE_KILLS):
            await more(load)
            await asyncio.to_thread(database.stop)
            await asyncio.to_thread(database.start)
        await more(load)
        load.is_done = True
        await asyncio.gather(*callers)
        for task, nonce in load.acknowledged.items():
            await ends(load, task, nonce)
        assert not {nonce: count for nonce, count in ledger.ran().items() if count > 1}
    assert any("reconnected to the journal's database" in line for line in hub.said)


async def more(load: Load) -> None:
    """Wait until more was acknowledged."""
    enough = len(load.acknowledged) + 100
    await eventually(lambda: len(load.acknowledged) >= enough, "more is acknowledged")


async def ends(load: Load, task: str, nonce: str) -> None:
    """A task is found, and has ended or will; what is refused is written again after a second."""
    while True:
        found = await load.ask("GetTask", {"id": task})
        if found["status"]["state"] in ENDED:
            break
        await asyncio.sleep(0.05)
    assert found["artifacts"][0]["parts"][0]["data"]["mcp_result"]["content"] == [{"type": "text", "text": nonce}]


async def test_a_hub_without_its_database_reports_that_and_serves_requests_that_need_no_database(
    no_leftovers: None, tmp_path: Path, database: Database, ledger: Ledger
) -> None:
    async with serving(tmp_path, **tables(database, ledger)) as hub, Patient(hub) as load, asyncio.timeout(SECONDS):
        task, keyless = await load.send(task_message("1-3", "pay")), await load.send(task_message("1-6", "pay"))
        database.stop()
        assert await load.send(task_message("1-6", "pay")) == keyless
        assert ledger.ran()["1-6"] == 1
        results = await asyncio.gather(
            load.send(task_message("1-4", "pay")),
            load.send(task_message("1-5", "pay")),  # under a key, which is looked up first
            load.ask("GetTask", {"id": "unknown"}),
            load.ask("ListTasks", {}),
            return_exceptions=True,
        )
        assert [type(each) for each in results] == [Refused] * 4
        assert (await load.ask("GetTask", {"id": task["id"]}))["status"]["state"] in ENDED
        assert (await load._client.get("/livez")).status_code == 200
        database.start()


async def test_a_hub_that_finds_another_one_in_its_database_does_not_start(
    no_leftovers: None, tmp_path: Path, database: Database, ledger: Ledger
) -> None:
    made = tables(database, ledger)
    async with serving(tmp_path, **made):
        with pytest.raises(RuntimeError, match=r"storage\.url cannot be used: another hub is using schema") as refused:
            async with serving(tmp_path, **made):
                pass
        assert "none" not in str(refused.value).rpartition("storage.url")[2]
