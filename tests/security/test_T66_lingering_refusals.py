"""T66: one address fills the hub with connections that it is refused.

A refused client may go on sending for a moment, so that it can read the answer. Connections that linger so do not count
towards `limits.connections`, and there are only so many of them: further ones are cut at once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from isthmus.frontends.http.connection import TURNED_AWAY_MAX
from tests.hubs import HubProcess, serving

pytestmark = pytest.mark.asyncio

PROBE = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


async def opened(hub: HubProcess, count: int, source: str) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    return [await asyncio.open_connection("127.0.0.1", hub.port, local_addr=(source, 0)) for _ in range(count)]


async def status_for(hub: HubProcess, source: str) -> int:
    ((reader, writer),) = await opened(hub, 1, source)
    try:
        writer.write(PROBE)
        line = await asyncio.wait_for(reader.readline(), 20)
        return int(line.split()[1])
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def test_refused_connections_take_no_room(tmp_path: Path) -> None:
    async with serving(tmp_path, limits={"connections": 20, "connections_per_address": 10}) as hub:
        attacking = await opened(hub, 60, "127.0.0.1")
        try:
            for reader, _ in attacking[10:]:
                assert b" 503 " in await asyncio.wait_for(reader.readline(), 20)
            assert await status_for(hub, "127.0.0.2") == 200
            assert await status_for(hub, "127.0.0.1") == 503
        finally:
            for _, writer in attacking:
                writer.close()


async def test_only_so_many_linger(tmp_path: Path) -> None:
    async with serving(tmp_path, limits={"connections": 20, "connections_per_address": 2}) as hub:
        attacking = await opened(hub, TURNED_AWAY_MAX + 60, "127.0.0.1")
        try:
            lines = []
            for reader, _ in attacking[2:]:
                try:
                    lines.append(await asyncio.wait_for(reader.readline(), 20))
                except ConnectionError:
                    lines.append(b"")
            assert any(b" 503 " in line for line in lines)
            assert await status_for(hub, "127.0.0.2") == 200
        finally:
            for _, writer in attacking:
                writer.close()
