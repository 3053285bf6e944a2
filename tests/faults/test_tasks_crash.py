"""The hub is killed under load: acknowledged tasks are found and have ended, and nothing ran twice."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import Ledger
from tests.faults import quick_server
from tests.faults.oracle import Record, judge
from tests.faults.watching import eventually, note, times
from tests.fork_server import forked
from tests.hubs import TRUSTED, HubProcess, _keep_reading, _listening_port, environment, stdio, write_config

ROUNDS = times(1, 30)
"""Each with a journal of its own, so that they run side by side."""
KILLS = 10
"""A round."""
CALLERS = 16
TASKS_MAX = 100
"""Acknowledged before a kill: enough that some are written, some on their way and some ended, whenever it comes."""
SECONDS = 60.0
ENDED = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED")
ENDED_SECONDS = 5.0
"""From when a hub that was started again listens until all has ended that was on its way."""


@asynccontextmanager
async def killed(config: Path) -> AsyncIterator[HubProcess]:
    """Run a hub that ends by SIGKILL, in the block or at its end."""
    process = await forked(["serve", "--config", str(config), "--port", "0"], environment(), config.parent)
    said: list[str] = []
    spawned = time.monotonic()
    try:
        port = await asyncio.wait_for(_listening_port(process, said), SECONDS)
        print(f"a hub listened {time.monotonic() - spawned:.2f} s after it was started")
        reading = asyncio.ensure_future(_keep_reading(process, said))
        yield HubProcess(process, port, said)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    await reading


class Load:
    """Callers that send one message after another, and remember the acknowledged tasks."""

    def __init__(self, hub: HubProcess, number: int) -> None:
        self._client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=SECONDS, verify=TRUSTED)
        self._round = number
        self._number = 0
        self.acknowledged: dict[str, str] = {}
        """The nonce of each acknowledged task."""
        self.unanswered: list[dict[str, Any]] = []
        """What was sent and is not answered."""

    async def __aenter__(self) -> Load:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def can_run(self) -> bool:
        """Whether the server is ready. Tasks before that are not sent, and the next hub runs them."""
        found = (await self._client.get("/v1/servers/quick")).json()
        return bool(found["state"] == "ready")

    async def run(self) -> None:
        """Go on until the hub is gone."""
        with suppress(httpx2.HTTPError):
            while True:
                self._number += 1
                params = task_message(f"{self._round}-{self._number}", "hold" if self._number % 7 == 0 else "pay")
                self.unanswered.append(params)
                await self.send(params)
                self.unanswered.remove(params)

    async def send(self, params: dict[str, Any]) -> Any:
        """Send a message; its answer is the acknowledgement."""
        nonce = params["message"]["messageId"]
        # Half of them trust in their messages' ids alone.
        headers = {"idempotency-key": nonce} if int(nonce.partition("-")[2]) % 2 else {}
        response = await self.ask("SendMessage", params, headers)
        self.acknowledged[response["task"]["id"]] = nonce
        return response["task"]

    async def ask(self, method: str, params: Any, headers: dict[str, str] | None = None) -> Any:
        """The result of a request."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = (await self._client.post("/a2a", json=body, headers=headers)).json()
        assert "result" in answer, answer
        return answer["result"]


def task_message(nonce: str, tool: str) -> dict[str, Any]:
    """A message that has a tool run; every third waits for the end, and what never ends is not waited for."""
    data = {"target_mcp_server_id": "quick", "tool_name": tool, "arguments": {"nonce": nonce}}
    waits = tool == "pay" and int(nonce.partition("-")[2]) % 3 == 0
    message = {"messageId": nonce, "role": "ROLE_USER", "parts": [{"data": data}]}
    return {"message": message, "configuration": {"returnImmediately": not waits}}


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_a_hub_that_is_killed_under_load_loses_no_task_and_runs_none_twice(
    tmp_path: Path, ledger: Ledger, no_leftovers: None, seed: int
) -> None:
    server = stdio(quick_server.command(ledger.path), max_calls=200)
    config = write_config(tmp_path, {"quick": server}, limits={"listing_seconds": 30.0})
    await kill_under_load(config, ledger, seed=seed, kills=KILLS)


async def kill_under_load(
    config: Path, ledger: Ledger, *, seed: int, kills: int, at_half: Callable[[], None] = lambda: None
) -> None:
    """Kill a hub so often while it is sent tasks, and judge what became of them; `at_half` runs between two hubs."""
    points = random.Random(seed)
    acknowledged: dict[str, str] = {}
    latest: dict[str, str] = {}
    """What the hub before this one acknowledged."""
    unanswered: list[dict[str, Any]] = []
    history: list[Record] = []
    slowest = 0.0
    for number in range(kills + 1):
        if number == kills // 2:
            await asyncio.to_thread(at_half)
        async with killed(config) as hub, Load(hub, number) as load, asyncio.timeout(SECONDS + kills):
            listened = time.monotonic()
            await check_nothing_is_unfinished(load)
            slowest = max(slowest, time.monotonic() - listened)
            assert slowest < ENDED_SECONDS
            # The next hub knows what the killed one acknowledged, and the last one all that any did.
            history = await outcomes(load, latest if number < kills else acknowledged)
            # Unanswered callers repeat their message: they get the outcome of the first.
            for params in unanswered:
                await load.send(params)
            if number < kills:
                await eventually(load.can_run, "the server is ready", within=SECONDS)
                callers = [asyncio.ensure_future(load.run()) for _ in range(CALLERS)]
                enough = len(load.acknowledged) + points.randint(1, TASKS_MAX)
                await eventually(lambda: len(load.acknowledged) >= enough, "enough is acknowledged")  # noqa: B023
                await asyncio.sleep(points.random() * 0.01)
                hub.process.send_signal(signal.SIGKILL)
                await asyncio.gather(*callers)
            latest = load.acknowledged
            acknowledged |= latest
            unanswered = load.unanswered
            if number == kills:
                history += [Record(nonce, "unknown") for nonce in latest.values()]  # who asked again, and did not wait
    assert len(acknowledged) > kills * CALLERS
    assert judge(history, ledger.ran()) == []
    note(seed=seed, kills=kills, tasks=len(acknowledged), slowest_recovery_seconds=round(slowest, 2))


async def check_nothing_is_unfinished(load: Load) -> None:
    """Nothing is as if it went on; nothing asks here, so nothing may wait either."""
    for state in ("SUBMITTED", "WORKING", "INPUT_REQUIRED", "AUTH_REQUIRED"):
        found = await load.ask("ListTasks", {"status": f"TASK_STATE_{state}"})
        assert found["totalSize"] == 0, found


async def outcomes(load: Load, acknowledged: dict[str, str]) -> list[Record]:
    """What became of tasks that were acknowledged; each is there and has ended. A failure is never certain here."""
    history = []
    for task, nonce in acknowledged.items():
        found = await load.ask("GetTask", {"id": task})
        state = found["status"]["state"]
        assert state in ENDED, found
        output = found["artifacts"][0]["parts"][0]["data"]
        if state == "TASK_STATE_COMPLETED":
            history.append(Record(nonce, "ok", output["mcp_result"]["content"][0]["text"]))
        else:
            assert output["error"]["details"]["executed"] == "unknown", json.dumps(output)
            history.append(Record(nonce, "unknown"))
    return history
