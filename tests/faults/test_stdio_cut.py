"""The stdio wrapper passes bytes unchanged, and cuts exactly where configured."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tests.faults.stdio_cut import Direction, arm, command

ECHO = [sys.executable, "-c", "import os\nwhile d := os.read(0, 65536): os.write(1, d)"]
"""Sends back what it gets, until its stdin ends."""
RECONNECTOR = [
    sys.executable,
    "-c",
    "import os,sys\nf = open(sys.argv[1], 'wb', 0)\nwhile d := os.read(0, 65536): f.write(d)",
]
"""Keeps what it gets in a file, until its stdin ends."""


async def start(words: list[str]) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)


async def test_without_a_cut_everything_passes_and_the_exit_status_is_the_servers() -> None:
    process = await start(command(ECHO))
    async with asyncio.timeout(30):
        out, _ = await process.communicate(b"x" * 300_000)

    assert (out, process.returncode) == (b"x" * 300_000, 0)


@pytest.mark.parametrize("count", [0, 1, 16, 99])
async def test_a_kill_on_the_way_down_lets_exactly_so_many_bytes_out(count: int) -> None:
    process = await start(command(ECHO, "--after", str(count), "--direction", "down"))
    async with asyncio.timeout(30):
        out, _ = await process.communicate(b"x" * 100)

    assert (out, process.returncode) == (b"x" * count, -signal.SIGKILL)


@pytest.mark.parametrize("count", [0, 1, 16, 99])
async def test_a_close_on_the_way_up_lets_the_server_have_exactly_so_many_bytes(count: int, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    words = command([*RECONNECTOR, str(kept)], "--after", str(count), "--direction", "up", "--how", "close")
    process = await start(words)
    async with asyncio.timeout(30):
        await process.communicate(b"x" * 100)

    assert (kept.read_bytes(), process.returncode) == (b"x" * count, 0)


async def test_a_close_on_the_way_down_leaves_the_server_running() -> None:
    process = await start(command(ECHO, "--after", "2", "--how", "close"))
    assert process.stdin is not None
    assert process.stdout is not None
    async with asyncio.timeout(30):
        process.stdin.write(b"hello")
        assert await process.stdout.read() == b"he"
        assert process.returncode is None
        process.stdin.close()
        assert await process.wait() == 0


@pytest.mark.parametrize("way", ["up", "down"])
async def test_an_armed_cut_counts_from_its_arming_and_holds_once(way: Direction, tmp_path: Path) -> None:
    order = tmp_path / "order"
    process = await start(command(ECHO, "--arm", str(order)))
    assert process.stdin is not None
    assert process.stdout is not None
    async with asyncio.timeout(30):
        process.stdin.write(b"first")
        assert await process.stdout.readexactly(5) == b"first"
        arm(order, 3, way)
        process.stdin.write(b"second")
        assert await process.stdout.read() in ({b"sec"} if way == "down" else {b"", b"sec"})
        assert await process.wait() == -signal.SIGKILL

    assert not order.exists()
