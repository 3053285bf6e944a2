"""Tasks between official peers: a server and a client of mcp 1.x, with a hub between them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.hubs import PATIENT, serving, stdio
from tests.peers.launch import mcp1_python

SCRIPT = Path(__file__).with_name("tasks_sdk1.py")
SECONDS = 90.0


async def visit(url: str, tool: str) -> dict[str, Any]:
    """What the official client finds."""
    process = await asyncio.create_subprocess_exec(mcp1_python(), str(SCRIPT), url, tool, stdout=-1, stderr=-1)
    try:
        async with asyncio.timeout(SECONDS):
            said, complained = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, complained.decode(errors="replace")[-4000:]
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.mark.parametrize("path", ["", "/tasks"])
async def test_an_official_client_runs_a_tool_of_an_official_server_as_a_task(tmp_path: Path, path: str) -> None:
    servers = {"tasks": stdio([mcp1_python(), str(SCRIPT), "serve"])}
    async with serving(tmp_path, servers, limits=PATIENT) as hub:
        found = await visit(hub.url + path, "work" if path else "tasks.work")
    id = found["id"]
    assert found["tasks"] == {"cancel": {}, "requests": {"tools": {"call": {}}}}
    assert found["text"] == "work: {'ok': True}"
    assert (found["related"], found["asked"], found["state"]) == (id, [id], [id, "completed"])
    assert found["cancelled"] == [True, "cancelled"]
    assert found["unknown"] == -32602
