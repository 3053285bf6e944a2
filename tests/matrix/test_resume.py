"""Streams that end too soon, between official SDKs: their clients come back to the hub, and it to their servers."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.progress_server import STEPS, ProgressServer
from tests.faults.scripted import hub_of, listening
from tests.hubs import PATIENT, serving
from tests.peers.client_sdk2 import client_over_http
from tests.peers.forking import quickly
from tests.peers.launch import CHECKOUT, listening_peer, mcp1_python
from tests.peers.sdk1_steps import run_sdk1

RESUMING = Path(__file__).with_name("resuming.py")
POLLING = [sys.executable, str(CHECKOUT / "tests" / "conformance"), "--transport", "http", "--era", "legacy"]
"""An official server that keeps its events and closes the stream of `test_reconnection` in the middle of the call."""


@pytest.mark.parametrize("events", [1, 2, STEPS + 1])
@pytest.mark.parametrize("generation", [1, 2])
async def test_an_official_client_comes_back_to_its_call_with_its_token(
    tmp_path: Path, generation: int, events: int
) -> None:
    python = mcp1_python() if generation == 1 else sys.executable
    async with ProgressServer() as server, hub_of(tmp_path, {"s": server.entry}) as hub, listening(hub) as port:
        await hub.ready("s")
        words = [python, str(RESUMING), f"http://127.0.0.1:{port}/mcp", "s.t", "{}", str(events)]
        run = await asyncio.create_subprocess_exec(*quickly(words), stdout=asyncio.subprocess.PIPE)
        assert run.stdout is not None
        try:
            async with asyncio.timeout(60):
                if events > 1:
                    server.may_work.set()
                assert await run.stdout.readline() == b"left\n"
                server.may_work.set()
                server.may_end.set()
                output: dict[str, Any] = json.loads(await run.stdout.read())
                assert await run.wait() == 0
        finally:
            if run.returncode is None:
                run.kill()
                await run.wait()
        assert output["text"] == "done"
        assert len(output["tokens"]) == len(set(output["tokens"]))
        assert server.count("tools/call") == 1
        assert server.count("notifications/cancelled") == 0


@pytest.mark.parametrize("generation", [1, 2])
async def test_a_server_that_lets_its_stream_go_is_come_back_to_and_so_is_the_hub(
    tmp_path: Path, generation: int
) -> None:
    async with listening_peer(quickly(POLLING)) as peer:
        servers = {"s": {"url": peer.url, "era": "legacy"}}
        async with serving(tmp_path, servers, limits=PATIENT) as hub:
            if generation == 1:
                (answer,) = await run_sdk1([{"do": "call", "tool": "test_reconnection"}], url=hub.url_of("s"))
                assert "reconnected" in json.dumps(answer)
            else:
                async with client_over_http(hub.url_of("s"), mode="legacy") as client:
                    result = await client.call_tool("test_reconnection", {})
                assert "reconnected" in result.model_dump_json()


async def test_a_modern_caller_does_not_notice_that_the_servers_stream_was_away(tmp_path: Path) -> None:
    async with listening_peer(quickly(POLLING)) as peer:
        servers = {"s": {"url": peer.url, "era": "legacy"}}
        async with serving(tmp_path, servers, limits=PATIENT) as hub:
            async with client_over_http(hub.url_of("s"), mode="auto") as client:
                assert client.protocol_version == "2026-07-28"
                result = await client.call_tool("test_reconnection", {})
            assert "reconnected" in result.model_dump_json()
