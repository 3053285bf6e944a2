"""Two hundred servers, started and stopped: they all work, and nothing of them is left."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.faults import light_server
from tests.faults.caller import Caller
from tests.faults.watching import eventually, family, is_alive, open_descriptors, resident_bytes, watches_files
from tests.hubs import HubProcess, serving, stdio, write_config

pytestmark = pytest.mark.usefixtures("no_leftovers")

SERVERS = 200
SETTLE_SECONDS = 60.0
"""Who waits for so long has found one that does not come or go."""
KEPT_BYTES = 8 * 1024 * 1024
"""What the allocator may keep of a second round; one round of servers takes about twice as much while it lasts."""
GROWN_BYTES = 24 * 1024 * 1024
"""What a hub may have more at the end than before its first server. It is about 11 MiB (modules that were loaded, room
that the allocator keeps for the next round), and 32 MiB if two rounds of servers were never let go."""


def rewrite_config(hub: HubProcess, folder: Path, names: list[str]) -> None:
    write_config(folder, {name: stdio(light_server.command(name)) for name in names})
    hub.process.send_signal(signal.SIGHUP)


async def until_listed(caller: Caller, names: list[str]) -> None:
    async def are_listed() -> bool:
        listed = {tool["name"].partition(".")[0] for tool in (await caller.list_tools())["tools"]}
        return listed - {"builtin"} == {*names}

    await eventually(are_listed, f"{len(names)} servers are listed", within=SETTLE_SECONDS)


async def test_two_hundred_servers_come_and_go_and_leave_nothing(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(SERVERS)]
    async with serving(tmp_path) as hub, Caller(hub.port) as caller:
        await until_listed(caller, [])
        await eventually(lambda: watches_files(hub.pid), "the hub is all there", within=20.0)
        files, memory = open_descriptors(hub.pid), [resident_bytes(hub.pid)]
        for _ in range(2):
            rewrite_config(hub, tmp_path, names)
            await until_listed(caller, names)
            assert len(family(hub.pid)) == SERVERS
            answers = [await caller.call(f"{name}.pay") for name in names]
            assert [answer.text for answer in answers] == names
            rewrite_config(hub, tmp_path, [])
            await until_listed(caller, [])
            await eventually(lambda: not family(hub.pid), "no process is left", within=SETTLE_SECONDS)
            await eventually(lambda: open_descriptors(hub.pid) == files, "as many descriptors as before", within=20.0)
            memory.append(resident_bytes(hub.pid))
        print(f"resident: {[round(size / 2**20, 1) for size in memory]} MiB")
        start, warm, end = memory
        assert end - warm < KEPT_BYTES
        assert end - start < GROWN_BYTES


async def test_two_hundred_servers_are_stopped_with_the_hub(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(SERVERS)]
    async with serving(tmp_path, {name: stdio(light_server.command(name)) for name in names}) as hub:
        async with Caller(hub.port) as caller:
            await until_listed(caller, names)
        processes = family(hub.pid)
        assert len(processes) == SERVERS
        hub.terminate()
        async with asyncio.timeout(SETTLE_SECONDS):
            await hub.process.wait()
        assert [pid for pid in processes if is_alive(pid)] == []
