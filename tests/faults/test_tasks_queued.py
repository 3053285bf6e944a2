"""The hub is killed while tasks wait in a queue: these were not sent, and run once when it is back."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ledger
from tests.databases import running
from tests.faults import quick_server
from tests.faults.test_tasks_crash import SECONDS, Load, killed, task_message
from tests.hubs import stdio, write_config

QUEUED = 30
SLOTS = 8
HELD = 3
"""How many tasks run at once: half of the slots are for tasks, and three quarters of these for one caller."""


def configured(folder: Path, ledger: Ledger, **tables: Any) -> Path:
    server = stdio(quick_server.command(ledger.path), max_calls=SLOTS)
    return write_config(folder, {"quick": server}, limits={"listing_seconds": 30.0}, **tables)


async def states(load: Load) -> dict[str, str]:
    """How each task stands that was acknowledged."""
    found = {task: await load.ask("GetTask", {"id": task}) for task in load.acknowledged}
    return {task: each["status"]["state"].removeprefix("TASK_STATE_") for task, each in found.items()}


async def executed(load: Load, task: str) -> str:
    """The `executed` that the caller of a failed task gets."""
    found = await load.ask("GetTask", {"id": task})
    received: str = found["artifacts"][0]["parts"][0]["data"]["error"]["details"]["executed"]
    return received


@pytest.mark.parametrize("storage", ["a file", "a database"])
async def test_tasks_that_were_queued_when_the_hub_was_killed_run_after_it_and_once(
    tmp_path: Path, ledger: Ledger, no_leftovers: None, storage: str
) -> None:
    if storage == "a file":
        await check_queued_tasks_run(configured(tmp_path, ledger), ledger)
        return
    with running() as database:
        url = database.url(user="hub:${PG_PASSWORD:-none}")
        await check_queued_tasks_run(configured(tmp_path, ledger, storage={"url": url}), ledger)


async def check_queued_tasks_run(config: Path, ledger: Ledger) -> None:
    async with killed(config) as hub, Load(hub, 1) as load, asyncio.timeout(SECONDS):
        await hold_every_slot(load)
        held = dict(load.acknowledged)
        await asyncio.gather(*(load.send(quick(f"1-{number}")) for number in range(10, 10 + QUEUED)))
        stand = await states(load)
        hub.process.send_signal(signal.SIGKILL)
        acknowledged = load.acknowledged
    assert {stand[task] for task in held} == {"WORKING"}
    assert [state for task, state in stand.items() if task not in held] == ["SUBMITTED"] * QUEUED
    async with killed(config) as hub, Load(hub, 2) as load, asyncio.timeout(SECONDS):
        load.acknowledged = {task: nonce for task, nonce in acknowledged.items() if task not in held}
        await completed(load)
        assert {await executed(load, task) for task in held} == {"unknown"}
    assert ledger.ran() == dict.fromkeys(acknowledged.values(), 1)


async def hold_every_slot(load: Load) -> None:
    for number in range(1, 1 + HELD):
        await load.send(task_message(f"1-{number}", "hold"))


def quick(nonce: str) -> dict[str, Any]:
    """A message that is answered at once, and whose tool ends as soon as it is called."""
    return {**task_message(nonce, "pay"), "configuration": {"returnImmediately": True}}


async def test_a_queued_task_that_is_cancelled_did_not_run(tmp_path: Path, ledger: Ledger, no_leftovers: None) -> None:
    async with killed(configured(tmp_path, ledger)) as hub, Load(hub, 1) as load, asyncio.timeout(SECONDS):
        await hold_every_slot(load)
        task = (await load.send(quick("1-50")))["id"]
        assert (await states(load))[task] == "SUBMITTED"
        cancelled = await load.ask("CancelTask", {"id": task})
        assert cancelled["status"]["state"] == "TASK_STATE_CANCELED"
        assert cancelled["status"]["message"]["metadata"]["executed"] == "no"
        assert "1-50" not in ledger.ran()


async def test_a_hub_that_is_stopped_leaves_queued_tasks_to_the_next_one(
    tmp_path: Path, ledger: Ledger, no_leftovers: None
) -> None:
    config = write_config(
        tmp_path,
        {"quick": stdio(quick_server.command(ledger.path), max_calls=SLOTS)},
        limits={"listing_seconds": 30.0, "drain_seconds": 0.2},
    )
    async with killed(config) as hub, Load(hub, 1) as load, asyncio.timeout(SECONDS):
        await hold_every_slot(load)
        task = (await load.send(quick("1-50")))["id"]
        hub.process.send_signal(signal.SIGTERM)
        await hub.process.wait()
    async with killed(config) as hub, Load(hub, 2) as load, asyncio.timeout(SECONDS):
        load.acknowledged = {task: "1-50"}
        await completed(load)
    assert ledger.ran()["1-50"] == 1


async def completed(load: Load) -> None:
    """Wait until all has completed."""
    while set((await states(load)).values()) != {"COMPLETED"}:  # noqa: ASYNC110 - it comes about in another process
        await asyncio.sleep(0.05)
