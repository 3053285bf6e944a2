"""A thousand sessions, opened and dropped: descriptors and memory return to their former level."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from tests.faults import light_server
from tests.faults.caller import Caller
from tests.faults.watching import eventually, family, open_descriptors, resident_bytes, watches_files
from tests.hubs import HubProcess, serving, stdio

pytestmark = pytest.mark.usefixtures("no_leftovers")

SESSIONS = 1000
AT_ONCE = 100
SETTLE_SECONDS = 30.0
KEPT_BYTES = 6 * 1024 * 1024
"""What the allocator may keep of a second thousand; each session is some kilobytes while it lasts."""
GROWN_BYTES = 20 * 1024 * 1024
"""What a hub may have more at the end than before its first caller. It is about 10 MiB: modules that were loaded, room
for a hundred connections at once, and the thousand sessions that one caller may leave behind."""


class Session(Protocol):
    """Opens one session and drops it."""

    async def __call__(self, hub: HubProcess) -> None: ...


@asynccontextmanager
async def asking(port: int, request: str, session: str | None = None) -> AsyncIterator[asyncio.StreamReader]:
    """Send a request without a body and return once it is answered; then cut the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        named = "" if session is None else f"mcp-session-id: {session}\r\n"
        head = f"{request} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: text/event-stream\r\n{named}\r\n"
        writer.write(head.encode())
        assert b" 20" in (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0]
        yield reader
    finally:
        writer.transport.abort()


async def ended_by_the_caller(hub: HubProcess) -> None:
    """Streamable HTTP: a session with its stream and a call, ended by DELETE."""
    async with Caller(hub.port, era="legacy") as caller:
        await caller.initialize()
        async with asking(hub.port, "GET /mcp", caller.session):
            assert (await caller.call("a.pay")).text == "a"
            async with asking(hub.port, "DELETE /mcp", caller.session):
                pass


async def never_ended(hub: HubProcess) -> None:
    """Streamable HTTP: a session that is never heard of again, as most are."""
    async with Caller(hub.port, era="legacy") as caller:
        await caller.initialize()
        assert (await caller.call("a.pay")).text == "a"


async def cut(hub: HubProcess) -> None:
    """HTTP+SSE: a session whose stream breaks in the middle of a call."""
    async with asking(hub.port, "GET /sse") as stream:
        path = (await stream.readuntil(b"\n\n")).partition(b"data: ")[2].split()[0].decode()
        async with Caller(hub.port, path=path, era="legacy") as caller:
            await caller.send(caller.call_bytes("a.pay"))


@asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[HubProcess]:
    async with serving(folder, {"a": stdio(light_server.command("a"))}) as hub:
        await eventually(lambda: watches_files(hub.pid), "the hub is all there", within=SETTLE_SECONDS)
        await eventually(lambda: any("server ready" in line for line in hub.said), "and its server", SETTLE_SECONDS)
        yield hub


async def run(hub: HubProcess, session: Session) -> None:
    for _ in range(SESSIONS // AT_ONCE):
        await asyncio.gather(*(session(hub) for _ in range(AT_ONCE)))


@pytest.mark.parametrize("session", [ended_by_the_caller, never_ended, cut])
async def test_a_thousand_sessions_leave_nothing(tmp_path: Path, session: Session) -> None:
    async with watched(tmp_path) as hub:
        files, processes = open_descriptors(hub.pid), family(hub.pid)
        sizes = [resident_bytes(hub.pid)]
        for _ in range(2):
            await run(hub, session)
            await eventually(lambda: open_descriptors(hub.pid) == files, "as many descriptors as before", within=20.0)
            sizes.append(resident_bytes(hub.pid))
        print(f"resident: {[round(size / 2**20, 1) for size in sizes]} MiB")
        start, warm, end = sizes
        assert end - warm < KEPT_BYTES
        assert end - start < GROWN_BYTES
        assert family(hub.pid) == processes
