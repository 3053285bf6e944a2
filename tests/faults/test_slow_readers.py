"""Callers that ask for much and read nothing are cut; others are served meanwhile, and the memory returns (R07)."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from tests.conftest import Spawn
from tests.faults.caller import Caller
from tests.faults.watching import eventually, note, open_descriptors, resident_bytes, times
from tests.hubs import serving
from tests.relay.peers import Manner, agent_call_url, raw_server
from tests.relay.tokens import KEY

READERS = times(6, 100)
RESULT_BYTES = 8_000_000
"""More than the kernel holds for a connection, and less than a result may have."""
CUT_SECONDS = 10.0 + 20.0
"""What the hub waits for a reader, and a busy machine's excuse."""
KEPT_BYTES = 64 << 20
"""What the allocator may keep of it."""
RETURN_SECONDS = 90.0
"""Within this time the hub returns the memory of what it no longer holds."""
ROOM = {"connections": 2_000, "connections_per_address": 2_000, "caller_bytes": 1 << 30, "tenant_bytes": 1 << 30}

pytestmark = [
    pytest.mark.timeout(300 if READERS < 100 else 1800),
    pytest.mark.soak,  # each waits half a minute
]


def deaf_socket(port: int) -> socket.socket:
    """A connection whose kernel takes little that is not read."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect(("127.0.0.1", port))
    return made


async def test_readers_of_large_results_that_stop_are_cut(tmp_path: Path, spawn: Spawn) -> None:
    peer = await spawn("raw_server", "--era", "modern")
    async with (
        serving(tmp_path, {"large": {"url": peer.url, "max_calls": 256}}, limits=ROOM) as hub,
        Caller(hub.port) as other,
    ):
        await eventually(lambda: echoes(other, "large"), "the server is there")
        before, files = resident_bytes(hub.pid), open_descriptors(hub.pid)
        request = other.call_bytes("large.echo", {"text": "x", "mode": f"huge:{RESULT_BYTES}"})
        clock = asyncio.get_running_loop().time
        with ExitStack() as stack:
            for _ in range(READERS):
                stack.enter_context(deaf_socket(hub.port)).sendall(request)
            await eventually(lambda: open_descriptors(hub.pid) >= files + READERS, "all are connected")
            began, peak, slowest, served = clock(), before, 0.0, 0
            while open_descriptors(hub.pid) > files + 4:
                started = clock()
                assert await echoes(other, "large")
                slowest, served = max(slowest, clock() - started), served + 1
                peak = max(peak, resident_bytes(hub.pid))
                assert clock() - began < CUT_SECONDS + READERS * 0.5, "they are not cut"
                await asyncio.sleep(0.01)
            cut = clock() - began
        returned = await memory_returned(hub.pid, before)
    note(readers=READERS, kind="HTTP", cut_after_seconds=round(cut, 1), peak_mib=(peak - before) >> 20,
         returned_after_seconds=round(returned, 1), calls_of_another=served,
         slowest_seconds=round(slowest, 3))  # fmt: skip


async def memory_returned(pid: int, before: int) -> float:
    """How many seconds it took."""
    return await eventually(lambda: resident_bytes(pid) - before < KEPT_BYTES, "the memory returns", RETURN_SECONDS)


async def echoes(caller: Caller, server: str) -> bool:
    return (await caller.call(f"{server}.echo", {"text": "mine"})).reported == "ok"


async def test_devices_that_do_not_read_are_cut_with_the_reason(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, relay={"key": KEY, "max_agent_connections": 2 * READERS}, limits=ROOM) as hub,
        raw_server(hub.port, "lamp", "s", manner=Manner(tools=("huge",))),
        Caller(hub.port) as other,
    ):
        await eventually(lambda: echoes(other, "builtin"), "the hub is there")
        before, files = resident_bytes(hub.pid), open_descriptors(hub.pid)
        call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "huge", "arguments": {"text": "400000"}}}
        peak, slowest = before, 0.0
        clock = asyncio.get_running_loop().time
        deaf = []
        for number in range(READERS):
            # Its library reads one frame and then waits for its reader.
            device = await connect(
                agent_call_url(hub.port, "lamp"), proxy=None, max_queue=1, ping_interval=None,
                sock=deaf_socket(hub.port), compression=None, close_timeout=0.1,
            )  # fmt: skip
            deaf.append(device)
            for id in range(16):
                await device.send(json.dumps({**call, "id": 100 * number + id}))
        began = clock()
        while open_descriptors(hub.pid) > files + 4:
            started = clock()
            assert await echoes(other, "builtin")
            slowest, peak = max(slowest, clock() - started), max(peak, resident_bytes(hub.pid))
            assert clock() - began < CUT_SECONDS + READERS, "they are not cut"
            await asyncio.sleep(0.05)
        cut = clock() - began
        said = sum("it does not read its messages" in line for line in hub.said)
        for device in deaf:
            device.transport.abort()
        returned = await memory_returned(hub.pid, before)
    note(readers=READERS, kind="WebSocket", cut_after_seconds=round(cut, 1), peak_mib=(peak - before) >> 20,
         returned_after_seconds=round(returned, 1), reasons_logged=said,
         slowest_seconds=round(slowest, 3))  # fmt: skip
    assert said == READERS
