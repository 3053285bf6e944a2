"""A message is said again to the next hub: after a crash it is the same one, and after a good end a new one."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

from tests.conftest import Ledger
from tests.faults import quick_server
from tests.faults.test_tasks_crash import SECONDS, Load, killed, said
from tests.hubs import stdio, write_config


def configured(folder: Path, ledger: Ledger) -> Path:
    server = stdio(quick_server.command(ledger.path), max_calls=200)
    return write_config(folder, {"quick": server}, limits={"listing_seconds": 30.0})


async def test_what_was_answered_just_before_a_hub_was_killed_does_not_run_again(
    tmp_path: Path, ledger: Ledger, no_leftovers: None
) -> None:
    """Nothing else was under way; and whether the answer has arrived, the next hub cannot know."""
    config, params = configured(tmp_path, ledger), said("1-6", "pay")
    tasks = []
    for _ in range(2):
        async with killed(config) as hub, Load(hub, 1) as load, asyncio.timeout(SECONDS):
            tasks.append(await load.send(params))
    assert tasks[0]["status"]["state"] == "TASK_STATE_COMPLETED", json.dumps(tasks)
    assert tasks[1]["id"] == tasks[0]["id"]
    assert ledger.ran() == {"1-6": 1}


async def test_what_was_answered_by_a_hub_that_ended_well_is_new_to_the_next(
    tmp_path: Path, ledger: Ledger, no_leftovers: None
) -> None:
    config, params = configured(tmp_path, ledger), said("1-6", "pay")
    tasks = []
    for _ in range(2):
        async with killed(config) as hub, asyncio.timeout(SECONDS):
            async with Load(hub, 1) as load:
                tasks.append(await load.send(params))
            hub.process.send_signal(signal.SIGTERM)
            await hub.process.wait()
    assert tasks[1]["id"] != tasks[0]["id"]
    assert ledger.ran() == {"1-6": 2}
