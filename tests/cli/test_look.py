"""What a person at a terminal of 80 columns sees of a running hub: its log, its tools, its servers, its figures."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.faults import light_server
from tests.hubs import environment, isthmus, stdio, write_config

pytestmark = pytest.mark.usefixtures("no_leftovers")

SECONDS = 60.0
COLUMNS = 80


class Terminal:
    """A command on a terminal, and what it has shown so far."""

    def __init__(self, process: asyncio.subprocess.Process, descriptor: int) -> None:
        self.process = process
        self.text = ""
        self._descriptor = descriptor
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # the command has ended
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._descriptor)
        self.text += data.decode("utf-8", "replace").replace("\r\n", "\n")
        self._changed.set()

    async def until(self, pattern: str) -> re.Match[str]:
        """Wait until the pattern has been shown."""
        async with asyncio.timeout(SECONDS):
            while (found := re.search(pattern, self.text, re.DOTALL)) is None:
                self._changed.clear()
                await self._changed.wait()
        return found

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._descriptor, keys)

    async def ended(self) -> int:
        """Wait for the end of the command, and return its exit code."""
        async with asyncio.timeout(SECONDS):
            return await self.process.wait()


@asynccontextmanager
async def on_terminal(folder: Path, *words: str, env: dict[str, str] | None = None) -> AsyncIterator[Terminal]:
    """Run a command on a terminal of its own."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *isthmus(*words),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=environment({"TERM": "xterm", **(env or {})}),
        start_new_session=True,
    )
    os.close(theirs)
    terminal = Terminal(process, ours)
    try:
        yield terminal
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)


# -- the log -----------------------------------------------------------------------------------------------------------

SERVERS = {
    "well": stdio(light_server.command("well")),
    "broken": stdio(["/bin/sh", "-c", "echo 'no licence' >&2; exit 3"]),
}


async def test_the_log_has_times_first_and_fits_the_terminal(tmp_path: Path) -> None:
    config = write_config(tmp_path, SERVERS)
    async with on_terminal(tmp_path, "serve", "--config", str(config), "--port", "0", env={"NO_COLOR": "1"}) as hub:
        await hub.until(r"server ready +server=well")
        await hub.until(r'server not connected +server=broken reason="exited with code 3"\s+detail="no licence"')
        hub.process.terminate()
        assert await hub.ended() == 0
    lines = hub.text.splitlines()
    assert [line for line in lines if len(line) > COLUMNS] == []
    assert [
        line for line in lines if not re.match(r"\d\d:\d\d:\d\d (info|warning) +[^ ]|                 [^ ]", line)
    ] == []
    assert "None" not in hub.text
    assert "\x1b" not in hub.text


async def test_quiet_logs_warnings_and_verbose_logs_each_call(tmp_path: Path) -> None:
    config = write_config(tmp_path, SERVERS)
    async with on_terminal(tmp_path, "serve", "--config", str(config), "--port", "0", "-q") as hub:
        await hub.until("server not connected")
    assert "listening" not in hub.text
    assert "\x1b[33mwarning\x1b[0m" in hub.text
    async with on_terminal(tmp_path, "serve", "--config", str(config), "--port", "0", "-v") as hub:
        url = (await hub.until(r"url=(http://\S+)/mcp"))[1]
        async with on_terminal(tmp_path, "call", "--hub", url, "builtin.echo", "text=hello") as call:
            assert await call.ended() == 0
        await hub.until(r"call +tool=builtin.echo caller=local ms=[0-9.]+ outcome=result")
