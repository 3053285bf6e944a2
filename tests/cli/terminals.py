"""Runs commands on terminals of 80 columns, as a person does."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.fork_server import quick_isthmus
from tests.hubs import environment

SECONDS = 60.0
COLUMNS, LINES = 80, 24

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command on a terminal, and what it has shown so far."""

    def __init__(self, process: asyncio.subprocess.Process, descriptor: int) -> None:
        self.process = process
        self.text = ""
        self._descriptor = descriptor
        self._is_done = False
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # the command has ended
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self._is_done = True
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
        """Wait for the end of the command and of what it shows, and return its exit code."""
        async with asyncio.timeout(SECONDS):
            code = await self.process.wait()
            while not self._is_done:
                self._changed.clear()
                await self._changed.wait()
        return code


@asynccontextmanager
async def on_terminal(
    folder: Path, *words: str, env: dict[str, str] | None = None, program: Sequence[str] = ()
) -> AsyncIterator[Terminal]:
    """Run a command of the hub, or another program, on a terminal of its own."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))

    def take_terminal() -> None:  # so that Ctrl-C reaches the command
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    process = await asyncio.create_subprocess_exec(
        *(program or quick_isthmus(*words)),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=environment({"TERM": "xterm", **(env or {})}),
        preexec_fn=take_terminal,
    )
    os.close(theirs)
    terminal = Terminal(process, ours)
    try:
        yield terminal
    finally:
        if process.returncode is None:
            process.kill() if program else process.terminate()  # a shell ignores SIGTERM
            await process.wait()
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)


async def run(folder: Path, *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a command on a terminal to its end, and return its exit code and what it showed."""
    async with on_terminal(folder, *words, env={"NO_COLOR": "1", **(env or {})}) as terminal:
        return await terminal.ended(), ESCAPES.sub("", terminal.text)
