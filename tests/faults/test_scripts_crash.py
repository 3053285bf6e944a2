"""The hub is killed in the middle of scripts: every script ends, and no call is repeated.

`ISTHMUS_SCRIPT_KILLS=200` sets the number of kills; `make scripts` does that.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
from pathlib import Path
from typing import Any

import httpx2

from tests.conftest import Ledger
from tests.faults import quick_server
from tests.faults.test_tasks_crash import killed
from tests.faults.watching import eventually
from tests.hubs import TRUSTED, HubProcess, serving, stdio, write_config

KILLS = int(os.environ.get("ISTHMUS_SCRIPT_KILLS", "6"))
SCRIPTS = 3
"""Started by each hub."""
STEPS = 12
SECONDS = 90.0
ENDED = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_REJECTED", "TASK_STATE_CANCELED")

SCRIPT = """
import asyncio

found: dict[str, str] = {{}}

async def pay(nonce: str) -> None:
    try:
        paid = await quick_pay(nonce=nonce)
        found[nonce] = 'paid' if paid == nonce else 'wrong'
    except RuntimeError as error:
        found[nonce] = str(error)

for step in range({steps}):
    if step % 3:
        await pay(f'{name}-{{step}}')
    else:
        {three}
found
"""
THREE = (
    "await asyncio.gather(*[pay(f'{name}-{{step}}.{{each}}') for each in range(3)])",
    "[await pay(f'{name}-{{step}}.{{each}}') for each in range(3)]",
)
"""How scripts make three calls, in turns: without the word `gather`, a script waits within each call."""
EACH = STEPS // 3 * 3 + (STEPS - STEPS // 3)
"""The calls of one script."""


def script(name: str, three: str) -> str:
    """The code of one script."""
    return SCRIPT.format(steps=STEPS, name=name, three=three.format(name=name))


class Scripter:
    """Sends scripts as A2A messages."""

    def __init__(self, hub: HubProcess) -> None:
        self._client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=SECONDS, verify=TRUSTED)

    async def __aenter__(self) -> Scripter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def ask(self, method: str, params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = (await self._client.post("/a2a", json=body)).json()
        assert "result" in answer, answer
        return answer["result"]

    async def send(self, name: str, code: str) -> str:
        message = {"messageId": name, "role": "ROLE_USER", "parts": [{"data": {"code": code}}]}
        response = await self.ask("SendMessage", {"message": message, "configuration": {"returnImmediately": True}})
        task: str = response["task"]["id"]
        return task

    async def ended(self, task: str) -> bool:
        return (await self.get(task))["status"]["state"] in ENDED

    async def has_few(self) -> bool:
        """Whether few scripts are unfinished: otherwise they would be more with every hub."""
        found = await self.ask("ListTasks", {"status": "TASK_STATE_WORKING"})
        return bool(found["totalSize"] <= 2 * SCRIPTS)

    async def get(self, task: str) -> Any:
        return await self.ask("GetTask", {"id": task})


def result_of(task: Any) -> Any:
    """What the script of a task returned."""
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", json.dumps(task)[:2000]
    [part] = [part for artifact in task["artifacts"] for part in artifact["parts"] if "data" in part]
    return part["data"]["result"]


async def test_scripts_of_a_killed_hub_continue_and_repeat_no_call(
    tmp_path: Path, ledger: Ledger, no_leftovers: None
) -> None:
    server = stdio(quick_server.command(ledger.path), max_calls=200)
    config = write_config(
        tmp_path, {"quick": server}, hub={"expose": "code"}, code={"workers": 8}, limits={"listing_seconds": 30.0}
    )
    points = random.Random(KILLS)
    tasks: dict[str, str] = {}
    for number in range(KILLS):
        async with killed(config) as hub, Scripter(hub) as scripter, asyncio.timeout(SECONDS):
            await eventually(scripter.has_few, "older scripts end", within=SECONDS)
            before = len(ledger.lines())
            for each in range(SCRIPTS):
                name = f"{number}-{each}"
                tasks[name] = await scripter.send(name, script(name, THREE[each % len(THREE)]))
            wanted = before + points.randint(0, SCRIPTS * EACH - 1)
            await eventually(lambda: len(ledger.lines()) >= wanted, "scripts call", within=SECONDS)  # noqa: B023
            hub.process.send_signal(signal.SIGKILL)
            await hub.process.wait()
    unknown = 0
    async with killed(config) as hub, Scripter(hub) as scripter, asyncio.timeout(SECONDS):
        for task in tasks.values():
            await eventually(lambda: scripter.ended(task), "every script ends", within=SECONDS)  # noqa: B023
        ran = ledger.ran()
        assert not {nonce: count for nonce, count in ran.items() if count > 1}
        for name, task in tasks.items():
            found = result_of(await scripter.get(task))
            assert len(found) == EACH, (name, found)
            for nonce, received in found.items():
                if received == "paid":
                    assert ran[nonce] == 1
                else:
                    unknown += 1
                    assert "executed: unknown" in received, received
    print(f"{KILLS} kills, {len(tasks)} scripts, {len(ran)} calls ran, 0 repeated, {unknown} with an unknown outcome")


async def test_a_hub_that_stops_leaves_its_scripts_to_the_next_one(tmp_path: Path, ledger: Ledger) -> None:
    server = {"quick": stdio(quick_server.command(ledger.path))}
    tables: dict[str, Any] = {"hub": {"expose": "code"}, "limits": {"listing_seconds": 30.0, "drain_seconds": 5.0}}
    code = "await quick_pay(nonce='a')\nimport asyncio\nawait asyncio.sleep(3)\nawait quick_pay(nonce='b')"
    async with serving(tmp_path, server, **tables) as hub, Scripter(hub) as scripter:
        task = await scripter.send("leaving", code)
        await eventually(lambda: ledger.ran().get("a") == 1, "the first call", within=SECONDS)
    assert ledger.ran() == {"a": 1}
    async with serving(tmp_path, server, **tables) as hub, Scripter(hub) as scripter:
        await eventually(lambda: scripter.ended(task), "the script ends", within=SECONDS)
        assert result_of(await scripter.get(task)) == "b"
    assert ledger.ran() == {"a": 1, "b": 1}


async def test_a_hub_that_stops_waits_for_the_calls_of_its_scripts(tmp_path: Path, ledger: Ledger) -> None:
    server = {"quick": stdio(quick_server.command(ledger.path))}
    tables: dict[str, Any] = {"hub": {"expose": "code"}, "limits": {"listing_seconds": 30.0}}
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with serving(tmp_path, server, **tables) as hub:
        async with Scripter(hub) as scripter:
            task = await scripter.send("calling", f"await quick_pay(nonce='a', until={str(pipe)!r})")
            await eventually(lambda: ledger.ran().get("a") == 1, "the call runs", within=SECONDS)
        hub.terminate()
        await eventually(lambda: refuses_connections(hub.port), "nobody else is waited for", within=SECONDS)
        with pipe.open("r+b", buffering=0):
            await hub.process.wait()  # leaving the block sends a second signal, which ends the wait
    async with serving(tmp_path, server, **tables) as hub, Scripter(hub) as scripter:
        await eventually(lambda: scripter.ended(task), "the script ends", within=SECONDS)
        assert result_of(await scripter.get(task)) == "a"
    assert ledger.ran() == {"a": 1}


def refuses_connections(port: int) -> bool:
    """Whether nothing listens on this port."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0
