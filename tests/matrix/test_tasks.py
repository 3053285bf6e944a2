"""Tasks between official peers: a server and a client of mcp 1.x, with a hub between them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.hubs import PATIENT, serving, stdio
from tests.peers.forking import quickly
from tests.peers.launch import mcp1_python
from tests.peers.npm_servers import everything_over_http, npm_command

SCRIPT = Path(__file__).with_name("tasks_sdk1.py")
SECONDS = 90.0


async def run(url: str, tool: str, mode: str = "call") -> dict[str, Any]:
    """What the official client finds."""
    words = quickly([mcp1_python(), str(SCRIPT), mode, url, tool])
    process = await asyncio.create_subprocess_exec(*words, stdout=-1, stderr=-1)
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


@pytest.mark.parametrize("kind", ["serve", "plain"])
@pytest.mark.parametrize("path", ["", "/tasks"])
async def test_an_official_client_runs_a_tool_of_an_official_server_as_a_task(
    tmp_path: Path, path: str, kind: str
) -> None:
    servers = {"tasks": stdio(quickly([mcp1_python(), str(SCRIPT), kind]))}
    async with serving(tmp_path, servers, limits=PATIENT) as hub:
        found = await run(hub.url + path, "work" if path else "tasks.work")
    id = found["id"]
    assert found["tasks"] == {"cancel": {}, "requests": {"tools": {"call": {}}}}
    assert found["text"] == "work: {'ok': True}"
    assert (found["related"], found["asked"], found["state"]) == (id, [id], [id, "completed"])
    assert found["cancelled"] == [True, "cancelled"]
    assert found["unknown"] == -32602
    assert (found["listed"], found["next"]) == (True, None)
    assert found["notified"] in ([], [True])  # who polls may do so before it is told, and leave


@pytest.mark.parametrize("carrier", ["stdio", "sse", "streamableHttp"])
async def test_an_official_client_gets_the_status_of_a_task_of_an_official_typescript_server(
    tmp_path: Path, carrier: Literal["stdio", "sse", "streamableHttp"]
) -> None:
    async with everything(carrier) as entry, serving(tmp_path, {"every": entry}, limits=PATIENT) as hub:
        found = await run(hub.url, "every.simulate-research-query", "hear")
    assert found["notified"][-1] == [True, "completed"]
    assert {status for _, status in found["notified"][:-1]} <= {"working"}
    assert all(is_own for is_own, _ in found["notified"])
    assert [is_own for is_own, _ in found["running"]] == [True]
    assert found["listed"] == [[True, "completed"]]
    assert found["is_error"] in (None, False)


@asynccontextmanager
async def everything(carrier: Literal["stdio", "sse", "streamableHttp"]) -> AsyncIterator[dict[str, Any]]:
    """An entry for npm's `server-everything`, reached so."""
    if carrier == "stdio":
        yield stdio(npm_command("everything", "stdio"))
        return
    async with everything_over_http(carrier) as peer:
        path = "/sse" if carrier == "sse" else "/mcp"
        yield {"url": peer.at(path)}
