"""How long a call may take at a running hub: silence ends it, progress keeps it, the caller's own timeout is final."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from mcp import ClientSession, MCPError
from mcp.client.streamable_http import streamable_http_client

from tests.hubs import PATIENT, TRUSTED, HubProcess, serving, stdio
from tests.peers.launch import quick_command

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("deadlines")]

SILENT_SECONDS = 1.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("deadlines")
    servers = {"peer": stdio(quick_command("server_sdk2"), timeout=SILENT_SECONDS)}
    async with serving(folder, servers, limits=PATIENT) as running:
        yield running


async def slow(hub: HubProcess, steps: int) -> tuple[Any, list[float]]:
    """Call a tool for thrice the time of silence that its server is allowed, with the official client."""
    seen: list[float] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with (
        httpx2.AsyncClient(verify=TRUSTED, timeout=30.0) as http,
        streamable_http_client(hub.url, http_client=http) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        arguments = {"seconds": 3 * SILENT_SECONDS, "steps": steps}
        try:
            return await session.call_tool("peer.slow", arguments, progress_callback=hear), seen
        except MCPError as error:
            return error, seen


async def test_a_tool_that_reports_progress_is_not_cut(hub: HubProcess) -> None:
    result, seen = await slow(hub, 30)
    assert (result.is_error, result.content[0].text) == (False, "30 steps")
    assert seen == list(range(1, 31))


async def test_a_silent_tool_is_cut(hub: HubProcess) -> None:
    error, seen = await slow(hub, 1)
    assert (str(error), seen) == ("Server peer did not answer within 1 s", [])


async def test_the_timeout_of_a_single_call_is_final(hub: HubProcess) -> None:
    path = f"http://127.0.0.1:{hub.port}/v1/tools/peer.slow"
    async with httpx2.AsyncClient(verify=TRUSTED, timeout=30.0) as http:
        body = {"seconds": 30, "steps": 300}
        headers = {"accept": "text/event-stream"}
        answer = await http.post(path, params={"timeout": "1.5"}, json=body, headers=headers)
    assert "did not answer within 1.5 s" in answer.text
    assert "progress" in answer.text
