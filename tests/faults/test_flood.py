"""A server that floods the hub with invalid messages costs only its own call."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.faults.caller import Caller
from tests.hubs import PATIENT, HubProcess, Raw, serving, stdio

FLOOD = [sys.executable, str(Path(__file__).with_name("flood_server.py"))]
CALLS = 200


async def neighbours_are_served_while(hub: HubProcess, tool: str) -> str:
    """Call a flooding tool, serve others meanwhile, and return why the flooding call ended."""
    async with Raw(hub.url) as caller:
        flooding = asyncio.ensure_future(caller.call(tool))
        neighbour = Caller(hub.port)
        async with asyncio.timeout(60):
            for number in range(CALLS):
                answer = await neighbour.call("builtin.echo", {"text": str(number)})
                assert answer.text == str(number)
            ended = await flooding
    reason: str = ended["error"]["data"]["reason"]
    assert ended["error"]["data"]["executed"] == "unknown"
    return reason


async def test_a_flood_of_lines_ends_its_own_process(tmp_path: Path) -> None:
    async with serving(tmp_path, {"bad": stdio(FLOOD)}, limits=PATIENT) as hub:
        assert await neighbours_are_served_while(hub, "bad.flood") == "lost"


async def test_a_flood_of_events_ends_its_own_call(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(*FLOOD, "http", stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = int((await process.stdout.readline()).split()[1])
        async with serving(tmp_path, {"bad": {"url": f"http://127.0.0.1:{port}/mcp"}}, limits=PATIENT) as hub:
            assert await neighbours_are_served_while(hub, "bad.flood") == "bad_reply"
    finally:
        process.kill()
        await process.wait()
