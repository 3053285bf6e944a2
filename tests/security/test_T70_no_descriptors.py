"""T70: the hub runs out of file descriptors, and nothing reports why connections are reset.

The listener looks for a free descriptor every second. Where there is none it says so once a minute, with the limit and
what to do, and accepts again as soon as some are free.
"""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path

import httpx2
import pytest

from tests.frontends.wire import until
from tests.hubs import TRUSTED, serving

pytestmark = pytest.mark.asyncio


async def test_it_says_so_and_accepts_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        before = resource.prlimit(hub.pid, resource.RLIMIT_NOFILE)
        limit = len(os.listdir(f"/proc/{hub.pid}/fd")) + 8
        resource.prlimit(hub.pid, resource.RLIMIT_NOFILE, (limit, before[1]))
        held = [await asyncio.open_connection("127.0.0.1", hub.port) for _ in range(30)]

        async def is_said() -> bool:
            return any("out of file descriptors" in line for line in hub.said)

        async def is_served() -> bool:
            async with httpx2.AsyncClient(verify=TRUSTED) as http:
                try:
                    return (await http.get(f"http://127.0.0.1:{hub.port}/healthz")).status_code == 200
                except httpx2.TransportError:
                    return False

        await until(is_said)
        for _, writer in held:
            writer.close()
        await until(is_served)
        (line,) = [line for line in hub.said if "out of file descriptors" in line]
        assert f'"limit": {limit}' in line
        assert "LimitNOFILE" in line
