"""A tool that wants an argument repeated in a header is called by callers who never heard of it."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

from tests.faults.caller import Caller
from tests.faults.watching import eventually
from tests.hubs import serving

SERVER = Path(__file__).with_name("routed_server.py")


async def test_an_argument_is_repeated_in_the_header_that_its_server_demands(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(sys.executable, str(SERVER), str(port), stderr=-3)
    try:
        async with serving(tmp_path, {"routed": {"url": f"http://127.0.0.1:{port}/mcp"}}) as hub:
            for era in ("modern", "legacy"):
                async with Caller(hub.port, era=era) as caller:

                    async def is_answered(caller: Caller = caller) -> bool:
                        answer = await caller.call("routed.where", {"region": "größe"})
                        return answer.message.error is None and answer.text == "größe"

                    await eventually(is_answered, "the call is answered", within=30.0)
    finally:
        process.kill()
        await process.wait()
