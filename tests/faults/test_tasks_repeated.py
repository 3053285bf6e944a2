"""A message is sent again because its answer was lost, or its hub was killed: it has run once, and has one answer."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ledger
from tests.databases import running
from tests.faults import quick_server
from tests.faults.test_tasks_crash import SECONDS, Load, killed, task_message
from tests.hubs import HubProcess, stdio, write_config


def configured(folder: Path, ledger: Ledger, **tables: Any) -> Path:
    server = stdio(quick_server.command(ledger.path), max_calls=200)
    return write_config(folder, {"quick": server}, limits={"listing_seconds": 30.0}, **tables)


@asynccontextmanager
async def stopped(config: Path) -> AsyncIterator[HubProcess]:
    """Run a hub that ends in good order."""
    async with killed(config) as hub:
        yield hub
        hub.process.send_signal(signal.SIGTERM)
        await hub.process.wait()


@pytest.mark.parametrize("storage", ["a file", "a database"])
async def test_a_message_has_the_same_answer_after_a_kill_and_after_an_orderly_restart(
    tmp_path: Path, ledger: Ledger, no_leftovers: None, storage: str
) -> None:
    if storage == "a file":
        await check_each_hub_answers_the_same(configured(tmp_path, ledger), ledger)
        return
    with running() as database:
        url = database.url(user="hub:${PG_PASSWORD:-none}")
        await check_each_hub_answers_the_same(configured(tmp_path, ledger, storage={"url": url}), ledger)


async def check_each_hub_answers_the_same(config: Path, ledger: Ledger) -> None:
    params, tasks = task_message("1-6", "pay"), []
    for hubs in (killed, stopped, stopped, killed):
        async with hubs(config) as hub, Load(hub, 1) as load, asyncio.timeout(SECONDS):
            tasks.append(await load.send(params))
    assert tasks[0]["status"]["state"] == "TASK_STATE_COMPLETED", json.dumps(tasks)
    assert tasks[1:] == tasks[:1] * 3
    assert ledger.ran() == {"1-6": 1}


async def test_an_answer_that_was_written_and_lost_on_its_way_is_given_again(
    tmp_path: Path, ledger: Ledger, no_leftovers: None
) -> None:
    """The client reads nothing: the kernel holds the hub's bytes, and nobody gets them."""
    async with killed(configured(tmp_path, ledger)) as hub, Load(hub, 1) as load, asyncio.timeout(SECONDS):
        for number in range(6, 66, 6):
            params = task_message(f"1-{number}", "pay")
            await send_and_leave(hub, params)
            assert (await load.send(params))["status"]["state"] == "TASK_STATE_COMPLETED"
        assert set(ledger.ran().values()) == {1}


async def send_and_leave(hub: HubProcess, params: dict[str, Any]) -> None:
    """Send a message, and leave without reading once its answer has been written."""
    reader, writer = await asyncio.open_connection("127.0.0.1", hub.port)
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}).encode()
    fields = ("Host: localhost", "Content-Type: application/json", f"Content-Length: {len(body)}")
    writer.write("\r\n".join(("POST /a2a HTTP/1.1", *fields, "\r\n")).encode() + body)
    await reader.readexactly(1)  # the first of what was written; the rest is with it
    writer.transport.abort()


async def test_the_same_id_with_other_content_is_another_message(
    tmp_path: Path, ledger: Ledger, no_leftovers: None
) -> None:
    async with killed(configured(tmp_path, ledger)) as hub, Load(hub, 1) as load, asyncio.timeout(SECONDS):
        first, other = task_message("1-6", "pay"), task_message("1-12", "pay")
        other["message"]["messageId"] = "1-6"
        tasks = [await load.send(params) for params in (first, other, first, other)]
        assert tasks[2:] == tasks[:2]
        assert ledger.ran() == {"1-6": 1, "1-12": 1}
