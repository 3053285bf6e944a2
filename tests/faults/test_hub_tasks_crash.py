"""The hub is killed while it stores tasks of MCP callers: acknowledged tasks are found, and nothing ran twice."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path
from typing import Any

import httpx2

from tests.conftest import Ledger
from tests.faults import quick_server
from tests.faults.test_tasks_crash import killed
from tests.faults.watching import eventually
from tests.hubs import META, HubProcess, stdio, write_config

KILLS = 3
CALLERS = 8
SECONDS = 60.0
TASKS = "io.modelcontextprotocol/tasks"
KNOWS = {**META, "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}}}


class Caller:
    """One that has tools run as tasks: it asks for them, or its calls become them."""

    def __init__(self, hub: HubProcess, number: int) -> None:
        self._client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=SECONDS)
        self._prefix = number
        self._number = 0
        self.acknowledged: dict[str, str] = {}
        """The nonce of each acknowledged task."""

    async def __aenter__(self) -> Caller:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        """Ask in the earlier era."""
        headers = {"accept": "application/json, text/event-stream"}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return (await self._client.post("/mcp", json=body, headers=headers)).json()

    async def call(self, name: str, nonce: str) -> Any:
        """Call in the modern era, as one that knows tasks."""
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": name,
        }
        params = {"name": name, "arguments": {"nonce": nonce}, "_meta": KNOWS}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return (await self._client.post("/mcp", json=body, headers=headers)).json()["result"]

    async def run(self) -> None:
        """Go on until the hub is gone."""
        try:
            while True:
                self._number += 1
                await self._begin(f"{self._prefix}-{self._number}")
        except httpx2.HTTPError:
            return

    async def _begin(self, nonce: str) -> None:
        kind = self._number % 5
        if kind == 0:
            made = await self.call("quick.hold", nonce)
        else:
            tool = "quick.hold" if kind == 1 else "quick.pay"
            params = {"name": tool, "arguments": {"nonce": nonce}, "task": {"ttl": 600_000}}
            made = (await self.ask("tools/call", params))["result"]["task"]
        self.acknowledged[made["taskId"]] = nonce


async def test_a_hub_that_is_killed_finds_the_tasks_that_it_kept(
    tmp_path: Path, ledger: Ledger, no_leftovers: None
) -> None:
    server = stdio(quick_server.command(ledger.path), max_calls=500)
    config = write_config(tmp_path, {"quick": server}, limits={"listing_seconds": 30.0}, tasks={"after": 0.05})
    points = random.Random(7)
    acknowledged: dict[str, str] = {}
    for number in range(KILLS + 1):
        async with killed(config) as hub, Caller(hub, number) as caller, asyncio.timeout(SECONDS):
            await check(caller, acknowledged, ledger)
            if number < KILLS:
                load = [asyncio.ensure_future(caller.run()) for _ in range(CALLERS)]
                enough = points.randint(20, 150)
                await eventually(lambda: len(caller.acknowledged) >= enough, "enough is acknowledged")  # noqa: B023
                hub.process.send_signal(signal.SIGKILL)
                await asyncio.gather(*load)
            acknowledged |= caller.acknowledged
    assert len(acknowledged) > KILLS * CALLERS
    assert not {nonce: count for nonce, count in ledger.ran().items() if count > 1}


async def check(caller: Caller, acknowledged: dict[str, str], ledger: Ledger) -> None:
    """All that was acknowledged is there and has ended, as honestly as it can be told."""
    ran = ledger.ran()
    for id, nonce in acknowledged.items():
        state = (await caller.ask("tasks/get", {"taskId": id}))["result"]
        assert state["status"] in ("completed", "failed"), state
        response = await caller.ask("tasks/result", {"taskId": id})
        if state["status"] == "completed":
            assert response["result"]["content"] == [{"type": "text", "text": nonce}]
            assert ran[nonce] == 1
        else:
            assert response["error"]["code"] == -32012
            assert response["error"]["data"]["executed"] == "unknown"
